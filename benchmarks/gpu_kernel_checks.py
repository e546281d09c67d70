"""The other kernels on a GPU, against float64 and timed: norms, rotation, gating, copies, choice of
tokens, quantized products. Shapes are those of Llama 3.1 8B."""

from collections.abc import Callable

import torch
from gpu_timing import COLD_BYTES, Check, Session, relative_error
from torch import Tensor
from torch.nn import functional

from umbel.kernels.triton.choosing import ChoiceParams, TokenMasks, choose_tokens
from umbel.kernels.triton.elementwise import add_rms_norm, gated_activation, rotate_and_write
from umbel.kernels.triton.logit_edits import RowEdits, edit_logits, pack_edits
from umbel.kernels.triton.quantized import (
    QuantizedFormat,
    QuantizedWeight,
    dequantize,
    quantize,
    quantized_linear,
)
from umbel.kernels.triton.slot_copy import copy_slots

HALF = torch.bfloat16
MASS_ERROR = 1e-5  # of float32 sums over a vocabulary


def _copies(session: Session, num_bytes: float) -> int:
    """How many instances of a problem keep the L2 cache cold."""
    return min(16, int(COLD_BYTES // num_bytes) + 1) if session.is_timed else 1


def check_elementwise(session: Session) -> None:
    for rows in (64, 8192) if session.is_timed else (3,):
        _check_norm(session, rows)
        _check_rotation(session, rows)
        _check_gating(session, rows)
    _check_copies(session)


def _check_norm(session: Session, rows: int) -> None:
    size = 4096 if session.is_timed else 576
    num_bytes = 4 * rows * size * 2
    count = _copies(session, num_bytes)
    x, residual, out = (
        torch.randn(count, rows, size, dtype=HALF, device=session.device) for _ in range(3)
    )
    weight = torch.rand(size, device=session.device) + 0.5
    total = (x[0].double() + residual[0].double()).to(HALF).double()
    expected = total * (total.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * weight.double()

    def launch(i: int) -> Callable[[], Tensor]:
        return lambda: add_rms_norm(x[i], residual[i], weight, 1e-5, out=out[i], backend="triton")

    launch(0)()
    error = relative_error(out[0], expected)
    time_us = session.time_us([launch(i) for i in range(count)])
    session.add(
        Check(
            name=f"norm with residual, {rows} rows",
            error=error,
            tolerance=1e-2,
            time_us=time_us,
            num_bytes=num_bytes,
            target=0.85 if rows > 1000 else None,
        )
    )


def _check_rotation(session: Session, rows: int) -> None:
    heads, kv_heads, dim = (32, 8, 128) if session.is_timed else (4, 1, 32)
    width = (heads + 2 * kv_heads) * dim
    num_bytes = rows * width * 4
    count = _copies(session, num_bytes)
    qkv = torch.randn(count, rows, width, dtype=HALF, device=session.device)
    pools = torch.full((2, rows + 1, kv_heads, dim), torch.nan, dtype=HALF, device=session.device)
    slots = torch.randperm(rows, device=session.device).int() + 1
    slots[0] = -1
    positions = torch.arange(rows, device=session.device).int()
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=session.device) / dim
    angles = positions.double()[:, None] * 500000.0**-exponents
    table = torch.cat((angles.cos(), angles.sin()), dim=1).float()

    def launch(i: int) -> Callable[[], Tensor]:
        return lambda: rotate_and_write(
            qkv[i],
            slots,
            pools[0],
            pools[1],
            table=table,
            positions=positions,
            backend="triton",
        )

    q = launch(0)()
    low, high = qkv[0].double().view(rows, -1, dim).chunk(2, dim=2)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    expected = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=2)
    kept = slots[1:].long()
    error = max(
        relative_error(q, expected[:, :heads]),
        relative_error(pools[0][kept], expected[1:, heads : heads + kv_heads]),
    )
    same = torch.equal(pools[1][kept], qkv[0].view(rows, -1, dim)[1:, heads + kv_heads :])
    untouched = bool(pools[:, 0].isnan().all())
    session.add(
        Check(
            name=f"rotation and write, {rows} rows",
            error=error if same and untouched else float("nan"),
            tolerance=1e-2,
            time_us=session.time_us([launch(i) for i in range(count)]),
            num_bytes=num_bytes,
            target=0.8 if rows > 1000 else None,
        )
    )


def _check_gating(session: Session, rows: int) -> None:
    size = 14336 if session.is_timed else 200
    num_bytes = rows * size * 6
    count = _copies(session, num_bytes)
    gate_up = torch.randn(count, rows, 2 * size, dtype=HALF, device=session.device)
    out = torch.empty(count, rows, size, dtype=HALF, device=session.device)

    def launch(i: int) -> Callable[[], Tensor]:
        return lambda: gated_activation(gate_up[i], out=out[i], backend="triton")

    launch(0)()
    gate, up = gate_up[0].double().chunk(2, dim=1)
    session.add(
        Check(
            name=f"gated activation, {rows} rows",
            error=relative_error(out[0], functional.silu(gate) * up),
            tolerance=1e-2,
            time_us=session.time_us([launch(i) for i in range(count)]),
            num_bytes=num_bytes,
            target=0.85 if rows > 1000 else None,
        )
    )


def _check_copies(session: Session) -> None:
    layers, num_slots, count = (32, 4096, 1024) if session.is_timed else (2, 40, 5)
    pool = torch.randn(layers, num_slots, 8, 128, dtype=HALF, device=session.device)
    source = torch.randperm(num_slots, device=session.device)[:count].int()
    target = torch.randperm(num_slots, device=session.device)[:count].int()
    expected = pool.clone()
    expected[:, target.long()] = pool[:, source.long()]

    def launch() -> None:
        copy_slots(pool, source, target, backend="triton")

    launch()
    error = 0.0 if torch.equal(pool, expected) else float("nan")
    session.add(
        Check(
            name=f"copy of {count} slots in {layers} layers",
            error=error,
            time_us=session.time_us([launch]),
            num_bytes=4 * count * layers * 2048,
            note="through a buffer",
        )
    )


def check_choosing(session: Session) -> None:
    shapes = [(1, 128256), (64, 128256), (256, 128256), (64, 262144)]
    for rows, size in shapes if session.is_timed else [(3, 700)]:
        for dtype in (torch.float32, torch.bfloat16) if rows == 64 else (torch.float32,):
            _check_choice(session, rows, size, dtype, has_filters=False, is_masked=True)
    rows, size = (64, 128256) if session.is_timed else (3, 700)
    _check_choice(session, rows, size, torch.float32, has_filters=False, is_masked=False)
    _check_choice(session, rows, size, torch.float32, has_filters=True, is_masked=True)
    _check_edits(session, rows, size)


def _check_choice(
    session: Session,
    rows: int,
    size: int,
    dtype: torch.dtype,
    *,
    has_filters: bool,
    is_masked: bool,
) -> None:
    device = session.device
    num_bytes = rows * size * dtype.itemsize + is_masked * rows * size / 8
    count = _copies(session, num_bytes)
    logits = torch.randn(count, rows, size, device=device).mul_(3).to(dtype)
    words = torch.randint(-(1 << 31), 1 << 31, (rows, -(-size // 32)), device=device).int()
    masks = TokenMasks(words, torch.arange(rows, device=device).int()) if is_masked else None
    temperatures = torch.full((rows,), 0.8, device=device)
    temperatures[0] = 0
    params = ChoiceParams(
        temperatures=temperatures,
        uniforms=torch.rand(rows, device=device),
        top_k=torch.full((rows,), 50, device=device).int() if has_filters else None,
        top_p=torch.full((rows,), 0.9, device=device) if has_filters else None,
        min_p=torch.full((rows,), 0.01, device=device) if has_filters else None,
    )

    def launch(i: int) -> Callable[[], object]:
        return lambda: choose_tokens(logits[i], params, masks, backend="triton")

    choices = choose_tokens(logits[0], params, masks, backend="triton")
    twin = choose_tokens(logits[0], params, masks, backend="torch")
    wrong = _misplaced(logits[0], params, masks, choices.tokens, choices.thresholds)
    x = _masked(logits[0], masks).float()
    kept, as_sorted = (x >= one.thresholds[:, None] for one in (choices, twin))
    wrong += int((kept != as_sorted).sum()) + int(choices.tokens[0] != twin.tokens[0])
    kind = ", top-k, top-p and min-p" if has_filters else ""
    session.add(
        Check(
            name=f"choice, {rows} x {size} {str(dtype)[6:]}{kind}",
            error=float(wrong),
            time_us=session.time_us([launch(i) for i in range(count)]),
            num_bytes=num_bytes,
            target=0.45 if rows >= 64 and not has_filters else None,
            note="masked" if is_masked else "no masks",
        )
    )


def _misplaced(
    logits: Tensor,
    params: ChoiceParams,
    masks: TokenMasks | None,
    tokens: Tensor,
    thresholds: Tensor,
) -> int:
    """How many drawn tokens do not lie where their uniform number falls, in float64."""
    x = _masked(logits, masks).double()
    x = x.masked_fill(x < thresholds.double()[:, None], -torch.inf)
    drawn = params.temperatures > 0
    probs = (x[drawn] / params.temperatures[drawn, None].double()).softmax(1)
    at = tokens[drawn].long()[:, None]
    high = probs.cumsum(1).gather(1, at)[:, 0]
    own = probs.gather(1, at)[:, 0]
    uniforms = params.uniforms[drawn].double()
    is_there = (high - own - MASS_ERROR <= uniforms) & (uniforms <= high + MASS_ERROR) & (own > 0)
    return int((~is_there).sum())


def _masked(logits: Tensor, masks: TokenMasks | None) -> Tensor:
    if masks is None:
        return logits
    bits = torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = ((masks.words[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[1]] != 0
    return logits.masked_fill(~allowed, -torch.inf)


def _check_edits(session: Session, rows: int, size: int) -> None:
    tokens = torch.randint(0, size, (rows, 500)).tolist()
    edits = [
        RowEdits(tokens=row, output=row[:200], repetition=1.2, frequency=0.1, banned=row[:3])
        for row in tokens
    ]
    packed = pack_edits(edits, session.device)
    logits = torch.randn(rows, size, device=session.device)
    expected = logits.clone()
    edit_logits(expected, packed, backend="torch")
    edit_logits(logits, packed, backend="triton")
    error = float((logits - expected).nan_to_num(0.0, 0.0, 0.0).abs().max())
    session.add(
        Check(
            name=f"logit edits, {rows} x 500",
            error=error,
            tolerance=1e-5,
            time_us=session.time_us([lambda: edit_logits(logits, packed, backend="triton")]),
            num_bytes=28 * len(packed.tokens),
        )
    )


def check_quantized(session: Session) -> None:
    shapes = [(1, 28672, 4096), (16, 28672, 4096), (64, 28672, 4096), (16, 4096, 4096)]
    formats: tuple[QuantizedFormat, ...] = ("int4", "int8", "float8")
    for rows, outputs, size in shapes if session.is_timed else [(3, 100, 256)]:
        for format in formats:
            _check_product(session, rows, outputs, size, format)


def _check_product(
    session: Session, rows: int, outputs: int, size: int, format: QuantizedFormat
) -> None:
    weight = quantize(torch.randn(outputs, size, device=session.device), format)
    x = torch.randn(rows, size, dtype=HALF, device=session.device)
    num_bytes = weight.size_bytes + 2 * rows * (size + outputs)
    weights = [weight] + [
        QuantizedWeight(format, weight.codes.clone(), weight.scales.clone())
        for _ in range(_copies(session, num_bytes) - 1)
    ]
    out = quantized_linear(x, weight, backend="triton")
    expected = x.double() @ dequantize(weight).double().T

    def launch(one: QuantizedWeight) -> Callable[[], Tensor]:
        return lambda: quantized_linear(x, one, backend="triton")

    few = rows <= 16 and outputs > 8192
    targets = {"int4": 0.5, "int8": 0.6, "float8": 0.65}
    session.add(
        Check(
            name=f"{format} product, {rows} rows, {outputs} x {size}",
            error=relative_error(out, expected),
            tolerance=1e-2,
            time_us=session.time_us([launch(one) for one in weights]),
            num_bytes=num_bytes,
            flops=2.0 * rows * outputs * size,
            target=targets[format] if few else None,
        )
    )
