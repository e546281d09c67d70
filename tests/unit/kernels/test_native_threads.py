"""Whose threads compute, and how many."""

import os
import threading
from pathlib import Path

import pytest
import torch

from umbel.kernels.native.threads import call_apart, forget_old_code, use_threads


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


def test_code_that_is_older_than_any_source_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    indexes = [tmp_path / "__pycache__" / name for name in ("kernel.nbi", "later.nbi")]
    for place, seconds in zip(
        [tmp_path / "kernel.py", indexes[0], tmp_path / "inner.py", indexes[1]],
        range(4),
        strict=True,
    ):
        place.touch()
        os.utime(place, (seconds, seconds))

    forget_old_code(tmp_path)

    assert [index.exists() for index in indexes] == [False, True]
