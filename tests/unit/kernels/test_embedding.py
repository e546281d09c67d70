"""Tables that tokens are looked up in: a quantized one gives what its dequantized twin gives."""

import pytest
import torch

from umbel.kernels.embedding import Embedding, GroupedEmbedding, PlainEmbedding
from umbel.kernels.grouped import GroupedWeight

NUM_TOKENS, WIDTH = 11, 64


def make_table(bits: int) -> GroupedWeight:
    generator = torch.Generator().manual_seed(bits)
    scales = torch.rand(NUM_TOKENS, WIDTH // 32, generator=generator).half()
    if bits == 8:
        shape = (NUM_TOKENS, WIDTH)
        codes = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        return GroupedWeight(codes, scales, None)
    codes = torch.randint(0, 16, (NUM_TOKENS, WIDTH), generator=generator, dtype=torch.uint8)
    return GroupedWeight(codes, scales, torch.randn(scales.shape, generator=generator).half())


@pytest.mark.parametrize("token_ids", [[], [7], [0, 10, 3, 3, 0]])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantized_table_gives_the_bits_of_its_dequantized_twin(
    bits: int, dtype: torch.dtype, token_ids: list[int]
) -> None:
    table, ids = make_table(bits), torch.tensor(token_ids, dtype=torch.int64)
    plain = PlainEmbedding(table.dequantized().to(dtype))
    grouped = GroupedEmbedding(table, dtype)

    rows = grouped(ids)

    assert rows.dtype == grouped.dtype == plain.dtype == dtype
    assert rows.shape == (len(ids), WIDTH)
    assert torch.equal(rows, plain(ids))


@pytest.mark.parametrize("token_id", [-1, NUM_TOKENS])
@pytest.mark.parametrize(
    "embedding",
    [GroupedEmbedding(make_table(8), torch.bfloat16), PlainEmbedding(torch.zeros(NUM_TOKENS, 4))],
)
def test_a_token_that_is_not_in_the_table_raises(embedding: Embedding, token_id: int) -> None:
    with pytest.raises(IndexError):
        embedding(torch.tensor([0, token_id]))


def test_rows_are_new_memory_and_the_table_stays_as_it_is() -> None:
    ids = torch.tensor([1, 2])
    embedding = GroupedEmbedding(make_table(4), torch.bfloat16)
    before = embedding(ids)

    embedding(ids).zero_()

    assert torch.equal(embedding(ids), before)


def test_a_quantized_table_holds_its_codes_and_scales_alone() -> None:
    grouped = GroupedEmbedding(make_table(8), torch.bfloat16)

    assert grouped.held_bytes == NUM_TOKENS * (WIDTH + 2 * WIDTH // 32)
