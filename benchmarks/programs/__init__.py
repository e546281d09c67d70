"""Thirteen programs after the workloads of the SGLang paper (arXiv 2312.07104), measured.

python -m benchmarks.programs [--quick] [--only NAME,...] [--json FILE] [--remote URL]
"""
