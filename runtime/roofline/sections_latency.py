"""The figures of a plan that are about requests: prefill, latency targets, moving KV, price."""

from umbel.runtime.roofline import cost, search
from umbel.runtime.roofline.figures import Figure, Section, formula_of
from umbel.runtime.roofline.question import Question
from umbel.runtime.roofline.records import StepBound, dtype_bytes


def prompt_prefill_s(question: Question) -> float:
    """Seconds to prefill the question's prompt alone, less what a shared prefix has computed."""
    workload = question.workload
    flops = cost.prefill_flops(
        question.shape, question.prompt_len, cached=question.cached_len, logits_rows=1
    )
    return cost.prefill_s(
        flops,
        question.device,
        workload.dtype,
        efficiency=question.efficiency,
        devices=workload.tensor_parallel,
    )


def prefill_section(question: Question) -> Section:
    shape, workload = question.shape, question.workload
    limit = cost.knee(question.device, workload.dtype)
    cached = f", {question.cached_len:,} of it shared" * bool(question.cached_len)
    flops = cost.prefill_flops(
        shape, question.prompt_len, cached=question.cached_len, logits_rows=1
    )
    return Section(
        f"Prefill of {question.prompt_len:,} tokens{cached}",
        (
            Figure("prefill_flops", "arithmetic", flops, "FLOP", formula_of(cost.prefill_flops)),
            Figure("prefill_s", f"alone, at {question.efficiency:.0%} of the peak",
                   prompt_prefill_s(question), "s", formula_of(cost.prefill_s)),
            Figure("linear_equals_attention_len", "attention costs as much as projections at",
                   cost.linear_equals_attention_len(shape), "tokens",
                   formula_of(cost.linear_equals_attention_len)),
            Figure("free_chunk", f"rides along free beside {workload.batch:,} rows",
                   cost.free_chunk(limit, workload.batch, dtype_bytes(workload.dtype)), "tokens",
                   formula_of(cost.free_chunk)),
        ),
    )  # fmt: skip


def targets_section(question: Question) -> Section | None:
    """The schedule that keeps the latency targets; None when no target was given."""
    if question.ttft_s is None and question.itl_s is None:
        return None
    wanted = [
        f"{name} {seconds * 1e3:g} ms"
        for name, seconds in (("first token", question.ttft_s), ("between tokens", question.itl_s))
        if seconds is not None
    ]
    title = "Targets: " + ", ".join(wanted)
    schedule = search.best_schedule(question)
    if schedule is None:
        note = "not even one row keeps the targets, finds time for prefill and fits into memory"
        return Section(title, (Figure("target_batch", "most rows", None, "rows", note=note),))
    return Section(
        title,
        (
            Figure("target_batch", "most rows that keep the targets", schedule.batch, "rows",
                   "largest B with t and T_first on target, c >= B S / n_out, B <= B_max"),
            Figure("target_chunk", "prefill chunk beside them, at most", schedule.chunk, "tokens",
                   formula_of(cost.chunk_for_step_s) + ", less what its attention costs"),
            Figure("target_needed_chunk", "of it needed to keep the rows busy",
                   schedule.needed_chunk, "tokens", formula_of(cost.prefill_tokens_per_step)),
            Figure("target_step_s", "step with such a chunk", schedule.step_s, "s",
                   "t for " + formula_of(cost.mixed_work)),
            Figure("target_ttft_s", "first token after", schedule.ttft_s, "s",
                   "T_first = ceil((S - cached) / c) t", note="alone; waiting not counted"),
        ),
    )  # fmt: skip


def moving_section(question: Question) -> Section:
    """Whether KV is better moved or computed again."""
    shape, device, kv_dtype = question.shape, question.device, question.workload.kv_dtype
    devices = question.workload.tensor_parallel  # each computes and moves its part
    flops_per_s = devices * cost.effective_flops(
        device, question.workload.dtype, question.efficiency
    )
    link = None if device.host_link_bandwidth is None else devices * device.host_link_bandwidth
    threshold = cost.load_pays_bandwidth(shape, kv_dtype, flops_per_s)
    figures = [
        Figure(
            "load_pays_bandwidth",
            "loading KV beats computing it from",
            threshold,
            "B/s",
            formula_of(cost.load_pays_bandwidth),
            note=""
            if link is None
            else f"host link: {link / 1e9:g} GB/s, so "
            + ("load" if link > threshold else "compute"),
        )
    ]
    preempt = cost.preempt_cost(
        shape,
        question.workload.context_len,
        kv_dtype,
        flops_per_s,
        link_bandwidth=link,
        cached=question.workload.shared_prefix_len,
    )
    figures.append(
        Figure("preempt_recompute_s", "preempted row: compute it again", preempt.recompute_s, "s",
               formula_of(cost.preempt_cost))
    )  # fmt: skip
    if preempt.swap_s is not None:
        figures.append(
            Figure("preempt_swap_s", "preempted row: swap it out and in", preempt.swap_s, "s",
                   formula_of(cost.preempt_cost), note=f"cheaper: {preempt.cheaper}")
        )  # fmt: skip
    if device.interconnect_bandwidth is not None:
        kv_bytes = cost.kv_bytes_per_token(shape, kv_dtype) * question.prompt_len
        figures.append(
            Figure("transfer_s", "the prompt's KV to other devices",
                   cost.transfer_s(kv_bytes, devices * device.interconnect_bandwidth), "s",
                   formula_of(cost.transfer_s))
        )  # fmt: skip
    return Section("Moving KV", tuple(figures))


def load_section(question: Question, step: StepBound) -> Section:
    """Requests per second, rows in flight at an arrival rate, and the price."""
    workload = question.workload
    prefill_s = prompt_prefill_s(question)
    seconds = cost.device_seconds_per_request(
        prefill_s, question.output_len, step.total_s, workload.batch
    )
    figures = [
        Figure("device_seconds_per_request", "device time per request", seconds, "s",
               formula_of(cost.device_seconds_per_request)),
        Figure("requests_per_s", "requests", 1 / seconds, "per s", "1 / T"),
    ]  # fmt: skip
    if question.rate_per_s is not None:
        rows = cost.rows_in_flight(
            question.rate_per_s,
            prefill_s,
            question.output_len,
            lambda batch: search.decode_step(question, max(1, round(batch))).total_s,
        )
        note = "" if rows is not None else "never enough: requests pile up without end"
        figures.append(
            Figure("rows_in_flight", f"rows in flight at {question.rate_per_s:g} requests per s",
                   rows, "rows", formula_of(cost.rows_in_flight), note=note)
        )  # fmt: skip
    if question.price_per_hour is not None:
        price = question.price_per_hour * workload.tensor_parallel
        formula = formula_of(cost.price_per_million)
        both = question.prompt_len + question.output_len
        decode = cost.price_per_million(price, step.total_s, workload.batch)
        whole = cost.price_per_million(price, seconds, question.output_len)
        mixed = cost.price_per_million(price, seconds, both)
        figures += [
            Figure("price_per_million_decoded", "a million tokens, decoding only", decode,
                   "$", formula),
            Figure("price_per_million_output", "a million output tokens, prefill included", whole,
                   "$", formula),
            Figure("price_per_million_tokens", "a million tokens, prompt and output", mixed,
                   "$", formula),
        ]  # fmt: skip
    title = f"Requests of {question.prompt_len:,} + {question.output_len:,} tokens"
    return Section(title, tuple(figures))
