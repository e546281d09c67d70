"""The pool of keys and values: writing rows, copying slots, and its size."""

import torch

from umbel.kernels.kv_cache import KVCache, block_size_bytes


def make_cache() -> KVCache:
    cache = KVCache(num_layers=2, num_kv_heads=3, num_slots=8, head_dim=4, dtype=torch.float32)
    cache.k.copy_(torch.arange(8.0).view(1, 1, 8, 1).expand_as(cache.k))
    cache.v.copy_(-cache.k)
    return cache


def test_rows_are_written_to_their_slots_of_one_layer() -> None:
    cache = make_cache()
    k = torch.randn(3, 3, 4)

    cache.write(1, k, 2 * k, None, torch.tensor([6, 0, 3]))

    assert torch.equal(cache.k[1][:, [6, 0, 3]], k.transpose(0, 1))
    assert torch.equal(cache.v[1][:, [6, 0, 3]], 2 * k.transpose(0, 1))
    assert cache.k[1, 0, [1, 2, 4, 5, 7], 0].tolist() == [1, 2, 4, 5, 7]
    assert cache.k[0, 2, :, 1].tolist() == list(range(8))


def test_only_the_named_rows_are_written() -> None:
    cache = make_cache()
    k = torch.randn(3, 3, 4)

    cache.write(0, k, k, torch.tensor([2]), torch.tensor([5]))

    assert torch.equal(cache.k[0][:, 5], k[2])
    assert cache.k[0, 0, :5, 0].tolist() == [0, 1, 2, 3, 4]


def test_copying_slots_reads_everything_before_it_writes() -> None:
    cache = make_cache()

    cache.copy_blocks(torch.tensor([0, 1, 2]), torch.tensor([2, 3, 7]))

    assert cache.k[1, 2, :, 3].tolist() == [0, 1, 0, 1, 4, 5, 6, 2]
    assert torch.equal(cache.v, -cache.k)


def test_the_bytes_of_all_blocks_are_the_bytes_of_the_pool() -> None:
    per_block = block_size_bytes(
        num_layers=2, num_kv_heads=3, head_dim=4, block_size=2, dtype=torch.float32
    )

    assert make_cache().size_bytes == 4 * per_block
    assert make_cache().num_slots == 8
