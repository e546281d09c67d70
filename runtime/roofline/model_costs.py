"""What the steps of one loaded model cost: the cost module with the model's shape and dtypes put
in. Used by the gauge (counts of a step, work), the attention plan (price of a cut) and the
scheduler (chunks).
"""

from dataclasses import dataclass

from umbel.radix_cache.plan import CutCost
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.records import ModelShape, StepWork, dtype_bytes
from umbel.runtime.step import StepPlan


@dataclass(slots=True)
class StepCounts:
    """What the plan of a step makes the device do. Tokens are means over the layers' windows."""

    rows: int = 0
    logits_rows: int = 0
    read_kv_tokens: float = 0.0  # that were there before, or that another run of the step writes
    written_kv_tokens: int = 0
    num_pairs: float = 0.0  # (row, visible token)


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model as far as cost is concerned. dtype: of weights and arithmetic. measured_cut: what a
    cut costs where bytes do not tell."""

    shape: ModelShape
    dtype: str
    kv_dtype: str
    measured_cut: CutCost | None = None

    def count(self, plan: StepPlan) -> StepCounts:
        """Read off a plan; about half a microsecond for each of its runs.

        A new token counts as written, and not as read in the tail of its own run as well: it is
        in a cache then.
        """
        if plan.attention is None:
            return StepCounts()
        shape, runs = self.shape, plan.runs
        spans = [(run.start, len(run.tokens)) for run in runs]
        stretches = [
            (tail.position, start + num_rows - tail.position, start)
            for tail, (start, num_rows) in zip(plan.attention.tails, spans, strict=True)
        ]
        for segment in plan.attention.segments:
            first_row = min([spans[idx][0] for idx in segment.run_idxs])
            stretches.append((segment.position, segment.num_tokens, first_row))
        written = sum(
            [
                max(0, start + num_rows - max(start, run.write_from))
                for run, (start, num_rows) in zip(runs, spans, strict=True)
            ]
        )
        return StepCounts(
            rows=sum([num_rows for _, num_rows in spans]),
            logits_rows=plan.num_logits_rows,
            read_kv_tokens=max(0.0, cost.total_kv_tokens(shape, stretches) - written),
            written_kv_tokens=written,
            num_pairs=cost.total_pairs(shape, spans),
        )

    def work(self, counts: StepCounts) -> StepWork:
        """The bytes that had to move and the FLOPs that had to be done."""
        return cost.step_work(
            self.shape,
            rows=counts.rows,
            logits_rows=counts.logits_rows,
            kv_tokens=counts.read_kv_tokens + counts.written_kv_tokens,
            num_pairs=counts.num_pairs,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
        )

    def cut_cost(self) -> CutCost:
        """What the attention plan pays for reading a stretch of this model's KV apart."""
        if self.measured_cut is not None:
            return self.measured_cut
        row_tokens = cost.partial_result_tokens(
            group_size=self.shape.group_size,
            head_dim=self.shape.head_dim,
            element_bytes=dtype_bytes(self.kv_dtype),
        )
        return CutCost(row_tokens=row_tokens)
