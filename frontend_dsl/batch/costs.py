"""What a batch cost, per call site: tokens by where they came from, rows per step, and time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from umbel.frontend_dsl.record import CallRecord
from umbel.frontend_dsl.state import State

CostTuple = tuple[int, int, int, int, int, int, int, int, float]


@dataclass(slots=True)
class Cost:
    """Sums over calls. `call_s` counts calls that ran at the same time each by itself."""

    num_calls: int = 0
    num_computed_tokens: int = 0  # of prompts and scored choices
    num_reused_tokens: int = 0
    num_output_tokens: int = 0
    num_forced_tokens: int = 0
    num_drafted_tokens: int = 0
    num_steps: int = 0  # that the calls were part of, each by itself
    num_step_rows: int = 0  # of those steps, the rows of other calls included
    call_s: float = 0.0

    def add(self, other: "Cost") -> None:
        for one in fields(Cost):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def as_tuple(self) -> CostTuple:
        return (
            self.num_calls, self.num_computed_tokens, self.num_reused_tokens,
            self.num_output_tokens, self.num_forced_tokens, self.num_drafted_tokens,
            self.num_steps, self.num_step_rows, round(self.call_s, 6),
        )  # fmt: skip

    @property
    def reused_share(self) -> float:
        total = self.num_computed_tokens + self.num_reused_tokens
        return self.num_reused_tokens / total if total else 0.0

    @property
    def rows_per_step(self) -> float:
        """Rows of the steps that a call was part of: how well it shared the reads of weights."""
        return self.num_step_rows / self.num_steps if self.num_steps else 0.0


@dataclass(slots=True)
class CostReport:
    """Costs by call site ("gen at file:line"), and in all."""

    by_site: dict[str, Cost] = field(default_factory=dict)
    total: Cost = field(default_factory=Cost)

    def add(self, costs: Mapping[str, CostTuple]) -> None:
        for site, numbers in costs.items():
            cost = Cost(*numbers)
            self.by_site.setdefault(site, Cost()).add(cost)
            self.total.add(cost)


def costs_of(state: State) -> dict[str, CostTuple]:
    """The costs of one run that is over, all branches included."""
    found: dict[str, Cost] = {}
    for record in _records(state):
        usage = record.usage
        cost = Cost(
            1, record.num_computed_tokens, usage.num_cached_tokens, usage.num_output_tokens,
            usage.num_forced_tokens, usage.num_drafted_tokens, usage.num_steps,
            usage.num_step_rows, record.timing.total_s,
        )  # fmt: skip
        found.setdefault(f"{record.kind} at {record.site}", Cost()).add(cost)
    return {site: cost.as_tuple() for site, cost in found.items()}


def _records(state: State) -> Iterable[CallRecord]:
    states = [state]
    for one in states:
        states += one.branches
        yield from one.calls
