"""Keeps the checkout root off `sys.path`.

`python -m pytest` puts it there, and then `import kernels` (transformers does one on import) would
find our folder instead of the PyPI package of that name.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]
