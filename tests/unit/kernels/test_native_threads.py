"""Whose threads compute, and how many."""

import threading

import pytest
import torch

from umbel.kernels.native.threads import call_apart, use_threads


def test_a_call_apart_answers_from_a_thread_that_is_gone_afterwards() -> None:
    before = threading.active_count()

    thread = call_apart(threading.current_thread)

    assert thread is not threading.current_thread()
    assert not thread.is_alive()
    assert threading.active_count() == before


def test_what_a_call_apart_raises_is_raised_to_the_caller() -> None:
    def fail() -> None:
        raise KeyError("reason")

    with pytest.raises(KeyError, match="reason"):
        call_apart(fail)


def test_the_number_of_threads_is_set_for_the_calling_thread_alone() -> None:
    before = torch.get_num_threads()

    def inside() -> int:
        use_threads(before + 1)
        return torch.get_num_threads()

    assert call_apart(inside) == before + 1
    assert torch.get_num_threads() == before
    assert call_apart(torch.get_num_threads) == before
