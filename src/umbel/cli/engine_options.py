"""Options shared by the commands that start an engine, made from the fields of `EngineConfig`."""

import argparse
from typing import TYPE_CHECKING

from umbel.runtime.config import DEVICES, DTYPES, LOAD_FORMATS, QUANTIZE
from umbel.runtime.params import SPECULATE

if TYPE_CHECKING:
    from umbel.runtime.engine import Engine


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--model", metavar="PATH", help="folder or .gguf file (default: the embedded model)"
    )
    group.add_argument(
        "--device", choices=DEVICES, default="auto", help="auto: cuda where there is one"
    )
    group.add_argument(
        "--tensor-parallel", type=int, metavar="RANKS", help="GPUs that divide the model"
    )
    group.add_argument("--load-format", choices=LOAD_FORMATS, default="auto")
    group.add_argument("--dtype", choices=DTYPES, default="auto")
    group.add_argument(
        "--quantize",
        choices=QUANTIZE,
        help="int8: round the rows of products to 8 bits: faster, less exact; prints the error",
    )
    group.add_argument("--context-len", type=int, metavar="TOKENS")
    group.add_argument("--max-running", type=int, metavar="REQUESTS")
    group.add_argument("--max-waiting", type=int, metavar="REQUESTS")
    group.add_argument("--max-step-tokens", type=int, metavar="TOKENS")
    group.add_argument(
        "--target-step-ms",
        type=float,
        metavar="MS",
        help="keep steps beside decoding requests to this by smaller chunks of prompts",
    )
    group.add_argument(
        "--num-blocks", type=int, metavar="BLOCKS", help="of KV (default: as many as fit)"
    )
    group.add_argument("--threads", type=int, dest="num_threads", metavar="N")
    group.add_argument(
        "--speculate", choices=SPECULATE, help="guess ahead where it pays (default), or never"
    )
    group.add_argument("--no-prefix-cache", dest="prefix_cache", action="store_false", default=None)


def start_engine(args: argparse.Namespace) -> "Engine":
    """An engine for the options that were given; the others keep `EngineConfig`'s defaults."""
    from umbel import Engine  # here, so that `umbel models` does not wait for torch

    names = (
        "device",
        "tensor_parallel",
        "load_format",
        "dtype",
        "quantize",
        "context_len",
        "max_running",
        "max_waiting",
        "max_step_tokens",
        "target_step_ms",
        "num_blocks",
        "num_threads",
        "prefix_cache",
        "speculate",
    )
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return Engine(args.model, **options)
