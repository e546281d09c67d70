"""Attention kernels and their twin against float64, over decode, sharing, prefill and trees."""

import pytest
import torch
from attention_cases import CASES, Case, Step, build

from umbel.kernels.triton.attention import attend
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.work_tensors import WorkCapacity, WorkTensors, load_work

BACKENDS: tuple[Backend, ...] = ("triton", "torch")
# Relative error of a whole output. bfloat16 and float16: their rounding; the queries of an fp8 case
# are float16, and its stored keys are exact.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def run(step: Step, backend: Backend, work: WorkTensors | None = None) -> torch.Tensor:
    case = step.case
    heads = case.num_kv_heads * case.group
    if work is None:
        device = torch.device("cpu")
        work = load_work(step.work, num_heads=heads, head_dim=case.head_dim, device=device)
    work.partial_out.fill_(torch.nan)
    work.partial_lse.fill_(torch.nan)
    out = torch.full_like(step.q, torch.nan)
    attend(
        step.q,
        step.k_pool,
        step.v_pool,
        work,
        scale=step.scale,
        softcap=case.softcap,
        kv_scales=step.scales,
        tree=step.tree,
        out=out,
        backend=backend,
    )
    return out


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_float64(name: str, backend: Backend) -> None:
    step = build(CASES[name])

    out = run(step, backend)

    assert relative_error(out, step.expected) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["three levels", "extend", "trees", "soft cap"])
def test_half_precision_errs_by_rounding_only(
    name: str, dtype: torch.dtype, backend: Backend
) -> None:
    case = CASES[name]
    case = Case(**{field: getattr(case, field) for field in Case.__slots__} | {"dtype": dtype})
    step = build(case)

    out = run(step, backend)

    assert relative_error(out, step.expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_fp8_pool_is_read_with_its_scales(dtype: torch.dtype, backend: Backend) -> None:
    runs: list[tuple[int | None, int, int]] = [(0, 20, 1), (0, 70, 1), (0, 0, 12)]
    step = build(Case(shared=[50], parents=[None], runs=runs, dtype=dtype, is_fp8=True))

    out = run(step, backend)

    assert relative_error(out, step.expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_changes_nothing_and_stale_contents_are_gone(backend: Backend) -> None:
    small = build(CASES["one level"])
    capacity = WorkCapacity(
        num_rows=40, num_narrow=64, num_wide=2, num_listed_rows=99, num_pages=99, num_partials=99
    )
    work = WorkTensors(capacity, num_heads=6, head_dim=32, device=torch.device("cpu"))
    work.load(build(CASES["ragged decode"], seed=3).work)

    work.load(small.work)

    assert relative_error(run(small, backend, work), small.expected) < 2e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_a_given_chunk_a_row_does_not_depend_on_its_neighbours(backend: Backend) -> None:
    alone = build(Case(runs=[(None, 150, 1)]))
    runs: list[tuple[int | None, int, int]] = [(None, 150, 1), (None, 40, 1), (None, 300, 1)]
    crowd = build(Case(runs=runs))
    crowd.q[0] = alone.q[0]
    for mine, other in ((alone.k_pool, crowd.k_pool), (alone.v_pool, crowd.v_pool)):
        positions = torch.arange(151)
        other[_slots(crowd, 0, positions)] = mine[_slots(alone, 0, positions)]

    assert torch.equal(run(crowd, backend)[0], run(alone, backend)[0])


def _slots(step: Step, run_idx: int, positions: torch.Tensor) -> torch.Tensor:
    """Slots of a run that shares nothing; its items are found by its row."""
    work = step.work
    row = int(sum(rows for *_, rows in step.case.runs[:run_idx]))
    item = next(i for i in work.narrow if i[1] and work.rows[i[0]] == row)
    pages = torch.from_numpy(work.pages)[int(item[5]) + positions // work.block_size]
    return pages.long() * work.block_size + positions % work.block_size


def test_a_step_without_rows_gives_an_empty_result() -> None:
    step = build(Case(runs=[(None, 0, 1)]))
    work = load_work(step.work, num_heads=6, head_dim=32, device=torch.device("cpu"))

    out = attend(step.q[:0], step.k_pool, step.v_pool, work, scale=1.0, backend="triton")

    assert out.shape == (0, 6, 32)


def test_the_door_names_what_does_not_fit() -> None:
    step = build(Case(runs=[(None, 0, 1)]))
    work = load_work(step.work, num_heads=6, head_dim=32, device=torch.device("cpu"))

    with pytest.raises(ValueError, match=r"q has shape \[1, 5, 32\].*expected \[any, 6, any\]"):
        attend(step.q[:, :5], step.k_pool, step.v_pool, work, scale=1.0)
    with pytest.raises(ValueError, match="v_pool has shape"):
        attend(step.q, step.k_pool, step.v_pool.half(), work, scale=1.0)
