"""Weights in large mappings."""

import gc

import torch

from umbel.kernels.native.memory import WeightMemory


def test_copies_are_equal_contiguous_aligned_and_apart() -> None:
    memory = WeightMemory()
    sources = [
        torch.arange(7, dtype=torch.uint8),
        torch.randn(3, 5).half(),
        torch.randn(4, 6).t(),
        torch.empty(0),
    ]

    copies = [memory.copy_of(source) for source in sources]

    for source, copy in zip(sources, copies, strict=True):
        assert torch.equal(copy, source)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0
    copies[1].fill_(1)
    assert torch.equal(copies[0], sources[0])
    assert torch.equal(copies[2], sources[2])


def test_what_is_larger_than_a_mapping_gets_one_of_its_own() -> None:
    memory = WeightMemory()

    large = memory.copy_of(torch.ones(1, dtype=torch.uint8).expand((32 << 20) + 1))

    assert large.count_nonzero() == (32 << 20) + 1


def test_a_copy_outlives_the_memory_that_made_it() -> None:
    copy = WeightMemory().copy_of(torch.arange(1000))
    gc.collect()

    assert torch.equal(copy, torch.arange(1000))
