"""The size of the KV pool where nobody gives one."""

import os

from umbel.runtime.kv_budget import OTHER_TOKENS, default_kv_bytes, machine_memory_bytes

GIB = 1 << 30


def test_a_request_of_the_whole_context_fits_beside_others() -> None:
    assert default_kv_bytes(50_000, 8192, 64 * GIB) == 50_000 * (8192 + OTHER_TOKENS)


def test_a_small_model_gets_more_tokens() -> None:
    assert default_kv_bytes(100, 2048, 64 * GIB) == 256 << 20


def test_a_large_model_gets_no_more_than_a_share_of_the_memory() -> None:
    assert default_kv_bytes(200_000, 131_072, 64 * GIB) == 8 * GIB
    assert default_kv_bytes(200_000, 131_072, 2 * GIB) == GIB


def test_the_memory_of_the_machine_is_the_limit_if_nothing_else_is() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert 0 < machine_memory_bytes() <= physical
