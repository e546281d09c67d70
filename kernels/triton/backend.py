"""Which implementation an operation runs: the Triton kernel on CUDA tensors, else its torch twin.

Every public function of this folder takes `backend`; None means the choice made here. Triton is
imported by the functions that launch kernels, so that the twins need no Triton.
"""

import importlib.util
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["torch", "triton"]


def choose_backend(tensor: Tensor, backend: Backend | None) -> Backend:
    """`backend` if it is given, else what fits the device of `tensor`.

    Raises `RuntimeError` if the kernel is asked for and Triton is not installed.
    """
    chosen = backend or ("triton" if tensor.device.type == "cuda" else "torch")
    if chosen == "triton" and importlib.util.find_spec("triton") is None:
        raise RuntimeError(
            "the Triton kernels need the package triton, which is not installed: install it "
            "(Linux on x86-64), or pass backend='torch'"
        )
    return chosen


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Raise `ValueError` unless `tensor` has this shape (None: any size), one of these dtypes, and
    lies on `device`."""
    fits = tensor.ndim == len(shape) and all(
        want in (None, size) for size, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype not in dtypes or tensor.device != device:
        sizes = ", ".join("any" if want is None else str(want) for want in shape)
        names = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, dtype {tensor.dtype} and lies on "
            f"{tensor.device}; expected [{sizes}], {names}, on {device}"
        )
