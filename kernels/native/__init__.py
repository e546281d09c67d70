"""Optional CPU kernels, compiled by numba: products with few rows, norms, RoPE, decode attention.

Each has a twin in torch that is used where numba or AVX-512 with BF16 is missing.
"""
