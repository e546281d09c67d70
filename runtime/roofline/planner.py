"""`plan`: everything the cost model says about a model, a device and a workload, as one record."""

from dataclasses import dataclass, replace

from umbel.runtime.roofline import cost, search, sections, sections_latency
from umbel.runtime.roofline.figures import Figure, Section
from umbel.runtime.roofline.question import Question
from umbel.runtime.roofline.records import StepBound, Workload

SMALLEST_CONTEXT = 128  # tokens, where the curve over contexts begins
LONGEST_CONTEXT = 131_072  # where it ends for a model without a limit
WIDEST_BATCH = 1024  # where the curve over batches ends at least
FURTHEST_BATCH = 16_384  # and at most


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A decode step at some batch and context. `weights_tokens_per_s`: if KV cost nothing."""

    batch: int
    context_len: int
    step_s: float
    tokens_per_s: float
    weights_tokens_per_s: float
    binding: str
    fits: bool  # into memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All results: `sections` hold the figures, the curves tokens/s over batch and over context."""

    question: Question
    step: StepBound
    sections: tuple[Section, ...]
    batch_curve: tuple[CurvePoint, ...]
    context_curve: tuple[CurvePoint, ...]

    def figure(self, key: str) -> Figure:
        """The figure of that key. Raises `KeyError` when the question did not ask for it."""
        for section in self.sections:
            for figure in section.figures:
                if figure.key == key:
                    return figure
        raise KeyError(key)


def plan(question: Question) -> Plan:
    """The plan that answers a question."""
    step = cost.decode_bound(question.shape, question.workload, question.device)
    found = (
        sections.model_section(question),
        sections.intensity_section(question),
        sections.step_section(question, step),
        sections.capacity_section(question),
        sections.sharing_section(question),
        sections_latency.prefill_section(question),
        sections_latency.targets_section(question),
        sections.speculation_section(question),
        sections_latency.moving_section(question),
        sections_latency.load_section(question, step),
    )
    return Plan(
        question=question,
        step=step,
        sections=tuple(section for section in found if section is not None),
        batch_curve=_batch_curve(question),
        context_curve=_context_curve(question),
    )


def _batch_curve(question: Question) -> tuple[CurvePoint, ...]:
    fitting = search.memory_batch(question)
    last = min(max(WIDEST_BATCH, 2 * fitting, question.workload.batch), FURTHEST_BATCH)
    batches = {question.workload.batch, *_powers(1, last)}
    if 0 < fitting <= last:
        batches.add(fitting)
    return tuple(_point(question, search.with_batch(question, batch)) for batch in sorted(batches))


def _context_curve(question: Question) -> tuple[CurvePoint, ...]:
    longest = question.shape.max_context or LONGEST_CONTEXT
    contexts = {question.workload.context_len, *_powers(SMALLEST_CONTEXT, longest)}
    prefix = question.workload.shared_prefix_len
    return tuple(
        _point(question, replace(question.workload, context_len=length))
        for length in sorted(contexts)
        if length > prefix
    )


def _powers(first: int, last: int) -> list[int]:
    """First, doubled up to last."""
    found = []
    while first <= last:
        found.append(first)
        first *= 2
    return found


def _point(question: Question, workload: Workload) -> CurvePoint:
    bound = cost.decode_bound(question.shape, workload, question.device)
    without_kv = replace(workload, context_len=0, shared_prefix_len=0)
    ideal = cost.decode_bound(question.shape, without_kv, question.device)
    return CurvePoint(
        batch=workload.batch,
        context_len=workload.context_len,
        step_s=bound.total_s,
        tokens_per_s=cost.tokens_per_s(workload.batch, bound.total_s),
        weights_tokens_per_s=cost.tokens_per_s(workload.batch, ideal.total_s),
        binding=bound.binding,
        fits=workload.batch <= search.memory_batch(replace(question, workload=workload)),
    )
