"""`gen` and `select` as operations of a branch."""

import random
import time
from dataclasses import dataclass, replace

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.calls import Gen, Select
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.operations import start_sequence
from umbel.frontend_dsl.pending import PendingCall, Ticket
from umbel.frontend_dsl.record import CallRecord, sum_usage
from umbel.frontend_dsl.scoring import METHODS, Candidate, Decision, decide, has_longer_sibling
from umbel.runtime.errors import InvalidRequest, UmbelError
from umbel.runtime.outputs import Chunk, Score, Timing
from umbel.runtime.params import SamplingParams


def context_of(branch: Branch) -> list[int]:
    start_sequence(branch)
    assert branch.end is not None
    return branch.end.flatten()


class GenCall(PendingCall):
    """One generation."""

    kind = "gen"

    def __init__(self, branch: Branch, gen: Gen, params: SamplingParams) -> None:
        super().__init__(branch, gen.name, gen.site, str(gen))
        self.params = params

    def submit(self, driver: Driver) -> None:
        context = context_of(self.branch)
        driver.keeper.submitted(self, context)
        self._send(driver, None, lambda ticket: driver.client.submit(context, self.params, ticket))

    def on_event(self, ticket: Ticket, event: Chunk) -> None:
        self._emit_text(event.text)
        done = event.completion
        if done is None:
            return
        self.branch.execution.driver.settle(ticket)
        try:
            captures = done.captures()
        except UmbelError as error:  # the text can be read in too many ways
            self.branch.fail_current(error)
            return
        record = CallRecord(
            kind=self.kind,
            name=self.name,
            branch=self.branch.path,
            site=self.site,
            text=done.text,
            token_ids=done.token_ids,
            finish_reason=done.finish_reason,
            stop_reason=done.stop_reason,
            logprobs=done.logprobs,
            prompt_logprobs=done.prompt_logprobs,
            usage=done.usage,
            timing=done.timing,
            captures=captures,
        )
        self._finish(record, done.text_token_ids)


@dataclass(frozen=True, slots=True)
class _ScoreKey:
    """What a score is for: "choice", "prior" (without the prompt) or "end" (an end token after the
    choice).
    """

    purpose: str
    choice_idx: int


class SelectCall(PendingCall):
    """One choice: the choices are scored as siblings, submitted together."""

    kind = "select"

    def __init__(self, branch: Branch, select: Select) -> None:
        super().__init__(branch, select.name, select.site, str(select))
        self._select = select
        self._choice_ids: list[list[int]] = []
        self._scores: dict[_ScoreKey, list[Score]] = {}
        self._num_open = 0
        self._submitted_at = 0.0

    def submit(self, driver: Driver) -> None:
        self._submitted_at = time.perf_counter()
        self._choice_ids = [list(driver.encode(choice, False)) for choice in self._select.choices]
        self._refuse_equal_tokens()
        context = context_of(self.branch)
        driver.keeper.submitted(self, context)
        for idx, token_ids in enumerate(self._choice_ids):
            self._send_score(driver, _ScoreKey("choice", idx), context, token_ids)
        if self._select.method == "unconditional_normalized":
            self._send_priors(driver)
        if self._select.method == "constrained":
            self._send_ends(driver, context)

    def forget(self) -> None:
        self._scores.clear()
        self._num_open = 0

    def on_event(self, ticket: Ticket, event: Score) -> None:
        assert isinstance(ticket.key, _ScoreKey)
        self._scores.setdefault(ticket.key, []).append(event)
        self.branch.execution.driver.settle(ticket)
        self._num_open -= 1
        if self._select.method != METHODS[0] and len(event.logprobs) != len(event.token_ids):
            self.refuse(self._unsuited())
        elif self._num_open == 0:
            self._choose()

    def _unsuited(self) -> InvalidRequest:
        return InvalidRequest(
            f"method={self._select.method!r} compares choices token by token, but this engine cuts "
            f"texts into other tokens than it scores; use {METHODS[0]!r}",
            param="method",
        )

    def _send_score(
        self, driver: Driver, key: _ScoreKey, context: list[int], token_ids: list[int]
    ) -> None:
        self._num_open += 1
        self._send(
            driver, key, lambda ticket: driver.client.submit_score(context, token_ids, ticket)
        )

    def _send_priors(self, driver: Driver) -> None:
        start = driver.client.bos_ids()
        for idx, token_ids in enumerate(self._choice_ids):
            # Without a start token nothing stands before the first token: it has no prior
            # (SGLang counts 0).
            context, rest = (start, token_ids) if start else (token_ids[:1], token_ids[1:])
            if rest:
                self._send_score(driver, _ScoreKey("prior", idx), context, rest)

    def _send_ends(self, driver: Driver, context: list[int]) -> None:
        for idx, token_ids in enumerate(self._choice_ids):
            if has_longer_sibling(token_ids, self._choice_ids):
                for eos_id in driver.client.eos_ids():
                    key = _ScoreKey("end", idx)
                    self._send_score(driver, key, context + token_ids, [eos_id])

    def _choose(self) -> None:
        decision = self._decide()
        choices = self._select.choices
        text = choices[decision.index]
        token_ids = tuple(self._choice_ids[decision.index])
        scores = [score for scores in self._scores.values() for score in scores]
        # The engine counts a choice's tokens as output; to a reader they are not, only one is kept.
        usages = [replace(score.usage, num_output_tokens=0) for score in scores]
        record = CallRecord(
            kind=self.kind,
            name=self.name,
            branch=self.branch.path,
            site=self.site,
            text=text,
            token_ids=token_ids,
            usage=sum_usage(usages),
            num_scored_tokens=sum(len(score.token_ids) for score in scores),
            timing=Timing(total_s=time.perf_counter() - self._submitted_at),
            method=self._select.method,
            scores=dict(zip(choices, decision.scores, strict=True)),
            distribution=dict(zip(choices, decision.distribution, strict=True)),
        )
        self._emit_text(text)
        self._finish(record, token_ids)

    def _decide(self) -> Decision:
        select = self._select
        candidates = [self._candidate(idx) for idx in range(len(self._choice_ids))]
        draw = random.Random(select.seed).random()
        return decide(select.method, candidates, temperature=select.temperature, draw=draw)

    def _candidate(self, idx: int) -> Candidate:
        token_ids = tuple(self._choice_ids[idx])
        prior = self._logprobs("prior", idx)
        ends = self._logprobs("end", idx)
        return Candidate(
            token_ids=token_ids,
            logprobs=self._logprobs("choice", idx),
            prior_logprobs=(0.0,) * (len(token_ids) - len(prior)) + prior,
            end_logprobs=ends,
        )

    def _logprobs(self, purpose: str, idx: int) -> tuple[float, ...]:
        scores = self._scores.get(_ScoreKey(purpose, idx), [])
        return tuple(logprob for score in scores for logprob in score.logprobs)

    def _refuse_equal_tokens(self) -> None:
        seen: dict[tuple[int, ...], str] = {}
        for choice, token_ids in zip(self._select.choices, self._choice_ids, strict=True):
            other = seen.setdefault(tuple(token_ids), choice)
            if not token_ids or other != choice:
                raise InvalidRequest(
                    f"the choices {other!r} and {choice!r} are the same tokens for this model; "
                    "choose texts that it can tell apart",
                    param="choices",
                )
