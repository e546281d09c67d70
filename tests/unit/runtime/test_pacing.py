"""Prefill chunks that keep a target of time beside decoding rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.runtime.simulated_engine import rig
from unit.runtime.simulation import Simulation

from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams
from umbel.runtime.roofline.pacing import MIN_CHUNK, ChunkPacer
from umbel.runtime.roofline.shapes import SHAPES

SHAPE = SHAPES["smollm2-135m"]
FLOPS_PER_ROW = 2.0 * SHAPE.num_streamed_parameters


def run_steps(
    pacer: ChunkPacer, num_steps: int, *, decode_rows: int, fixed_s: float, row_s: float
) -> list[tuple[int, float]]:
    """Chunks and times of steps with endless prompts, on a device with linear costs."""
    steps = []
    for _ in range(num_steps):
        chunk = pacer.chunk_beside(decode_rows)
        rows = decode_rows + chunk
        step_s = fixed_s + row_s * rows
        pacer.learn(rows, FLOPS_PER_ROW * rows, step_s)
        steps.append((chunk, step_s))
    return steps


def test_the_first_chunk_is_the_smallest() -> None:
    assert ChunkPacer(SHAPE, 0.05).chunk_beside(8) == MIN_CHUNK


@given(
    target_s=st.floats(0.03, 0.5),
    fixed_s=st.floats(0.001, 0.02),
    row_s=st.floats(1e-4, 1e-3),
    decode_rows=st.integers(1, 16),
)
@settings(deadline=None, max_examples=60)
def test_steps_come_close_to_the_target_and_do_not_pass_it(
    target_s: float, fixed_s: float, row_s: float, decode_rows: int
) -> None:
    steps = run_steps(
        ChunkPacer(SHAPE, target_s), 60, decode_rows=decode_rows, fixed_s=fixed_s, row_s=row_s
    )

    chunk, step_s = steps[-1]
    assert all(step_s <= 1.01 * target_s for chunk, step_s in steps if chunk > MIN_CHUNK)
    assert step_s >= 0.9 * target_s or chunk == MIN_CHUNK
    assert chunk >= MIN_CHUNK


def test_a_target_that_cannot_be_kept_leaves_the_smallest_chunk() -> None:
    steps = run_steps(ChunkPacer(SHAPE, 0.01), 20, decode_rows=4, fixed_s=0.02, row_s=1e-3)

    assert {chunk for chunk, _ in steps} == {MIN_CHUNK}


def test_chunks_shrink_when_the_machine_slows_down_and_grow_again() -> None:
    pacer = ChunkPacer(SHAPE, 0.1)

    fast = run_steps(pacer, 40, decode_rows=4, fixed_s=0.01, row_s=5e-4)[-1][0]
    slow = run_steps(pacer, 40, decode_rows=4, fixed_s=0.02, row_s=1e-3)[-1]
    again = run_steps(pacer, 120, decode_rows=4, fixed_s=0.01, row_s=5e-4)[-1][0]

    assert slow[0] < 0.6 * fast
    assert slow[1] <= 0.105
    assert again >= 0.9 * fast


def test_one_slow_step_does_not_stop_the_prompts() -> None:
    pacer = ChunkPacer(SHAPE, 0.1)
    before = run_steps(pacer, 40, decode_rows=4, fixed_s=0.01, row_s=5e-4)[-1][0]

    pacer.learn(4 + before, FLOPS_PER_ROW * (4 + before), 5.0)
    after = run_steps(pacer, 120, decode_rows=4, fixed_s=0.01, row_s=5e-4)[-1][0]

    assert after >= 0.9 * before


def test_prompts_beside_decoding_rows_get_only_the_chunk() -> None:
    asked: list[int] = []

    def chunk_beside(decode_rows: int) -> int:
        asked.append(decode_rows)
        return 3

    config = EngineConfig(num_blocks=256, block_size=4, max_step_tokens=64)
    simulation = Simulation(config, end_every=1 << 40, chunk_beside=chunk_beside)
    decoding = simulation.submit([1, 2, 3, 4], 20)
    simulation.step()
    long = simulation.submit([5] * 30, 4)

    rows = [plan.num_tokens for plan in (simulation.step() for _ in range(5)) if plan]

    assert rows == [4] * 5
    assert asked == [1] * 5
    simulation.run()
    simulation.check_result(decoding)
    simulation.check_result(long)


def test_prompts_alone_get_the_whole_step() -> None:
    config = EngineConfig(num_blocks=256, block_size=4, max_step_tokens=64)
    simulation = Simulation(config, chunk_beside=lambda rows: 3)
    simulation.submit([5] * 30, 4)

    plan = simulation.step()

    assert plan is not None
    assert plan.num_tokens == 30


def test_an_engine_with_a_target_gives_what_it_gives_without() -> None:
    prompts = [[1 + index] * (20 + 9 * index) for index in range(8)]
    params = SamplingParams(max_tokens=6, temperature=0.0)
    with rig() as made:
        plain = made.engine.generate_batch(prompts, params)
    with rig(target_step_ms=0.001) as made:
        paced = made.engine.generate_batch(prompts, params)

    assert [r.token_ids for r in paced] == [r.token_ids for r in plain]  # type: ignore[union-attr]


@pytest.mark.parametrize("target", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_a_target_that_is_no_time_is_refused(target: object) -> None:
    with pytest.raises(InvalidRequest, match="target_step_ms"):
        EngineConfig(target_step_ms=target)  # type: ignore[arg-type]
