"""What the native attention kernel gives before it is rounded to bfloat16, against float64."""

import ctypes
import math

import pytest
import torch
from torch import Tensor

from umbel.kernels.attention import AttentionStep
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.native import threads

pytestmark = pytest.mark.skipif(not threads.is_available(), reason="no native kernels here")

# Of the result's norm. In float32 weights and values are integers of 16 bits where queries are
# many; elsewhere products are of rounded numbers.
TOLERANCE = {"floats": 3e-4, "bfloats": 1e-2, "halves": 1e-2}


def attend(q: Tensor, k: Tensor, v: Tensor, starts: list[int]) -> tuple[Tensor, Tensor]:
    """Float32 results and log-sum-exps of runs over the same keys, each from its start to the end.

    q: [T, Hq, D], k, v: [Hkv, keys, D], bfloat16.
    """
    from umbel.kernels.native.attention import ATTEND, attend_args, task_fields

    num_kv_heads, num_keys, head_dim = k.shape
    runs = [QueryRun(start, num_keys - start) for start in starts]
    tails = [KeyStretch(0, [(0, num_keys)]) for _ in runs]
    num_heads = q.shape[1]
    step = AttentionStep(runs, [], tails)
    work = step.tasks(None, num_heads // num_kv_heads, num_kv_heads)
    assert work.table is None, "a row has more than one result"
    o, lse = torch.empty(len(q), num_heads, head_dim), torch.empty(len(q), num_heads)
    fields = attend_args(q, k, v, threads.float_bits(1 / math.sqrt(head_dim)))
    args = (ctypes.c_int64 * len(fields))(*fields)
    args[1], args[2], args[3], args[4] = task_fields(work)
    args[13], args[14] = o.data_ptr(), lse.data_ptr()
    threads.run_unsafe(ATTEND, args)
    return o, lse


def wanted(q: Tensor, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The same of one run in float64."""
    group, num_keys = q.shape[1] // len(k), k.shape[1]
    keys, values = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = torch.einsum("qhd,hkd->qhk", q.double(), keys) / math.sqrt(q.shape[2])
    hidden = torch.arange(num_keys)[None, :] > torch.arange(start, num_keys)[:, None]
    scores.masked_fill_(hidden[:, None, :], -math.inf)
    return torch.einsum("qhk,hkd->qhd", scores.softmax(-1), values), scores.logsumexp(-1)


def check(q: Tensor, k: Tensor, v: Tensor, *, factor: float = 1.0) -> None:
    start = k.shape[1] - len(q)
    tolerance = factor * TOLERANCE[threads.arithmetic()]

    o, lse = attend(q, k, v, [start])

    wanted_o, wanted_lse = wanted(q, k, v, start)
    assert (o - wanted_o).norm() <= tolerance * wanted_o.norm()
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=tolerance, atol=tolerance)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
@pytest.mark.parametrize(("group", "num_rows"), [(1, 1), (1, 9), (3, 3), (3, 65), (8, 33)])
def test_ordinary_scores_err_far_below_the_rounding_of_bfloat16(
    head_dim: int, group: int, num_rows: int
) -> None:
    k, v = random(2, 333, head_dim), random(2, 333, head_dim, seed=1)

    check(random(num_rows, 2 * group, head_dim, seed=2), k, v)


def test_large_scores_stay_exact() -> None:
    k, v = random(2, 700, 64), random(2, 700, 64, seed=1)

    check(random(40, 6, 64, seed=2) * 30, k, v, factor=2)


def test_an_outstanding_key_leaves_the_others_their_bits() -> None:
    # As the first token is in many models: it takes nearly all of the weight and its value is 0.
    k, v = random(1, 1000, 64), random(1, 1000, 64, seed=1)
    q = random(64, 3, 64, seed=2) + 1
    k[:, 0], v[:, 0] = 1.5, 0.0

    check(q, k, v, factor=2)


def test_an_outstanding_dimension_leaves_the_others_their_bits() -> None:
    q, k, v = random(64, 3, 64, seed=2), random(1, 600, 64), random(1, 600, 64, seed=1)
    k[..., 7], v[..., 9] = 60.0, 500.0
    q[..., 7] = 2.0
    start = 600 - 64

    o, _ = attend(q, k, v, [start])

    wanted_o, _ = wanted(q, k, v, start)
    others = [d for d in range(64) if d != 9]
    error = (o - wanted_o)[..., others].norm() / wanted_o[..., others].norm()
    assert error <= 2 * TOLERANCE[threads.arithmetic()]


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12])
def test_the_largest_sums_do_not_overflow(size: float) -> None:
    # All of a query's products, and of a dimension's, have the same sign, and mantissas are full.
    k = torch.full((1, 512, 64), 1.9921875).bfloat16()
    v = torch.full((1, 512, 64), 1.9921875 * size).bfloat16()
    q = torch.full((16, 3, 64), -1.9921875).bfloat16()
    k[:, :100, 0] = 255.0

    check(q, k, v)
    check(-q, k, -v)


def test_a_query_or_a_key_of_one_element_is_exact() -> None:
    k, v, q = torch.zeros(1, 200, 64), random(1, 200, 64), torch.zeros(16, 3, 64)
    k[..., 5], q[..., 5] = random(1, 200).float(), random(16, 3).float()

    check(q.bfloat16(), k.bfloat16(), v)
    check(torch.zeros(16, 3, 64).bfloat16(), k.bfloat16(), v)


def test_a_run_gives_the_same_bits_alone_and_beside_others() -> None:
    k, v = random(2, 500, 64), random(2, 500, 64, seed=1)
    runs = {start: random(500 - start, 6, 64, seed=start) for start in (430, 130, 480, 499)}
    beside, _ = attend(torch.cat(list(runs.values())), k, v, list(runs))

    for start, part in zip(runs, beside.split([len(q) for q in runs.values()]), strict=True):
        alone, _ = attend(runs[start], k, v, [start])
        assert torch.equal(alone, part)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_with_the_rows_that_see_it(value: float) -> None:
    k, v = random(1, 400, 64), random(1, 400, 64, seed=1)
    q = random(60, 3, 64, seed=2)
    clean, _ = attend(q, k, v, [340])
    k[0, 390, 3] = value
    q[5, 1, 8] = value

    o, _ = attend(q, k, v, [340])

    assert o[5, 1].isnan().all()
    assert torch.equal(o[5, [0, 2]].isnan(), torch.zeros(2, 64, dtype=torch.bool))
    others = [row for row in range(50) if row != 5]  # before the key
    error = (o - clean)[others].norm() / clean[others].norm()
    assert error <= TOLERANCE[threads.arithmetic()]


def test_values_that_are_not_finite_reach_the_rows_that_see_them() -> None:
    k, v = random(1, 400, 64), random(1, 400, 64, seed=1)
    v[0, 3, 10], v[0, 150, 11] = math.inf, math.nan
    q = random(60, 3, 64, seed=2)

    o, _ = attend(q, k, v, [340])

    wanted_o, _ = wanted(q, k, v, 340)
    assert torch.equal(o.isfinite(), wanted_o.isfinite())
    finite = wanted_o.isfinite()
    error = (o.double() - wanted_o)[finite].norm() / wanted_o[finite].norm()
    assert error <= TOLERANCE[threads.arithmetic()]
