"""Serving without torch."""

from pairloom.deploy.ort import ort_library

__all__ = ["ort_library"]
