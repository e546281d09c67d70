"""Token counts of an answer."""

from collections.abc import Mapping

from umbel.server.call import Ending
from umbel.server.protocol.fields import CompletionTokensDetails, PromptTokensDetails, UsageBody
from umbel.server.record import RequestRecord


def usage_of(endings: Mapping[int, Ending], *, n: int, record: RequestRecord) -> UsageBody:
    """The sum over the sequences of a call; a prompt that was gone on from n times counts once."""
    firsts = [ending for sequence, ending in endings.items() if sequence % n == 0]
    num_prompt = sum(ending.num_prompt_tokens for ending in firsts)
    num_cached = sum(ending.num_cached_tokens for ending in firsts)
    num_output = sum(ending.num_output_tokens for ending in endings.values())
    num_thought = sum(ending.num_thought_tokens for ending in endings.values())
    record.num_prompt_tokens, record.num_cached_tokens = num_prompt, num_cached
    return UsageBody(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=num_thought),
    )
