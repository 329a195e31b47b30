"""What must hold before any test, doctest or worker process imports torch."""

import os

# Worker processes share the cores: an OpenMP thread that waits must not spin on one that somebody else needs. Four
# times faster on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The package comes before its files: collecting doctests would run a file that registers an operator a second time.
import pairloom.functional  # noqa: F401
