"""Requests, scheduling, models and sampling: everything between a program and the kernels."""
