"""`umbel plan`: the options, their defaults, and the printing of the plan."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.devices import CPU, DEVICES, find_device
from umbel.runtime.roofline.planner import plan
from umbel.runtime.roofline.plot import check_plot_path, save_plot
from umbel.runtime.roofline.question import ASSUMED_SPECULATION, Question
from umbel.runtime.roofline.records import DTYPE_BYTES, ModelShape, Speculation, Workload
from umbel.runtime.roofline.report import plan_as_json, print_plan
from umbel.runtime.roofline.shapes import SHAPES, find_shape

PROMPT_LEN, OUTPUT_LEN = 512, 128  # tokens, when nothing is said
ACCELERATOR_RESERVE_GB = 2.0  # activations, workspaces and the runtime itself on a GPU
PIPED_WIDTH = 120  # columns, where there is no terminal to ask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `umbel plan`."""
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help=f"{', '.join(SHAPES)}, a folder with config.json, or a .gguf file "
        "(default: the embedded model)",
    )
    parser.add_argument(
        "--device",
        default=CPU,
        metavar="NAME|FILE",
        help=f"{', '.join(DEVICES)}, cpu (measured now), or a JSON file (default: cpu)",
    )
    parser.add_argument(
        "--dtype", default="bfloat16", choices=tuple(DTYPE_BYTES), help="of weights"
    )
    parser.add_argument(
        "--kv-dtype", choices=tuple(DTYPE_BYTES), help="of KV (default: by --dtype)"
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel width")
    _add_workload(parser)
    _add_speculation(parser)
    _add_targets(parser)
    parser.add_argument("--explain", action="store_true", help="print the formula of each figure")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="write the curves as .png or .svg"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload (lengths in tokens)")
    group.add_argument("--batch", type=int, default=1, metavar="ROWS", help="default: 1")
    group.add_argument(
        "--context", type=int, metavar="N", help="that each row sees (default: prompt + output)"
    )
    group.add_argument(
        "--shared-prefix", type=int, default=0, metavar="N", help="first part of the context"
    )
    group.add_argument(
        "--fan-out", type=int, metavar="ROWS", help="rows on one shared prefix (default: all)"
    )
    group.add_argument("--prompt", type=int, metavar="N", help=f"default: {PROMPT_LEN}")
    group.add_argument("--output", type=int, metavar="N", help=f"default: {OUTPUT_LEN}")
    group.add_argument("--rate", type=float, metavar="R", help="requests that arrive per second")


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation")
    assumed = ASSUMED_SPECULATION
    group.add_argument(
        "--draft-len", type=int, default=assumed.draft_len, metavar="K", help="default: %(default)s"
    )
    group.add_argument(
        "--acceptance", type=float, default=assumed.acceptance, metavar="SHARE",
        help="of drafted tokens (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--draft-cost", type=float, default=assumed.draft_cost, metavar="SHARE",
        help="of a step, to draft one token (default: %(default)s; 0: n-gram lookup)",
    )  # fmt: skip


def _add_targets(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("targets and assumptions")
    group.add_argument("--ttft-ms", type=float, metavar="MS", help="time to the first token")
    group.add_argument("--itl-ms", type=float, metavar="MS", help="time between two tokens")
    group.add_argument("--price-per-hour", type=float, metavar="$", help="of one device")
    group.add_argument(
        "--efficiency", type=float, default=0.5, metavar="SHARE",
        help="of the peak FLOP/s that prefill reaches (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--memory-use", type=float, default=0.9, metavar="SHARE",
        help="of the device's memory to fill (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--reserve-gb", type=float, metavar="GB",
        help=f"for activations and runtime (default: {ACCELERATOR_RESERVE_GB:g}, on the CPU 0)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the plan for parsed options. Raises `UmbelError` for what cannot be planned."""
    if args.plot is not None:
        check_plot_path(args.plot)
    result = plan(question_of(args))
    if args.plot is not None:
        save_plot(result, args.plot)
    if args.json:
        sys.stdout.write(plan_as_json(result).decode() + "\n")
        return 0
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    print_plan(result, Console(width=width), explain=args.explain)
    return 0


def question_of(args: argparse.Namespace) -> Question:
    """The question that the options ask. Raises `InvalidRequest` naming the option at fault."""
    shape = find_shape(args.model)
    prompt_len, output_len, context_len = _lengths(args, shape)
    workload = Workload(
        batch=args.batch,
        context_len=context_len,
        shared_prefix_len=args.shared_prefix,
        fan_out=args.fan_out,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype or _kv_dtype(args.dtype),
        tensor_parallel=args.tp,
    )
    if args.fan_out is not None and args.fan_out > args.batch:
        raise InvalidRequest(
            f"fan-out={args.fan_out} is above batch={args.batch}: expected at most the batch",
            param="fan_out",
        )
    speculation = Speculation(
        draft_len=args.draft_len, acceptance=args.acceptance, draft_cost=args.draft_cost
    )
    is_cpu = args.device.lower() == CPU
    reserve_gb = args.reserve_gb
    if reserve_gb is None:
        reserve_gb = 0.0 if is_cpu else ACCELERATOR_RESERVE_GB
    return Question(
        shape=shape,
        device=find_device(args.device),
        workload=workload,
        prompt_len=prompt_len,
        output_len=output_len,
        speculation=speculation,
        ttft_s=_seconds(args.ttft_ms),
        itl_s=_seconds(args.itl_ms),
        price_per_hour=args.price_per_hour,
        rate_per_s=args.rate,
        efficiency=args.efficiency,
        memory_use=args.memory_use,
        reserved_bytes=reserve_gb * 1e9,
    )


def _lengths(args: argparse.Namespace, shape: ModelShape) -> tuple[int, int, int]:
    """Prompt, output and context, each from the others where it was not given."""
    output: int = OUTPUT_LEN if args.output is None else args.output
    if args.prompt is not None:
        prompt: int = args.prompt
    elif args.context is not None:
        prompt = max(1, args.context - output)
    else:
        prompt = PROMPT_LEN
    context: int = prompt + output if args.context is None else args.context
    return prompt, output, context


def _kv_dtype(dtype: str) -> str:
    """KV follows weights of 16 bits and more; narrower weights say nothing about it."""
    return dtype if DTYPE_BYTES[dtype] >= DTYPE_BYTES["bfloat16"] else "bfloat16"


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
