"""Doctests of a module that registers an operator: the package comes first, else its file would be run a second time."""

import pairloom.functional  # noqa: F401
