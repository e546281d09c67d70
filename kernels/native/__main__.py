"""`python -m umbel.kernels.native`: compile the native kernels and keep them in numba's cache.

The first start after an installation does so too, and its first token waits about seven seconds
longer for it. Set-up runs this.
"""

import importlib
import time

from umbel.kernels.native import threads

_MODULES = ("rows", "attention", "program_code")


def main() -> None:
    if not threads.is_available():
        print("native kernels: not here (they need numba and a CPU with AVX2)")
        return
    start_s = time.perf_counter()
    products = {"halves": "half_products", "bfloats": "bfloat_products", "floats": "float_products"}
    # Those of integers too: codes may want them, and `quantize` may ask for them.
    for name in (*_MODULES, products[threads.arithmetic()], "integer_products"):
        importlib.import_module(f"umbel.kernels.native.{name}")
    print(f"native kernels: compiled or found in {time.perf_counter() - start_s:.1f} s")


if __name__ == "__main__":
    main()
