"""Searches over the cost model: the batch and the prefill chunk that keep latency targets."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.question import Question
from umbel.runtime.roofline.records import StepBound, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps that decode `batch` rows and prefill `chunk` prompt tokens beside them."""

    batch: int
    chunk: int  # tokens; 0: no time is left for prefill
    needed_chunk: float  # tokens per step that keep the batch full
    step_s: float  # of a step with such a chunk
    ttft_s: float | None  # of a prompt that has the chunks to itself; None: never


def largest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest n in 1 .. limit for which `holds`, 0 for none; it must hold below where it
    holds.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def with_batch(question: Question, batch: int) -> Workload:
    return replace(question.workload, batch=batch)


def decode_step(question: Question, batch: int) -> StepBound:
    """Bound of a plain decode step of `batch` rows."""
    return cost.decode_bound(question.shape, with_batch(question, batch), question.device)


def memory_batch(question: Question) -> int:
    """The largest batch whose KV fits."""
    free = cost.free_memory_bytes(
        question.shape,
        question.workload,
        question.device,
        memory_use=question.memory_use,
        reserved_bytes=question.reserved_bytes,
    )
    return cost.max_batch(question.shape, question.workload, free)


def step_with_chunk_s(question: Question, batch: int, chunk: int) -> float:
    """Time of a step that decodes `batch` rows and carries `chunk` prompt tokens, as many whole
    prompts as go into them and the end of another, its arithmetic at the question's efficiency.
    """
    shape, prompt_len = question.shape, question.prompt_len
    whole, last = divmod(chunk, question.uncached_len)
    pairs = whole * cost.mean_pairs(shape, question.cached_len, question.uncached_len)
    pairs += cost.mean_pairs(shape, prompt_len - last, last)
    work = cost.mixed_work(shape, with_batch(question, batch), chunk=chunk, chunk_pairs=pairs)
    bound = cost.step_bound(
        work, question.device, question.workload.dtype, efficiency=question.efficiency
    )
    return bound.total_s


def chunk_within(question: Question, batch: int, step_s: float) -> int:
    """The largest prefill chunk beside `batch` rows in a step of at most `step_s`; 0: none."""
    flops_per_s = cost.effective_flops(
        question.device, question.workload.dtype, question.efficiency
    )
    # The formula neglects the chunk's attention; the search below it does not.
    limit = cost.chunk_for_step_s(
        question.shape, step_s, batch, flops_per_s * question.workload.tensor_parallel
    )
    return largest(max(0, limit), lambda chunk: step_with_chunk_s(question, batch, chunk) <= step_s)


def schedule_of(question: Question, batch: int) -> Schedule:
    """Chunked prefill beside `batch` rows: the largest chunk that keeps the target between tokens;
    without that target whole prompts, as many as keep the batch full.
    """
    needed = cost.prefill_tokens_per_step(batch, question.uncached_len, question.output_len)
    if question.itl_s is not None:
        chunk = chunk_within(question, batch, question.itl_s)
    else:
        chunk = max(question.uncached_len, math.ceil(needed))
    step_s = step_with_chunk_s(question, batch, chunk)
    num_steps = math.ceil(question.uncached_len / chunk) if chunk else None
    return Schedule(
        batch=batch,
        chunk=chunk,
        needed_chunk=needed,
        step_s=step_s,
        ttft_s=None if num_steps is None else num_steps * step_s,
    )


def best_schedule(question: Question) -> Schedule | None:
    """The most rows that fit into memory, keep the targets and can be kept busy; None: not one."""

    def keeps(batch: int) -> bool:
        schedule = schedule_of(question, batch)
        if schedule.ttft_s is None or schedule.chunk < schedule.needed_chunk:
            return False
        return question.ttft_s is None or schedule.ttft_s <= question.ttft_s

    batch = largest(memory_batch(question), keeps)
    return schedule_of(question, batch) if batch else None


def largest_paying_batch(question: Question, limit: int) -> int:
    """The largest batch at which speculation still pays, 0: at none."""
    return largest(limit, lambda batch: speculation_speedup(question, batch) > 1)


def speculation_speedup(question: Question, batch: int) -> float:
    return cost.speculation_speedup(batch, question.speculation, verification_s(question, batch))


def verification_s(question: Question, batch: int) -> Callable[[int], float]:
    """Time of a step by rows, when they belong to `batch` branches (KV is read once per branch)."""

    def step_s(rows: int) -> float:
        work = cost.decode_work(
            question.shape, with_batch(question, batch), rows_per_branch=rows // batch
        )
        return cost.step_bound(work, question.device, question.workload.dtype).total_s

    return step_s
