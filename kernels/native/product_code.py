"""The inner loop of products, one intrinsic for each kind of weight and size of tile.

A panel holds 16 outputs, one in each lane, and the inputs one after the other (in bfloat16: pair by
pair), each of which is multiplied with what is broadcast of a row: no sum goes across lanes.
Quantized weights are multiplied as codes: the sum over a group of inputs is scaled afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import (
    F16X16,
    F32,
    F32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

LANES = 16  # outputs of a panel
GROUP = 32  # inputs that share a scale


def _same(emit: Emitter, total: Value) -> Value:
    return total


@dataclass(frozen=True, slots=True)
class WeightKind:
    """How the weights of a panel lie in memory and are multiplied.

    weights: (emit, address of a group) -> for 16 outputs the weights of each input, or of so many
    inputs as 32 bits of a row hold, in turn.
    add: (emit, total, weights, address, offset) -> total + their product with the 32 bits of a row
    that lie `offset` bytes behind the address.
    zero, to_floats: (emit), (emit, total) of a total, which need not be a vector of float32.
    is_rounded: whether the inputs of each group of a row are integers, to be scaled and corrected.
    """

    group_bytes: int
    x_group_bytes: int  # of a row
    weights: Callable[[Emitter, Value], Iterator[Any]]
    add: Callable[[Emitter, Any, Any, Value, int], Any]
    num_steps: int  # per group and output: none, a float16 scale, or a scale and an offset
    zero: Callable[[Emitter], Any] = Emitter.zeros
    to_floats: Callable[[Emitter, Any], Value] = _same
    is_rounded: bool = False

    @property
    def step_bytes(self) -> int:
        return 2 * LANES * self.num_steps


def make_tile(
    kind: WeightKind,
    num_rows: int,
    num_panels: int = 1,
    *,
    num_chains: int = 1,
    prefetches: bool = False,
) -> Any:
    """A product of `num_rows` rows with `num_panels` panels, as an intrinsic for numba.

    (weights, panel_bytes, steps, step_bytes, x, x_stride, sums, num_groups, bias, y, y_stride,
    is_float): a panel's weights and its float16 scales and offsets [groups, 1 or 2, 16] lie
    `panel_bytes` and `step_bytes` behind those of the one before; rows lie `x_stride` bytes apart;
    sums: float32 [rows, groups], of the rows' groups, or, if the rows are rounded, [rows, groups,
    3]: what the sums of integers are multiplied with, what is added then, and the sums; bias:
    16 float32 for each panel; results [rows, 16 panels] in float32 or bfloat16, `y_stride` bytes
    apart.

    num_chains: the sum over a group is split into so many, which do not wait for each other.
    prefetches: the panels behind these are asked for meanwhile. Panels are short: the hardware sees
    the start of each too late.
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        builder = emit.builder
        (weights, panel_bytes, steps, step_bytes, x, x_stride, sums, num_groups, bias, y, y_stride,
         is_float) = args  # fmt: skip
        tile = [(row, panel) for row in range(num_rows) for panel in range(num_panels)]
        totals = [
            cgutils.alloca_once_value(
                builder, emit.load(emit.at(bias, 64 * panel), F32X16, align=4)
            )
            for _, panel in tile
        ]
        rows = [builder.add(x, builder.mul(x_stride, I64(row))) for row in range(num_rows)]
        with cgutils.for_range(builder, num_groups) as loop:
            group = loop.index
            before = [builder.load(total) for total in totals]
            group_at = builder.add(weights, builder.mul(group, I64(kind.group_bytes)))
            chains = [before if kind.num_steps == 0 else [kind.zero(emit) for _ in tile]]
            chains += [[kind.zero(emit) for _ in tile] for _ in range(num_chains - 1)]
            x_at = builder.mul(group, I64(kind.x_group_bytes))
            rows_at = [builder.add(row, x_at) for row in rows]
            for panel in range(num_panels) if prefetches else ():
                ahead = I64(panel + num_panels)
                emit.prefetch(
                    builder.add(group_at, builder.mul(panel_bytes, ahead)), kind.group_bytes
                )
                at = builder.add(steps, builder.mul(group, I64(kind.step_bytes)))
                emit.prefetch(builder.add(at, builder.mul(step_bytes, ahead)), kind.step_bytes)
            of_panels = [
                kind.weights(emit, builder.add(group_at, builder.mul(panel_bytes, I64(panel))))
                for panel in range(num_panels)
            ]
            for i, of_input in enumerate(zip(*of_panels, strict=True)):
                chain = list(chains[i % num_chains])
                for row in range(num_rows):
                    for panel in range(num_panels):
                        place = row * num_panels + panel
                        chain[place] = kind.add(
                            emit, chain[place], of_input[panel], rows_at[row], 4 * i
                        )
                chains[i % num_chains] = chain
            products = [kind.to_floats(emit, total) for total in chains[0]]
            for chain in chains[1:]:
                products = [builder.fadd(a, b) for a, b in zip(products, chain, strict=True)]
            if kind.num_steps > 0:
                at = builder.add(steps, builder.mul(group, I64(kind.step_bytes)))
                steps_of = [
                    _load_steps(emit, builder.add(at, builder.mul(step_bytes, I64(panel))), kind)
                    for panel in range(num_panels)
                ]
                for place, (row, panel) in enumerate(tile):
                    idx = builder.add(builder.mul(num_groups, I64(row)), group)
                    of_group = _load_row_steps(emit, sums, idx, kind)
                    products[place] = _add_scaled(
                        emit, before[place], products[place], steps_of[panel], of_group
                    )
            for total, value in zip(totals, products, strict=True):
                builder.store(value, total)
        places = [builder.add(y, builder.mul(y_stride, I64(row))) for row, _ in tile]
        with builder.if_else(builder.icmp_signed("!=", is_float, I64(0))) as (then, otherwise):
            with then:
                for (_, panel), place, total in zip(tile, places, totals, strict=True):
                    emit.store(builder.load(total), emit.at(place, 64 * panel), align=4)
            with otherwise:
                for (_, panel), place, total in zip(tile, places, totals, strict=True):
                    emit.store_bfloat(builder.load(total), emit.at(place, 32 * panel))

    @intrinsic
    def tile(
        typingctx: Any, weights: Any, panel_bytes: Any, steps: Any, step_bytes: Any, x: Any,
        x_stride: Any, sums: Any, num_groups: Any, bias: Any, y: Any, y_stride: Any, is_float: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), codegen

    return tile


