"""Linear layers whose weights stay quantized in memory: int4, int8 or float8, for few rows.

A decode step reads every weight once, so bytes are time: int4 takes a quarter of bfloat16's. With
many rows a product is bound by arithmetic, and dequantizing once is better.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend

QuantizedFormat = Literal["int4", "int8", "float8"]
GROUP = 128  # codes of one scale, and of one turn of the kernels
_HALVES = (torch.bfloat16, torch.float16)
_MAX_CODE = {"int4": 7.0, "int8": 127.0, "float8": 448.0}
_WANTED_PROGRAMS = 4 * 132  # so that every multiprocessor has loads of several in flight


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K], symmetric: its value is code * scale.

    codes: int4: int32 [N, K / 8], of which a run of 16 words holds 128 codes plus 8, code 16 i + j
    in bits 4i .. 4i + 3 of word j; int8 or float8_e4m3fn: [N, K]. scales: [N, K / 128], of each
    group of 128, or, except for int4, [N, 1]; bfloat16, float16 or float32.
    """

    format: QuantizedFormat
    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """N, K."""
        rows, columns = self.codes.shape
        return rows, columns * (8 if self.format == "int4" else 1)

    @property
    def size_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def quantize(weight: Tensor, format: QuantizedFormat, *, per_group: bool = True) -> QuantizedWeight:
    """The nearest codes with each scale's largest value at the end of the range.

    weight: [N, K] of a floating-point dtype, K a multiple of 128. Scales are bfloat16, one per 128
    codes, or, except for int4, one per output.
    """
    num_outputs, size = weight.shape
    if size % GROUP or (format == "int4" and not per_group):
        raise ValueError(
            f"a weight of shape {list(weight.shape)} cannot be {format} with per_group="
            f"{per_group}: expected K to be a multiple of {GROUP}, and per_group for int4"
        )
    groups = weight.float().view(num_outputs, -1, GROUP if per_group else size)
    scales = (groups.abs().amax(2) / _MAX_CODE[format]).to(torch.bfloat16)
    scaled = groups / scales.float().clamp_min(1e-30)[..., None]
    if format == "float8":
        codes = scaled.clamp(-448, 448).to(torch.float8_e4m3fn).view(num_outputs, size)
    else:
        whole = scaled.round().clamp(-_MAX_CODE[format] - 1, _MAX_CODE[format]).to(torch.int8)
        codes = whole.view(num_outputs, size)
    return QuantizedWeight(format, pack_int4(codes) if format == "int4" else codes, scales)


def pack_int4(codes: Tensor) -> Tensor:
    """codes: [N, K] int8 from -8 to 7 -> [N, K / 8] int32, as in `QuantizedWeight`."""
    parts = (codes.to(torch.int64) + 8).view(len(codes), -1, 8, 16)  # [N, runs, i, j]
    shifts = (4 * torch.arange(8, device=codes.device))[:, None]
    words = (parts << shifts).sum(2)  # below 2**32
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return words.to(torch.int32).reshape(len(codes), -1)


def dequantize(weight: QuantizedWeight) -> Tensor:
    """[N, K] float32."""
    num_outputs, size = weight.shape
    codes = weight.codes
    if weight.format == "int4":
        shifts = (4 * torch.arange(8, dtype=torch.int32, device=codes.device))[:, None]
        runs = codes.view(num_outputs, -1, 1, 16)
        codes = ((runs >> shifts) & 0xF).reshape(num_outputs, size) - 8
    groups = codes.float().view(num_outputs, weight.scales.shape[1], -1)
    return (groups * weight.scales.float()[..., None]).view(num_outputs, size)


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    *,
    num_splits: int | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """x: [T, K] bfloat16 or float16, dense rows -> x @ weight.T, [T, N], of x's dtype.

    num_splits: over how many programs K is divided; None: as many as fill the device. Sums are
    float32 and do not depend on what else runs, but on num_splits.
    """
    num_outputs, size = _check(x, weight)
    num_rows = len(x)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    if choose_backend(x, backend) == "torch":
        return torch.matmul(x.float(), dequantize(weight).T).to(x.dtype)
    from umbel.kernels.triton import quantized_jit

    block_m = max(16, min(64, 1 << (num_rows - 1).bit_length()))
    block_n = 64
    grid_n, grid_m = -(-num_outputs // block_n), -(-num_rows // block_m)
    if num_splits is None:
        num_splits = min(8, max(1, _WANTED_PROGRAMS // (grid_n * grid_m)), -(-size // GROUP))
    k_per_split = -(-size // (num_splits * GROUP)) * GROUP
    num_splits = -(-size // k_per_split)
    partials = torch.empty(
        num_splits * num_rows * num_outputs if num_splits > 1 else 1,
        dtype=torch.float32,
        device=x.device,
    )
    args = (
        x,
        weight.codes,
        weight.scales,
        out,
        partials,
        num_rows,
        num_outputs,
        size,
        x.stride(0),
        k_per_split,
    )
    grid = (grid_n, num_splits, grid_m)
    if weight.format == "int4":
        quantized_jit.int4_linear_kernel[grid](
            *args, BM=block_m, BN=block_n, SPLIT=num_splits, num_warps=4, num_stages=4
        )
    else:
        quantized_jit.byte_linear_kernel[grid](
            *args,
            BM=block_m,
            BN=block_n,
            BK=GROUP,
            PER_GROUP=weight.scales.shape[1] > 1,
            SPLIT=num_splits,
            num_warps=4,
            num_stages=4,
        )
    if num_splits > 1:
        total = num_rows * num_outputs
        quantized_jit.add_partials_kernel[(-(-total // 1024),)](
            partials, out, total, SPLIT=num_splits, BLOCK=1024, num_warps=4
        )
    return out


def _check(x: Tensor, weight: QuantizedWeight) -> tuple[int, int]:
    num_outputs, size = weight.shape
    check_tensor("x", x, shape=(None, size), dtypes=_HALVES, device=weight.codes.device)
    if x.stride(1) != 1:
        raise ValueError(f"x has strides {x.stride()}; expected dense rows")
    kinds = {"int4": torch.int32, "int8": torch.int8, "float8": torch.float8_e4m3fn}
    check_tensor(
        "weight.codes",
        weight.codes,
        shape=(None, None),
        dtypes=(kinds[weight.format],),
        device=x.device,
    )
    check_tensor(
        "weight.scales",
        weight.scales,
        shape=(num_outputs, None),
        dtypes=(*_HALVES, torch.float32),
        device=x.device,
    )
    per_group = weight.scales.shape[1] * GROUP == size
    if size % GROUP or not (per_group or (weight.scales.shape[1] == 1 and weight.format != "int4")):
        raise ValueError(
            f"weight has K={size} and {weight.scales.shape[1]} scales a row; expected K to be a "
            f"multiple of {GROUP}, with a scale for each {GROUP} or, except for int4, one a row"
        )
    return num_outputs, size
