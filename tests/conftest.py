"""Puts this folder on `sys.path`: shared strategies and simulations are imported by their path
below it.
"""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent)
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
