"""A guess that is fed in a step, and what became of it. Made by the drafter, filled by the step's
builder, judged by the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from umbel.runtime.request import Request, TokenMatcher


@dataclass(slots=True)
class Draft:
    """A guess that is fed in a step, after all tokens of its request.

    `matchers` has the offsets at which a token is sampled besides 0, ascending: after so many
    tokens of the draft. Others are followed by a token that the constraint forces. Its values are
    the constraint's states there; None without a constraint.
    """

    request: Request
    kind: str
    tokens: list[int]
    matchers: dict[int, TokenMatcher | None]
    num_before: int  # tokens of the request when it was made
    num_confirmed: int = 0  # of `tokens`: so many came true
    is_open: bool = True  # no token was chosen otherwise so far

    def cut(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens."""
        del self.tokens[num_tokens:]

    def offsets(self) -> list[int]:
        """Where tokens are sampled besides 0."""
        return [offset for offset in self.matchers if offset <= len(self.tokens)]

    def leads_to(self, offset: int) -> bool:
        """Whether the tokens before `offset` came true, and nothing else came since."""
        return self.is_open and self.num_confirmed == offset

    def close(self) -> None:
        """The request failed: nothing more of the draft counts."""
        self.is_open = False

    def confirm(self) -> None:
        """Compare with the tokens that the request has now."""
        came = self.request.tokens
        at = self.num_before + self.num_confirmed
        while at < len(came) and self.num_confirmed < len(self.tokens):
            if came[at] != self.tokens[self.num_confirmed]:
                break
            self.num_confirmed += 1
            at += 1
        if at < len(came) or self.request.finish is not None:
            self.is_open = False


def may_draft(request: Request) -> bool:
    """Whether guesses may be fed for it: it samples next, and nothing is left to be scored. Forced
    tokens with log-probabilities are scored one step later, which a draft would mix up. Who gives a
    seed wants the same tokens again: in bfloat16 a draw near an edge may fall otherwise in a step
    of other rows.
    """
    params = request.params
    return (
        params.speculate == "auto"
        and request.wants_token
        and request.num_left > 1
        and request.score_next >= request.score_end
        and (request.matcher is None or params.logprobs is None)
        and (params.seed is None or params.is_greedy)
    )


def make_draft(request: Request, kind: str, tokens: Sequence[int], max_tokens: int) -> Draft | None:
    """A draft of `tokens`, as far as the constraint of the request allows them, with the tokens
    that it forces in between; at most `max_tokens`. None if that leaves nothing.
    """
    num_before, matcher = len(request.tokens), request.matcher
    if matcher is None:
        found = list(tokens[:max_tokens])
        return Draft(request, kind, found, dict.fromkeys(range(1, len(found) + 1)), num_before)
    matcher = matcher.clone()
    draft = Draft(request, kind, [], {}, num_before)
    at = 0
    while at < len(tokens) and len(draft.tokens) < max_tokens:
        if not matcher.advance(tokens[at]):
            break
        draft.tokens.append(tokens[at])
        at += 1
        if matcher.finished:
            break
        for token_id in matcher.forced(budget=request.num_left - len(draft.tokens)):
            matcher.advance(token_id)
            is_as_guessed = at < len(tokens) and tokens[at] == token_id
            at = at + 1 if is_as_guessed else len(tokens)
            draft.tokens.append(token_id)
        if matcher.finished:
            break
        draft.matchers[len(draft.tokens)] = matcher.clone()
    draft.cut(min(max_tokens, request.num_left - 1))
    return draft if draft.tokens else None
