"""Programs of native kernels against the same kernels run one by one."""

import gc

import pytest
import torch
from torch import Tensor

from umbel.kernels.linear import NativeLinear
from umbel.kernels.native import threads

if not threads.is_available():
    pytest.skip("needs numba and a CPU with AVX2", allow_module_level=True)

from umbel.kernels.grouped import GroupedWeight
from umbel.kernels.native.products import NativeProduct
from umbel.kernels.native.program import Program, Recorder, empty, recording, run_kernel
from umbel.kernels.native.rows import gated_silu_rows, norm_rows
from umbel.kernels.native.threads import call_apart, float_bits, use_threads

WIDTH, MAX_ROWS, NUM_LAYERS = 64, 9, 30
WEIGHT, EPS_BITS = torch.linspace(0.5, 1.5, WIDTH), float_bits(1e-5)


def make_product() -> NativeProduct:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (2 * WIDTH, WIDTH), generator=generator, dtype=torch.uint8)
    scales = torch.full((2 * WIDTH, WIDTH // 32), 0.03).half()
    return NativeProduct(GroupedWeight(codes, scales, scales * -8), None)


PRODUCT = make_product()


def layers(x: Tensor) -> Tensor:
    """Kernels each of which reads what the one before wrote. x: [T, 64], changed in place."""
    out: Tensor | None = None
    for _ in range(NUM_LAYERS):
        out = gated_silu_rows(PRODUCT(norm_rows(x, WEIGHT, EPS_BITS, out)))
    assert out is not None
    return out


def make_rows(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count)).bfloat16()


def record() -> tuple[Program, Tensor, Tensor, Recorder]:
    """The program, where its rows go in, where they come out."""
    recorder = Recorder()
    x = torch.zeros(MAX_ROWS, WIDTH).bfloat16()
    with recording(recorder):
        out = layers(x)
    return Program(recorder), x, out, recorder


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_program_computes_the_same_bits_for_any_number_of_rows(num_threads: int) -> None:
    def compare() -> None:
        use_threads(num_threads)
        program, x, out, _ = record()
        for count in [*range(MAX_ROWS, -1, -1), 5, 5]:
            expected_x = make_rows(count)
            x[:count] = expected_x
            expected = layers(expected_x)

            program.run(count)

            assert torch.equal(out[:count], expected)
            assert torch.equal(x[:count], expected_x)

    call_apart(compare)


def test_threads_that_come_late_or_meet_no_work_harm_nothing() -> None:
    """Many runs of many tiny kernels, on more threads than there are cores."""

    def compare() -> None:
        use_threads(5)
        program, x, out, _ = record()
        expected_x = make_rows(1)
        expected = layers(expected_x)
        for _ in range(100):
            x[:1] = make_rows(1)
            program.run(1)
            assert torch.equal(out[:1], expected)

    call_apart(compare)


def test_recording_runs_nothing_and_ends_with_its_block() -> None:
    recorder, x = Recorder(), make_rows(2)
    before = x.clone()

    with recording(recorder):
        norm_rows(x, WEIGHT, EPS_BITS, x)
    assert torch.equal(x, before)
    assert len(recorder.kernels) == 1

    norm_rows(x, WEIGHT, EPS_BITS, x)
    assert not torch.equal(x, before)
    assert len(recorder.kernels) == 1


def test_other_threads_are_not_recorded() -> None:
    recorder, x = Recorder(), make_rows(2)

    with recording(recorder):
        normed = call_apart(lambda: norm_rows(x, WEIGHT, EPS_BITS, None))

    assert recorder.kernels == []
    assert torch.equal(normed, norm_rows(x, WEIGHT, EPS_BITS, None))


def test_memory_is_used_again_once_nobody_refers_to_it() -> None:
    recorder = Recorder()
    with recording(recorder):
        one = empty((4, 8), torch.float32)
        view = one[:2].t()
        address = one.data_ptr()
        del one
        other = empty((4, 8), torch.float32)
        assert other.data_ptr() != address  # the view still shows it
        del view
        gc.collect()
        assert empty((16,), torch.bfloat16).data_ptr() == address


def test_a_deep_program_needs_no_more_memory_than_a_layer() -> None:
    _, _, _, recorder = record()

    one_layer = MAX_ROWS * 2 * (WIDTH + 2 * WIDTH + WIDTH)  # normed, gate and up, result
    assert recorder.size_bytes <= 2 * one_layer + 6 * 64


def test_a_kernel_of_unknown_rows_cannot_be_recorded() -> None:
    with recording(Recorder()), pytest.raises(AssertionError, match="recorded"):
        run_kernel(0, [0])


@pytest.mark.skipif(
    threads.arithmetic() == "bfloats", reason="bfloat16 weights are oneDNN's on this CPU"
)
def test_products_with_bfloat16_weights_are_part_of_programs() -> None:
    layer, recorder = NativeLinear(make_rows(32)), Recorder()
    x = torch.zeros(MAX_ROWS, WIDTH).bfloat16()
    with recording(recorder):
        out = layer(x)

    x[:7] = make_rows(7)
    Program(recorder).run(7)

    assert torch.equal(out[:7], layer(make_rows(7)))
