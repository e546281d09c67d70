"""The figures of a plan, section by section; each takes its number and its formula from `cost`."""

import math
from dataclasses import replace

from umbel.runtime.roofline import cost, search
from umbel.runtime.roofline.advice import advice
from umbel.runtime.roofline.figures import Figure, Section, formula_of
from umbel.runtime.roofline.question import Question
from umbel.runtime.roofline.records import StepBound, dtype_bytes

BLOCK_SIZE = 16  # tokens, the engine's default
TILE_ROWS = 64  # query rows per matrix instruction of current GPU kernels
KERNELS_PER_LAYER = 8  # a usual count of a fused layer: norms, projections, attention
MOST_ROWS = 1 << 20  # where a search for a batch ends when memory sets no end


def model_section(question: Question) -> Section:
    shape, workload = question.shape, question.workload
    kappa = cost.kv_bytes_per_token(shape, workload.kv_dtype)
    memory = cost.weight_bytes(shape, workload.dtype)
    streamed = cost.streamed_weight_bytes(shape, workload.dtype)
    figures = [
        Figure("weight_bytes", "weights", memory, "B", formula_of(cost.weight_bytes)),
        Figure(
            "streamed_weight_bytes",
            "weights read per step",
            streamed,
            "B",
            formula_of(cost.streamed_weight_bytes),
            note="" if streamed == memory else "the input table is only looked up",
        ),
        Figure(
            "kv_bytes_per_token", "KV per token", kappa, "B", formula_of(cost.kv_bytes_per_token)
        ),
        Figure(
            "kv_bytes_per_layer_token",
            "KV per token and layer",
            kappa / shape.num_layers,
            "B",
            "kappa / n_l",
        ),
        Figure(
            "kv_bytes_per_row",
            f"KV of a row of {workload.context_len:,} tokens",
            kappa * workload.context_len,
            "B",
            "kappa L",
        ),
    ]
    usable = question.memory_use * question.device.memory_bytes - question.reserved_bytes
    if 0 < usable * workload.tensor_parallel < memory:
        figures.append(
            Figure(
                "least_devices",
                "devices to hold the weights",
                math.ceil(memory / usable),
                "",
                "ceil(W / (u M - A))",
                note="given fewer; times below are as if memory sufficed",
            )
        )
    return Section("Model", tuple(figures))


def intensity_section(question: Question) -> Section:
    """Arithmetic intensity of each projection, and the rows at which it would reach the knee."""
    device, workload = question.device, question.workload
    element_bytes = dtype_bytes(workload.dtype)
    limit = cost.knee(device, workload.dtype)
    figures = [Figure("knee", "knee of the device", limit, "FLOP/B", formula_of(cost.knee))]
    for name, (d_in, d_out) in question.shape.projections.items():
        key = name.replace(" ", "_")
        rows = cost.knee_rows(limit, d_in, d_out, element_bytes)
        most = cost.intensity_limit(d_in, d_out, element_bytes)
        reaches = f"knee at {rows:,.0f} rows" if rows else f"never at the knee: below {most:.0f}"
        figures.append(
            Figure(
                f"intensity_{key}",
                f"{name} {d_in:,} x {d_out:,} at {workload.batch:,} rows",
                cost.projection_intensity(workload.batch, d_in, d_out, element_bytes),
                "FLOP/B",
                formula_of(cost.projection_intensity),
                note=reaches,
            )
        )
    return Section("Arithmetic intensity", tuple(figures))


def step_section(question: Question, step: StepBound) -> Section:
    workload, device = question.workload, question.device
    formula = formula_of(cost.decode_bound)
    tokens = cost.tokens_per_s(workload.batch, step.total_s)
    figures = [
        Figure("weights_s", "reading weights", step.weights_s, "s", "W_step / BW"),
        Figure("kv_s", "reading KV", step.kv_s, "s", "kappa sum L / BW"),
        Figure(
            "flops_s", "arithmetic", step.flops_s, "s", "FLOP / F", note="overlaps with reading"
        ),
    ]
    if workload.tensor_parallel > 1:
        figures.append(
            Figure(
                "collectives_s",
                "all-reduces",
                step.collectives_s,
                "s",
                formula_of(cost.collective_bytes) + " / BW_link",
            )
        )
    figures += [
        Figure("step_s", "step, at least", step.total_s, "s", formula),
        Figure("tokens_per_s", "output, at most", tokens, "tok/s", formula_of(cost.tokens_per_s)),
        Figure("tokens_per_s_per_row", "per row", 1 / step.total_s, "tok/s", "1 / t"),
    ]
    if device.launch_s:
        kernels = KERNELS_PER_LAYER * question.shape.num_layers
        floor = cost.launch_floor_s(kernels, device.launch_s)
        figures.append(
            Figure(
                "launch_floor_s",
                f"launching {kernels} kernels one by one",
                floor,
                "s",
                formula_of(cost.launch_floor_s),
                note="not in the step: captured graphs avoid it"
                + ("; without them it would set the pace" if floor > step.total_s else ""),
            )
        )
    title = f"Decode step of {workload.batch:,} rows"
    return Section(title, tuple(figures), note=advice(step.binding))


