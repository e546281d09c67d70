"""Weights, KV per token, and the intensity of a product: what bytes and FLOPs there are to begin
with.
"""

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.records import Device, ModelShape, above_zero, at_least, dtype_bytes


def weight_bytes(shape: ModelShape, dtype: str) -> float:
    """Bytes of memory for all weights.

    Formula: W = P b
    """
    return shape.num_parameters * dtype_bytes(dtype)


def streamed_weight_bytes(shape: ModelShape, dtype: str, *, with_head: bool = True) -> float:
    """Bytes of weights that a step reads; an input table that is not also the head is only looked
    up.

    Formula: W_step = (P - P_input_table) b
    """
    head = 0 if with_head else shape.num_head_parameters
    return (shape.num_streamed_parameters - head) * dtype_bytes(dtype)


def kv_bytes_per_token(shape: ModelShape, kv_dtype: str) -> float:
    """Bytes of keys and values of one token in all layers (divide by `num_layers` for one layer).

    Formula: kappa = 2 n_l n_kv D b
    """
    width = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return width * dtype_bytes(kv_dtype)


def projection_intensity(rows: float, d_in: int, d_out: int, element_bytes: float) -> float:
    """FLOPs per byte of a product [rows, d_in] x [d_in, d_out]. Raises for a size below one.

    Formula: AI = 2 B d d' / (b (d d' + B d + B d'))
    """
    for name, value in (("rows", rows), ("d_in", d_in), ("d_out", d_out)):
        at_least(name, value, 1)
    above_zero("element_bytes", element_bytes)
    elements = d_in * d_out + rows * (d_in + d_out)
    return 2 * rows * d_in * d_out / (element_bytes * elements)


def intensity_limit(d_in: int, d_out: int, element_bytes: float) -> float:
    """What `projection_intensity` approaches as rows grow: FLOPs per byte.

    Formula: AI_inf = 2 d d' / (b (d + d'))
    """
    above_zero("element_bytes", element_bytes)
    return 2 * d_in * d_out / (element_bytes * (d_in + d_out))


def peak_flops(device: Device, dtype: str) -> float:
    """Dense FLOP/s for weights of `dtype`. Weights narrower than 16 bits that the device has no
    arithmetic for are widened first and computed at its 16-bit rate.

    Formula: F = dense peak of the dtype; else of bfloat16, for weights below 16 bits
    Raises `InvalidRequest` when the device has no rate that fits.
    """
    narrow = dtype_bytes(dtype) < dtype_bytes("bfloat16")
    candidates = (dtype, "bfloat16", "float16") if narrow else (dtype,)
    for candidate in candidates:
        if candidate in device.peak_flops:
            return device.peak_flops[candidate]
    raise InvalidRequest(
        f"device {device.name!r} has no FLOP rate for {dtype}: expected one of "
        f"{', '.join(device.peak_flops)}",
        param="dtype",
    )


def effective_flops(device: Device, dtype: str, efficiency: float) -> float:
    """FLOP/s that prefill reaches.

    Formula: F_eff = e F
    """
    if not 0 < efficiency <= 1:
        raise InvalidRequest(
            f"efficiency={efficiency!r} is not valid: expected a share above 0, up to 1",
            param="efficiency",
        )
    return efficiency * peak_flops(device, dtype)


def knee(device: Device, dtype: str) -> float:
    """FLOPs per byte above which the device is limited by arithmetic.

    Formula: I = F / BW
    """
    return peak_flops(device, dtype) / device.bandwidth


def knee_rows(
    knee_flops_per_byte: float, d_in: int, d_out: int, element_bytes: float
) -> float | None:
    """Rows at which a projection reaches the knee; None when no number of rows does.

    Formula: B* = I b d d' / (2 d d' - I b (d + d'))
    """
    above_zero("knee_flops_per_byte", knee_flops_per_byte)
    weighted = knee_flops_per_byte * element_bytes
    denominator = 2 * d_in * d_out - weighted * (d_in + d_out)
    return weighted * d_in * d_out / denominator if denominator > 0 else None
