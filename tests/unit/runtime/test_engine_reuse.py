"""Requests that share prefixes compute each token once, whenever they meet: against a trie."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.runtime.simulated_engine import rig

from umbel.runtime.outputs import Result
from umbel.runtime.params import SamplingParams

# A prompt is a path in a small tree of pieces, so that prompts begin alike and part anywhere.
PIECES = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9], [8], [5, 5, 5, 5], [1, 2], [7] * 11]
paths = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=5)
waves = st.lists(
    st.lists(st.tuples(paths, st.integers(1, 3)), min_size=1, max_size=8), min_size=1, max_size=4
)


@settings(max_examples=30, deadline=None)
@given(
    waves=waves, block_size=st.sampled_from([1, 4, 16]), max_step_tokens=st.sampled_from([8, 512])
)
@example(waves=[[([0, 0], 3)] * 5, [([0, 0], 3)] * 5], block_size=4, max_step_tokens=8)
def test_each_token_of_the_trie_is_computed_once(
    waves: list[list[tuple[list[int], int]]], block_size: int, max_step_tokens: int
) -> None:
    """What is cached is fed again only where its logits are wanted: at most once per request."""
    trie: set[tuple[int, ...]] = set()  # every prefix that has to be fed to a model
    num_wanted = 0  # rows that a request samples from
    options = {"block_size": block_size, "max_step_tokens": max_step_tokens, "speculate": "off"}
    with rig(num_blocks=2048, **options) as made:
        for wave in waves:
            prompts = [[token for piece in path for token in PIECES[piece]] for path, _ in wave]
            results = made.engine.generate_batch(
                prompts, [SamplingParams(temperature=0, max_tokens=length) for _, length in wave]
            )
            for prompt, result in zip(prompts, results, strict=True):
                assert isinstance(result, Result)
                fed = (*prompt, *result.token_ids[:-1])
                trie |= {fed[:stop] for stop in range(1, len(fed) + 1)}
                num_wanted += len(result.token_ids)

        num_computed = made.engine.stats().num_computed_tokens

    assert len(trie) <= num_computed <= len(trie) + num_wanted
