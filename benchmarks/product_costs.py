"""What a product of quantized weights costs, by number of rows and arithmetic, and how exact it is.

    python benchmarks/product_costs.py [--threads N] [--rows 1,4,16,64,512]

Weights of SmolLM2-135M's shapes with random codes. Prints GFLOP/s (two for each weight and row) and
the error against float64, relative to the norm of the result, of the machine's own arithmetic, of
rows in 8 bits, and of torch's float32 product, weights ready in float32. The three take turns, and
the best turn of each counts: other work on the machine hits all.
"""

import argparse
import time
from collections.abc import Callable

import torch

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native import threads
from umbel.kernels.native.products import NativeProduct

# name -> bits, outputs, inputs
SHAPES = {
    "gate and up": (4, 3072, 576),
    "down": (4, 576, 1536),
    "QKV": (4, 960, 576),
    "head": (8, 49152, 576),
}
_TURNS = 12
_TURN_FLOP = 1e9  # at least, so that a turn is long beside the clock


def make_weight(bits: int, outputs: int, inputs: int) -> GroupedWeight:
    draw = torch.Generator().manual_seed(0)
    scales = (0.02 * torch.rand(outputs, inputs // GROUP, generator=draw)).half()
    if bits == 8:
        codes = torch.randint(-127, 128, (outputs, inputs), generator=draw, dtype=torch.int8)
        return GroupedWeight(codes, scales, None)
    codes = torch.randint(0, 16, (outputs, inputs), generator=draw, dtype=torch.uint8)
    return GroupedWeight(codes, scales, -8 * scales)


def best_s(calls: dict[str, Callable[[], object]], flop: int) -> dict[str, float]:
    """Seconds of one call of each, the best of `_TURNS`."""
    count = max(1, int(_TURN_FLOP / flop))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(_TURNS):
        for name, call in calls.items():
            start_s = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start_s) / count)
    return best


def report(name: str, rows: list[int]) -> None:
    bits, outputs, inputs = SHAPES[name]
    weight = make_weight(bits, outputs, inputs)
    dense = weight.dequantized()
    machine = NativeProduct(weight, None, out_dtype=torch.float32)
    int8s = NativeProduct(weight, None, out_dtype=torch.float32, arithmetic="int8s")
    for num_rows in rows:
        x = torch.randn(num_rows, inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
        floats = x.float()
        calls = {
            "native": lambda x=x: machine(x),
            "int8": lambda x=x: int8s(x),
            "torch float32": lambda floats=floats: floats @ dense.T,
        }
        exact = x.double() @ dense.double().T
        flop = 2 * num_rows * outputs * inputs
        seconds = best_s(calls, flop)
        cells = []
        for kind, call in calls.items():
            error = float((call().double() - exact).norm() / exact.norm())
            cells.append(f"{kind} {flop / seconds[kind] / 1e9:6.1f} ({error:.0e})")
        print(f"{name:12} {num_rows:5} rows  " + "   ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,4,16,64,512")
    args = parser.parse_args()
    if not threads.is_available():
        raise SystemExit("there are no native kernels here: they need numba and a CPU with AVX2")
    rows = [int(count) for count in args.rows.split(",")]
    threads.use_threads(args.threads)
    print(f"{args.threads} threads, {threads.arithmetic()}; GFLOP/s (error)")
    with torch.inference_mode():
        for name in SHAPES:
            report(name, [count for count in rows if name != "head" or count <= 64])


if __name__ == "__main__":
    main()
