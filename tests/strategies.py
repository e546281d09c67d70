"""Hypothesis strategies shared by the tests: engine configurations, prompts that share prefixes,
work lists.
"""

from hypothesis import strategies as st

from umbel.runtime.config import EngineConfig

VOCAB_SIZE = 6
PREFIXES = (
    [1, 2, 3, 4, 5] * 8,
    [1, 2, 3, 4, 5] * 3 + [2, 2, 2, 1, 3, 5, 4, 4, 1, 2],
    [5, 4, 3],
)


def small_configs() -> st.SearchStrategy[EngineConfig]:
    """Engines small enough for blocks, budget and places to run out."""
    return st.builds(
        _small_config,
        block_size=st.sampled_from([1, 4, 16]),
        num_tokens=st.integers(64, 200),
        max_step_tokens=st.sampled_from([1, 7, 512]),
        max_running=st.sampled_from([1, 3, 64]),
        prefix_cache=st.booleans(),
        jump_forward=st.booleans(),
        share_attention=st.booleans(),
    )


def _small_config(*, block_size: int, num_tokens: int, **options: int | bool) -> EngineConfig:
    return EngineConfig(block_size=block_size, num_blocks=-(-num_tokens // block_size), **options)


def tokens(min_size: int, max_size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=min_size, max_size=max_size)


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """A prefix that others may have, cut anywhere, and a few tokens of its own; never empty."""
    prefix = draw(st.sampled_from(PREFIXES))
    cut = prefix[: draw(st.integers(0, len(prefix)))]
    return [*cut, *draw(tokens(0, 6))] or [1]