def choose_by_count(tiles: Mapping[int, Any]) -> Any:
    """(count, ...): of tiles by their numbers of rows, 1 among them, the one of `count` rows."""
    chosen = _only(tiles[1])
    for count in sorted(tiles.keys() - {1}):
        chosen = _either(count, tiles[count], chosen)
    return chosen


def _only(tile: Any) -> Any:
    @njit
    def call(
        count, weights, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
        is_float,
    ):  # fmt: skip
        tile(
            weights, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
            is_float,
        )  # fmt: skip

    return call


def _either(of_tile: int, tile: Any, otherwise: Any) -> Any:
    @njit
    def call(
        count, weights, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
        is_float,
    ):  # fmt: skip
        if count == of_tile:
            tile(
                weights, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
                y_stride, is_float,
            )  # fmt: skip
        else:
            otherwise(
                count, weights, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
                y_stride, is_float,
            )  # fmt: skip

    return call


def _load_steps(emit: Emitter, address: Value, kind: WeightKind) -> list[Value]:
    """The scale and, if there are any, the offset of 16 outputs, in float32."""
    return [
        emit.builder.fpext(emit.load(emit.at(address, 2 * LANES * i), F16X16, align=32), F32X16)
        for i in range(kind.num_steps)
    ]


def _load_row_steps(emit: Emitter, sums: Value, idx: Value, kind: WeightKind) -> list[Value]:
    """Of a group of a row, the scale and the correction, if it is rounded, and the sum."""
    count = 3 if kind.is_rounded else 1
    at = emit.builder.add(sums, emit.builder.mul(idx, I64(4 * count)))
    return [emit.splat(emit.load(emit.at(at, 4 * i), F32, align=4)) for i in range(count)]


def _add_scaled(
    emit: Emitter, total: Value, product: Value, steps: list[Value], of_row: list[Value]
) -> Value:
    """total + the product of a group, scaled, + what the offset, if there is one, contributes."""
    scale, *offset = steps
    *rounding, sum_of_group = of_row
    if rounding:
        product = emit.fma(product, *rounding)
    total = emit.fma(product, scale, total)
    return emit.fma(offset[0], sum_of_group, total) if offset else total
