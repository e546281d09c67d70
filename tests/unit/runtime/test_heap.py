"""Memory that was freed goes back to the system when it is asked for, and when nothing is to do."""

import ctypes
import sys
import threading
from pathlib import Path

import pytest
from unit.runtime.simulated_engine import GREEDY, PROMPT, rig

from umbel.runtime import heap

has_trim = hasattr(ctypes.CDLL(None), "malloc_trim")
glibc_only = pytest.mark.skipif(
    not has_trim or sys.platform != "linux", reason="other allocators keep what they keep"
)


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


@glibc_only
def test_freed_memory_beneath_what_is_in_use_goes_back() -> None:
    size, count = 64 << 10, 1024  # too small for a mapping of its own each: 64 MiB of the heap
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    pieces = [libc.malloc(size) for _ in range(count)]
    for piece in pieces:
        ctypes.memset(piece, 1, size)
    for piece in pieces[:-1]:
        libc.free(piece)
    before = resident_bytes()

    heap.give_back()

    assert before - resident_bytes() > size * count // 2
    libc.free(pieces[-1])


def test_an_engine_gives_back_what_was_freed_when_it_had_nothing_to_do_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(heap, "GIVE_BACK_AFTER_S", 0.0)
    monkeypatch.setattr(heap, "give_back", given.release)

    with rig() as made:
        for _ in range(2):  # and again after each piece of work
            made.engine.generate(PROMPT, GREEDY)
            assert given.acquire(timeout=30)


def test_an_engine_gives_nothing_back_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(heap, "GIVE_BACK_AFTER_S", 3600.0)
    monkeypatch.setattr(heap, "give_back", given.release)

    with rig() as made:
        for _ in range(3):
            made.engine.generate(PROMPT, GREEDY)

    assert not given.acquire(blocking=False)
