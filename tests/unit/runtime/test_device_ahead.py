"""A guessed step is taken only for the plan it is the step of."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from umbel.kernels.triton.work_split import HeadShape
from umbel.radix_cache.plan import CutCost, RunSpan, plan_attention
from umbel.radix_cache.tree import AppendOutcome, BlockCopy, Lease, Namespace, RadixCache, TokenKind
from umbel.runtime.device.ahead import MAX_PAUSE, StepsAhead
from umbel.runtime.device.step_input import StepInput
from umbel.runtime.device.work_planner import WorkPlanner
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request
from umbel.runtime.step import Run, Sample, StepPlan

BLOCK = 4
HERE = Namespace("model")
HEADS = HeadShape(num_kv_heads=1, group=1, head_dim=8, element_bytes=4)
ALWAYS_CUT = CutCost(row_tokens=0.0, segment_tokens=0.0)


class RecordingExecutor:
    """Logits that are the numbers of their rows."""

    def __init__(self) -> None:
        self.pool = torch.zeros(1)
        self.steps: list[StepInput] = []

    def execute(self, step: StepInput, tokens: Tensor) -> Tensor:
        self.steps.append(step)
        return torch.arange(step.num_rows).float()[:, None]


class Rig:
    """Requests whose paths begin alike, and the plans of steps in which they decode."""

    def __init__(self, lengths: list[int]) -> None:
        self.cache = RadixCache(64, BLOCK)
        self.executor = RecordingExecutor()
        planner = WorkPlanner(HEADS, block_size=BLOCK, windows=[None])
        executor: Any = self.executor
        self.ahead = StepsAhead(executor, planner, 16)
        self.requests = [self._request(idx, length) for idx, length in enumerate(lengths)]
        self.cache.commit_step()

    def decode(self, requests: list[Request]) -> StepPlan:
        """Each appends its last token, and wants the next one."""
        runs = []
        for request in requests:
            lease = lease_of(request)
            start = lease.num_tokens
            result = lease.append(request.tokens, start, start + 1, kind=TokenKind.OUTPUT)
            assert result.outcome is AppendOutcome.OK
            runs.append(Run(lease, request.tokens[start:], start, start, [start]))
        spans = [RunSpan(run.lease, run.start, 1) for run in runs]
        return StepPlan(
            runs=runs,
            attention=plan_attention(spans, cost=ALWAYS_CUT),
            samples=[Sample(request, row) for row, request in enumerate(requests)],
            requests=requests,
        )

    def guess(self, plan: StepPlan, tokens: list[int]) -> None:
        self.ahead.guess(plan, torch.tensor(tokens, dtype=torch.int32))
        self.ahead.confirm(tokens)
        self.cache.commit_step()
        for sample, token in zip(plan.samples, tokens, strict=True):
            sample.request.tokens.append(token)

    def _request(self, idx: int, length: int) -> Request:
        lease = self.cache.lease(HERE)
        tokens = [*range(min(length, 8)), *(100 * (idx + 1) + i for i in range(length - 8))]
        passed = lease.advance(tokens, 0, length)
        lease.append(tokens, passed, length, kind=TokenKind.PROMPT)
        return Request(
            request_id=idx,
            group_id=idx,
            tokens=[*tokens, 50 + idx],
            num_prompt=length,
            max_output=20,
            params=SamplingParams(),
            namespace=HERE,
            lease=lease,
        )


def lease_of(request: Request) -> Lease:
    assert request.lease is not None
    return request.lease


def test_the_next_plan_of_all_requests_finds_its_logits() -> None:
    rig = Rig([13, 10, 15])  # the last one goes on in a new block
    plan = rig.decode(rig.requests)

    rig.guess(plan, [7, 8, 9])
    taken = rig.ahead.take(rig.decode(rig.requests))

    assert taken is not None
    assert taken[:, 0].tolist() == [0, 1, 2]
    (step,) = rig.executor.steps
    assert step.positions.tolist() == [14, 11, 16]
    assert step.token_ids.tolist() == [0, 1, 2]  # which of the sampled tokens
    assert step.slots.tolist() == [
        lease_of(r).slots(p, p + 1)[0] for r, p in zip(rig.requests, (14, 11, 16), strict=True)
    ]
    assert rig.ahead.take(rig.decode([])) is None  # a guess is taken once


def test_requests_that_ended_are_passed_over_and_any_order_is_found() -> None:
    rig = Rig([13, 10, 12])
    rig.requests[0].max_output = 1  # known to end: left out
    rig.guess(rig.decode(rig.requests), [7, 8, 9])
    assert rig.executor.steps[0].token_ids.tolist() == [1, 2]

    rig.guess(rig.decode(rig.requests[1:]), [8, 9])
    lease_of(rig.requests[1]).release()  # ended unforeseen
    taken = rig.ahead.take(rig.decode([rig.requests[2]]))

    assert taken is not None
    assert taken[:, 0].tolist() == [1]


def test_another_token_slot_run_or_copy_is_another_step() -> None:
    def after_guess() -> tuple[Rig, StepPlan]:
        rig = Rig([13, 10])
        rig.guess(rig.decode(rig.requests), [7, 8])
        return rig, rig.decode(rig.requests)

    rig, plan = after_guess()
    plan.runs[0].tokens = [6]
    assert rig.ahead.take(plan) is None
    rig, plan = after_guess()
    assert rig.ahead.take(replace(plan, copies=[BlockCopy(0, 1, 1)])) is None
    rig, plan = after_guess()
    plan.runs[1].write_from += 1  # query-only
    assert rig.ahead.take(plan) is None
    rig, plan = after_guess()
    plan.runs[1].logits_positions = []
    assert rig.ahead.take(plan) is None
    rig, plan = after_guess()
    plan.runs[1].lease = plan.runs[1].lease.fork()  # another request on the same path
    assert rig.ahead.take(plan) is None
    rig, plan = after_guess()
    assert rig.ahead.take(plan) is not None


def test_a_block_that_another_path_took_first_is_noticed() -> None:
    rig = Rig([14])
    (request,) = rig.requests
    rig.guess(rig.decode([request]), [7])  # position 15 is in the block, 16 in the next
    assert rig.ahead.take(rig.decode([request])) is not None
    rig.guess(_last_plan(rig, request), [8])
    slot = rig.executor.steps[-1].slots.tolist()[0]

    sibling = lease_of(request).fork()
    assert sibling.append([999], 0, 1, kind=TokenKind.OUTPUT).outcome is AppendOutcome.OK
    assert sibling.slots(16, 17) == [slot]
    plan = rig.decode([request])

    assert plan.runs[0].lease.slots(16, 17) != [slot]
    assert rig.ahead.take(plan) is None


def _last_plan(rig: Rig, request: Request) -> StepPlan:
    """A plan of the position that was fed last."""
    lease = lease_of(request)
    start = lease.num_tokens - 1
    run = Run(lease, request.tokens[start : start + 1], start, start, [start])
    attention = plan_attention([RunSpan(lease, start, 1)], cost=ALWAYS_CUT)
    return StepPlan(
        runs=[run], attention=attention, samples=[Sample(request, 0)], requests=[request]
    )


def test_what_cannot_be_told_is_not_guessed() -> None:
    rig = Rig([13, 10])
    plan = rig.decode(rig.requests)
    tokens = torch.tensor([7, 8], dtype=torch.int32)

    rig.ahead.guess(plan, tokens[:1])  # one of them has no token
    plan.runs[0].tokens = [1, 2]
    rig.ahead.guess(plan, tokens)
    plan.runs[0].tokens = [1]
    rig.ahead.guess(replace(plan, samples=[*plan.samples, Sample(rig.requests[0], 0)]), tokens)

    assert rig.executor.steps == []


def test_after_wrong_guesses_there_are_pauses_that_grow() -> None:
    rig = Rig([13])
    nothing = StepPlan()
    for _ in range(400):
        rig.ahead.guess(_last_plan(rig, rig.requests[0]), torch.tensor([7], dtype=torch.int32))
        rig.ahead.confirm([7])
        rig.ahead.take(nothing)

    assert 400 / (2 * MAX_PAUSE) < len(rig.executor.steps) < 20
    assert rig.ahead.num_missed == len(rig.executor.steps)
