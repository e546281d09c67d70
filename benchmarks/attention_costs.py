"""What attention costs on this CPU: a key with a query, and what rows share, read once or by each.

    python benchmarks/attention_costs.py [--threads 2]

The heads of the embedded model (9 of 64, three for each KV head), bfloat16, a layer after the other
so that keys come from memory. The second table is in the form that recorded layers run: the kernel,
and the one that merges partial results, without Python's part. Best of some tries.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from umbel.kernels.attention import AttentionStep
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.native import threads
from umbel.kernels.native.attention import (
    ATTEND,
    MERGE,
    attend_args,
    merge_fields,
    task_fields,
)  # fmt: skip
from umbel.kernels.native.threads import float_bits, run_unsafe

_HEADS, _KV_HEADS, _DIM, _SCALE = 9, 3, 64, 0.125
_SLOTS, _LAYERS, _TRIES = 16_384, 20, 8
_OWN_TOKENS = 64  # of each row behind the prefix
_CHUNK_ROWS = 512  # of a prompt

Pools = Sequence[tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not threads.is_available():
        raise SystemExit("there are no native kernels here: they need numba and a CPU with AVX2")
    torch.manual_seed(0)
    shape = (_KV_HEADS, _SLOTS, _DIM)
    pools = [(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16()) for _ in range(_LAYERS)]
    torch.set_num_threads(1)
    print(f"arithmetic: {threads.arithmetic()}\n\n| one thread | ns for each key and query |")
    print("| --- | ---: |")
    for rows, keys in ((1, 128), (1, 512), (1, 2048), (1, 8192), (16, 512)):
        seconds = _layer_s(_apart(rows, 0, keys), rows, pools)
        print(f"| {rows} rows with {keys} keys each | {_per_pair_ns(seconds, rows, keys):.1f} |")
    for rows in (4, 16, 64):
        seconds = _layer_s(_shared(rows, 2048, 1), rows, pools)
        print(f"| {rows} rows over the same 2,048 | {_per_pair_ns(seconds, rows, 2048):.1f} |")
    for cached in (0, 512, 3584, 7680):
        seconds = _layer_s(_chunk(cached), _CHUNK_ROWS, pools[:4])
        pairs_ns = _per_pair_ns(seconds, _CHUNK_ROWS, cached + _CHUNK_ROWS / 2)
        print(f"| a chunk of {_CHUNK_ROWS} behind {cached:,} | {pairs_ns:.1f} |")
    print(f"| a product of float32 would take | {_product_ns():.1f} |\n")
    torch.set_num_threads(args.threads)
    print(f"| {args.threads} threads | prefix read once, us a layer | by each |")
    print("| --- | ---: | ---: |")
    for rows in (4, 16, 64):
        for prefix in (64, 256, 1024):
            once, each = (
                _layer_s(make(rows, prefix, _OWN_TOKENS), rows, pools) for make in (_shared, _apart)
            )
            print(f"| {rows} rows, prefix of {prefix} | {once * 1e6:.0f} | {each * 1e6:.0f} |")


def _shared(rows: int, prefix: int, own: int) -> AttentionStep:
    stretch = KeyStretch(0, [(0, prefix)], list(range(rows)))
    tails = [KeyStretch(prefix, [(prefix + i * own, own)]) for i in range(rows)]
    return AttentionStep([QueryRun(prefix + own - 1, 1)] * rows, [stretch], tails)


def _apart(rows: int, prefix: int, own: int) -> AttentionStep:
    """The same, every row reading all."""
    before = [(0, prefix)] if prefix else []
    tails = [KeyStretch(0, [*before, (prefix + i * own, own)]) for i in range(rows)]
    return AttentionStep([QueryRun(prefix + own - 1, 1)] * rows, [], tails)


def _chunk(cached: int) -> AttentionStep:
    """Rows of one prompt, each of which sees `cached` keys and those of the rows before it."""
    tail = KeyStretch(0, [(0, cached + _CHUNK_ROWS)])
    return AttentionStep([QueryRun(cached, _CHUNK_ROWS)], [], [tail])


def _layer_s(step: AttentionStep, rows: int, pools: Pools) -> float:
    q = torch.randn(rows, _HEADS, _DIM).bfloat16()
    out = torch.empty(rows, _HEADS, _DIM, dtype=torch.bfloat16)
    work = step.tasks(None, _HEADS // _KV_HEADS, _KV_HEADS)
    partial = torch.empty(work.num_results, _HEADS, _DIM), torch.empty(work.num_results, _HEADS)
    calls = []
    for k_pool, v_pool in pools:
        attend = torch.tensor([*attend_args(q, k_pool, v_pool, float_bits(_SCALE))])
        attend[1:5] = torch.tensor(task_fields(work))
        calls.append((ATTEND, attend))
        if work.table is None:
            attend[13] = out.data_ptr()
            continue
        attend[13], attend[14] = partial[0].data_ptr(), partial[1].data_ptr()
        merge = torch.tensor([0, 0, 0, _HEADS, _DIM, 0, *attend[13:15].tolist(), out.data_ptr()])
        num_rows, width, table = merge_fields(work)
        merge[1], merge[2], merge[5] = num_rows, width, table
        calls.append((MERGE, merge))

    def run() -> None:
        for kernel, args in calls:
            args[0] = 0
            run_unsafe(kernel, args.data_ptr())

    return _best_s(run) / len(pools)


def _product_ns() -> float:
    """Of as many operations as a key takes with a query: two for each dimension, twice."""
    size = 768
    a = torch.randn(size, size)
    return _best_s(lambda: a @ a) / (2 * size**3) * 4 * _DIM * 1e9


def _per_pair_ns(seconds: float, rows: int, keys: float) -> float:
    return seconds * 1e9 / (rows * _HEADS * keys)


def _best_s(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_TRIES):
        start_s = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start_s)
    return best


if __name__ == "__main__":
    main()