def capacity_section(question: Question) -> Section:
    shape, workload = question.shape, question.workload
    kappa = cost.kv_bytes_per_token(shape, workload.kv_dtype)
    batch = search.memory_batch(question)
    waste = cost.page_waste_tokens(workload.batch, BLOCK_SIZE) * kappa
    used = f"{question.memory_use:.0%} of {question.device.memory_bytes / 1e9:,.0f} GB"
    reserved = f", {question.reserved_bytes / 1e9:g} GB of it reserved" * bool(
        question.reserved_bytes
    )
    return Section(
        "Capacity",
        (
            Figure(
                "max_batch",
                "most rows in memory",
                batch,
                "rows",
                formula_of(cost.max_batch),
                note=used + reserved + ("" if batch else ": no room beside the weights"),
            ),
            Figure(
                "kv_equals_weights_batch",
                "rows at which KV traffic equals weights",
                cost.kv_equals_weights_batch(shape, workload),
                "rows",
                formula_of(cost.kv_equals_weights_batch),
                note="nothing shared" if workload.shared_prefix_len else "",
            ),
            Figure(
                "page_waste_bytes",
                f"unused ends of blocks of {BLOCK_SIZE}",
                waste,
                "B",
                formula_of(cost.page_waste_tokens) + " kappa",
            ),
            Figure(
                "mask_bytes",
                "token masks per step",
                cost.mask_bytes(workload.batch, shape.vocab_size),
                "B",
                formula_of(cost.mask_bytes),
            ),
            Figure(
                "logits_bytes",
                "logits per step",
                cost.logits_bytes(workload.batch, shape.vocab_size),
                "B",
                formula_of(cost.logits_bytes),
            ),
        ),
    )


def sharing_section(question: Question) -> Section:
    """What the workload's shared prefix saves; without one, only when sharing would pay."""
    shape, workload, device = question.shape, question.workload, question.device
    element_bytes = dtype_bytes(workload.kv_dtype)
    heads = {"group_size": shape.group_size, "head_dim": shape.head_dim}
    rows = workload.batch if workload.fan_out is None else min(workload.fan_out, workload.batch)
    figures: list[Figure] = []
    if workload.shared_prefix_len:
        flat = replace(workload, shared_prefix_len=0)
        flat_work, tree_work = (cost.decode_work(shape, load) for load in (flat, workload))
        flat_s, tree_s = (
            cost.step_bound(work, device, workload.dtype).total_s for work in (flat_work, tree_work)
        )
        figures = [
            Figure("kv_bytes_flat", "KV read per step, each row by itself", flat_work.kv_bytes, "B",
                   "kappa " + formula_of(cost.flat_kv_tokens)),
            Figure("kv_bytes_shared", "KV read per step, prefix once", tree_work.kv_bytes, "B",
                   f"kappa ({formula_of(cost.tree_kv_tokens)})"),
            Figure("kv_bytes_saved", "saved per step", flat_work.kv_bytes - tree_work.kv_bytes, "B",
                   "kappa " + formula_of(cost.saved_kv_tokens)),
            Figure("sharing_ratio", "KV traffic and memory, times less",
                   cost.sharing_ratio(workload), "x", formula_of(cost.sharing_ratio)),
            Figure("step_s_flat", "step without sharing", flat_s, "s",
                   formula_of(cost.decode_bound)),
            Figure("sharing_speedup", "step with sharing, times faster", flat_s / tree_s, "x",
                   "t_flat / t_shared"),
        ]  # fmt: skip
    pays = cost.split_pays_len(rows, **heads, element_bytes=element_bytes, tile_rows=TILE_ROWS)
    limit = cost.knee(device, workload.dtype)
    figures += [
        Figure(
            "split_pays_len",
            f"a prefix of {rows:,} rows is worth reading apart from",
            pays,
            "tokens",
            formula_of(cost.split_pays_len),
            note="one row shares with nobody"
            if rows == 1
            else f"by a kernel with tiles of {TILE_ROWS} query rows",
        ),
        Figure(
            "shared_attention_knee_rows",
            "rows on one prefix until arithmetic binds its attention",
            cost.shared_attention_knee_rows(shape.group_size, element_bytes, limit),
            "rows",
            formula_of(cost.shared_attention_knee_rows),
        ),
    ]
    return Section("Shared prefixes", tuple(figures))


def speculation_section(question: Question) -> Section:
    workload, drafts = question.workload, question.speculation
    step_s = search.verification_s(question, workload.batch)
    paying = search.largest_paying_batch(question, MOST_ROWS)
    best = cost.best_draft_len(
        workload.batch, drafts.acceptance, step_s, draft_cost=drafts.draft_cost
    )
    title = (
        f"Speculation: {drafts.draft_len} drafts, each accepted with {drafts.acceptance:g}, "
        f"drafting one costs {drafts.draft_cost:g} of a step"
    )
    return Section(
        title,
        (
            Figure("expected_tokens", "tokens per verification, expected",
                   cost.expected_tokens_chain(drafts), "",
                   formula_of(cost.expected_tokens_chain)),
            Figure("break_even_tokens", "tokens per verification to break even",
                   cost.break_even_tokens(workload.batch, drafts, step_s), "",
                   formula_of(cost.break_even_tokens)),
            Figure("speculation_speedup", f"speed-up at {workload.batch:,} rows",
                   search.speculation_speedup(question, workload.batch), "x",
                   formula_of(cost.speculation_speedup)),
            Figure("best_draft_len", f"best draft length at {workload.batch:,} rows", best,
                   "tokens", formula_of(cost.best_draft_len),
                   note="" if best else "no length pays"),
            Figure("speculation_max_batch", "most rows at which it pays",
                   None if paying == MOST_ROWS else paying, "rows", "largest B with tau > tau*",
                   note="pays at any batch: KV traffic keeps arithmetic idle"
                   if paying == MOST_ROWS else ""),
        ),
    )  # fmt: skip
