"""The kernels that are compiled ahead of time, with the shapes of Llama 3.1 8B unless said
otherwise, and what each must come out with."""

from dataclasses import dataclass, field
from typing import Any

from triton_aot import KernelCase

from umbel.kernels.triton import attention_jit, choosing_jit, elementwise_jit, quantized_jit
from umbel.kernels.triton.attention import tile_shape
from umbel.kernels.triton.work_list import WIDE_TILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Besides no spills: groups of instructions that must be there (any of each set), and those
    that must not; the least groups of copies in flight, and of resident blocks."""

    case: KernelCase
    wanted: list[set[str]] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)
    min_pending: int = 0
    min_blocks: int = 1


TENSOR_CORE = {"wgmma", "mma"}
WIDE_LOADS = {"async16", "load16"}
_TYPES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1}


def attention(
    name: str,
    tile: int,
    *,
    dtype: str = "bf16",
    pool: str | None = None,
    group: int = 4,
    head_dim: int = 128,
    window: bool = False,
    tree: bool = False,
    cap: bool = False,
    page: int = 16,
    min_blocks: int = 1,
) -> Expectation:
    pool = pool or dtype
    shape = tile_shape(tile, head_dim, _TYPES[pool])
    ints = ("ITEMS", "ROWS", "POSITIONS", "PAGES", "TREE_BEGIN")
    floats = ("K_SCALE", "V_SCALE", "PARTIAL_OUT", "PARTIAL_LSE")
    signature = {
        "Q": f"*{dtype}:16",
        "K": f"*{pool}:16",
        "V": f"*{pool}:16",
        "OUT": f"*{dtype}:16",
        "TREE_BITS": "*i64:16" if tree else "*i32:16",
        **dict.fromkeys(ints, "*i32:16"),
        **dict.fromkeys(floats, "*fp32:16"),
        **dict.fromkeys(("stride_q", "stride_slot", "stride_head"), "i32:16"),
        "scale": "fp32",
        "softcap": "fp32",
        "window": "i32",
    }
    constants = {
        "HQ": 8 * group,
        "G": group,
        "D": head_dim,
        "BLOCK_D": 1 << (head_dim - 1).bit_length(),
        "PAGE": page,
        "BLOCK_M": tile,
        "BLOCK_N": shape.block_n,
        "HAS_WINDOW": window,
        "HAS_TREE": tree,
        "HAS_CAP": cap,
        "HAS_SCALES": pool != dtype,
        "TWO_LOOPS": tile == WIDE_TILE and not (window or tree),
    }
    case = KernelCase(
        name=name,
        kernel=attention_jit.attend_items_kernel,
        signature=signature,
        constants=constants,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    return Expectation(
        case=case,
        wanted=[TENSOR_CORE, {"async16", "async8"}, {"load16"}, {"store16"}],
        unwanted={"local", "load_narrow", "atomic"},
        min_pending=2,
        min_blocks=min_blocks,
    )


def plain(
    name: str,
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    wanted: list[set[str]] | None = None,
    unwanted: set[str] | None = None,
    min_pending: int = 0,
    min_blocks: int = 1,
) -> Expectation:
    case = KernelCase(
        name=name,
        kernel=kernel,
        signature=signature,
        constants=constants,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return Expectation(
        case=case,
        wanted=[WIDE_LOADS] if wanted is None else wanted,
        unwanted={"local", "atomic"} | (unwanted or set()),
        min_pending=min_pending,
        min_blocks=min_blocks,
    )


def _attention_cases() -> list[Expectation]:
    return [
        attention("decode, tile 16", 16, min_blocks=3),
        attention("decode, fp16, heads of 64, group 3", 16, dtype="fp16", group=3, head_dim=64),
        attention("decode, fp8 pool", 16, pool="fp8e4nv", min_blocks=3),
        attention("decode, window and soft cap", 16, window=True, cap=True, min_blocks=3),
        attention("decode, heads of 80", 16, head_dim=80),
        attention("decode, heads of 256", 16, head_dim=256),
        attention("shared prefix, tile 32", 32, min_blocks=2),
        attention("shared prefix, tile 64", 64, min_blocks=2),
        attention("shared prefix, fp8 pool", 64, pool="fp8e4nv", min_blocks=2),
        attention("shared prefix, heads of 256", 64, head_dim=256),
        attention("trees, tile 64", 64, tree=True, min_blocks=2),
        attention("prefill, tile 128", 128),
        attention("prefill, window", 128, window=True),
        attention("prefill, fp8 pool", 128, pool="fp8e4nv"),
        plain(
            "merge",
            attention_jit.merge_partials_kernel,
            {
                "PARTIAL_OUT": "*fp32:16",
                "PARTIAL_LSE": "*fp32:16",
                "MERGE_BEGIN": "*i32:16",
                "MERGE_LIST": "*i32:16",
                "OUT": "*bf16:16",
            },
            {"HQ": 32, "D": 128, "BLOCK_D": 128, "BLOCK_P": 8},
            num_warps=1,
            min_blocks=16,
        ),
    ]


def _elementwise_cases() -> list[Expectation]:
    narrow = {"load_narrow", "store_narrow"}
    return [
        plain(
            "norm with residual, 4096",
            elementwise_jit.add_rms_norm_kernel,
            {
                "X": "*bf16:16",
                "RESIDUAL": "*bf16:16",
                "WEIGHT": "*fp32:16",
                "OUT": "*bf16:16",
                "stride_x": "i32:16",
                "stride_residual": "i32:16",
                "eps": "fp32",
            },
            {"E": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True},
            num_warps=8,
            wanted=[{"load16"}, {"store16"}],
            unwanted=narrow,
            min_blocks=4,
        ),
        *[_rotation(name, pool) for name, pool in (("", "bf16"), (", fp8 pool", "fp8e4nv"))],
        plain(
            "gated activation, 14336",
            elementwise_jit.gated_activation_kernel,
            {"GATE_UP": "*bf16:16", "OUT": "*bf16:16", "stride_in": "i32:16"},
            {"F": 14336, "BLOCK": 2048, "GELU": False},
            num_warps=8,
            wanted=[{"load16"}, {"store16"}],
            unwanted=narrow,
            min_blocks=6,
        ),
        plain(
            "slot copy",
            elementwise_jit.copy_rows_kernel,
            {
                "SOURCE": "*i32:16",
                "TARGET": "*i32:16",
                "IDXS": "*i32:16",
                "source_outer": "i32:16",
                "target_outer": "i32:16",
            },
            {"WORDS": 512, "BLOCK": 512, "IS_SCATTER": True},
            num_warps=4,
            wanted=[{"load16"}, {"store16"}],
            min_blocks=8,
        ),
    ]


def _rotation(name: str, pool: str) -> Expectation:
    floats = ("TABLE", "Q_WEIGHT", "K_WEIGHT", "K_SCALE", "V_SCALE")
    return plain(
        f"rotation and write{name}",
        elementwise_jit.rotate_and_write_kernel,
        {
            "QKV": "*bf16:16",
            "POSITIONS": "*i32:16",
            "SLOTS": "*i32:16",
            "OUT": "*bf16:16",
            "K": f"*{pool}:16",
            "V": f"*{pool}:16",
            **dict.fromkeys(floats, "*fp32:16"),
            **dict.fromkeys(("stride_qkv", "stride_slot", "stride_head"), "i32:16"),
            "eps": "fp32",
        },
        {
            "HQ": 32,
            "HKV": 8,
            "D": 128,
            "BLOCK_H": 16,
            "BLOCK_HALF": 64,
            "HAS_ROPE": True,
            "HAS_NORM": pool != "bf16",
            "HAS_SCALES": pool != "bf16",
        },
        wanted=[{"load16"}, {"store16"}],
        unwanted={"load_narrow", "store_narrow"},
        min_blocks=4,
    )


def _choosing_cases() -> list[Expectation]:
    tiles = {"TILE_MAX": "*fp32:16", "TILE_TOKEN": "*i32:16", "TILE_MASS": "*fp32:16"}
    common = {
        "MASKS": "*i32:16",
        "MASK_ROWS": "*i32:16",
        "TEMPERATURES": "*fp32:16",
        **tiles,
        "stride_logits": "i32:16",
        "stride_masks": "i32:16",
        "num_tokens": "i32:16",
    }
    picks = {
        "UNIFORMS": "*fp32:16",
        "TOP_K": "*i32:16",
        "TOP_P": "*fp32:16",
        "MIN_P": "*fp32:16",
        "TOKENS": "*i32:16",
        "THRESHOLDS": "*fp32:16",
        "num_tiles": "i32",
    }
    cases = [
        plain(
            f"tile statistics, {dtype}",
            choosing_jit.tile_statistics_kernel,
            {"LOGITS": f"*{dtype}:16", **common},
            {"WORDS": 128},
            min_blocks=4,
            unwanted={"load_narrow"},
        )
        for dtype in ("fp32", "bf16")
    ]
    cases += [
        plain(
            f"pick{', filters' if has_filters else ''}",
            choosing_jit.pick_tokens_kernel,
            {"LOGITS": "*fp32:16", **common, **picks},
            {"WORDS": 128, "TILES": 32, "HAS_FILTERS": has_filters},
            num_warps=8,
        )
        for has_filters in (False, True)
    ]
    names = ("ROW_BEGIN", "TOKENS", "COUNTS", "FLAGS")
    rates = ("BIASES", "REPETITION", "FREQUENCY", "PRESENCE")
    edits = plain(
        "logit edits",
        choosing_jit.edit_logits_kernel,
        {
            "LOGITS": "*fp32:16",
            **dict.fromkeys(names, "*i32:16"),
            **dict.fromkeys(rates, "*fp32:16"),
            "stride_logits": "i32:16",
            "num_tokens": "i32:16",
        },
        {"BLOCK": 1024},
        wanted=[],  # single logits, wherever they are
    )
    return [*cases, edits]


def _quantized_cases() -> list[Expectation]:
    def signature(codes: str) -> dict[str, str]:
        return {
            "X": "*bf16:16",
            "CODES": f"*{codes}:16",
            "SCALES": "*bf16:16",
            "OUT": "*bf16:16",
            "PARTIALS": "*fp32:16",
            "num_rows": "i32",
            **dict.fromkeys(("N", "K", "stride_x", "k_per_split"), "i32:16"),
        }

    products: list[set[str]] = [TENSOR_CORE, {"async16", "async8"}]
    cases = [
        plain(
            f"int4 product, {rows} rows",
            quantized_jit.int4_linear_kernel,
            signature("i32"),
            {"BM": rows, "BN": 64, "SPLIT": 2},
            num_stages=4,
            wanted=products,
            min_pending=1,
            min_blocks=2 if rows == 64 else 3,
        )
        for rows in (16, 64)
    ]
    cases += [
        plain(
            f"{codes} product, 16 rows",
            quantized_jit.byte_linear_kernel,
            signature(codes),
            {"BM": 16, "BN": 64, "BK": 128, "PER_GROUP": per_group, "SPLIT": 1},
            num_stages=4,
            wanted=products,
            min_pending=1,
            min_blocks=3,
        )
        for codes, per_group in (("i8", True), ("fp8e4nv", False))
    ]
    total = plain(
        "sum of partial products",
        quantized_jit.add_partials_kernel,
        {"PARTIALS": "*fp32:16", "OUT": "*bf16:16", "total": "i32:16"},
        {"SPLIT": 2, "BLOCK": 1024},
        wanted=[{"load16"}],
    )
    return [*cases, total]


def all_cases() -> list[Expectation]:
    return [
        *_attention_cases(),
        *_elementwise_cases(),
        *_choosing_cases(),
        *_quantized_cases(),
    ]
