"""Programs: kernels recorded once, and then run together in one parallel region.

Of a step with few rows, most is the way from one kernel to the next: Python, and threads that meet.
A program is the list of a step's kernels with their arguments; the rows' number is filled in each
time. One thread goes through the list, others help while they have a core: nobody waits for a
thread that is not at work, so a busy neighbour costs its share and no more. The idea of CUDA
graphs, which record as this does: by running the ordinary code once.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from umbel.kernels.native.threads import run_unsafe

_ARG_FIELDS = 24  # int64 of a kernel's arguments: three cache lines, of which the first is shared
_local = threading.local()
Args: TypeAlias = "Sequence[int] | ctypes.Array[ctypes.c_int64]"


class Recorder:
    """Collects the kernels that this thread would run, and owns the memory that they work in."""

    def __init__(self) -> None:
        self.kernels: list[int] = []
        self.args: list[list[int]] = []
        self.row_fields: list[tuple[int, int]] = []  # (kernel, field) that holds the rows' number
        self._pieces: list[Tensor] = []

    def add(self, kernel: int, args: Args, rows_field: int | None) -> int:
        """The place of the kernel in the program."""
        if rows_field is not None:
            self.row_fields.append((len(self.kernels), rows_field))
        self.kernels.append(kernel)
        self.args.append(list(args))
        return len(self.kernels) - 1

    @property
    def size_bytes(self) -> int:
        return sum(len(piece) for piece in self._pieces)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory that the program keeps. What nobody refers to any more is handed out again, as
        kernels run in the order in which they were recorded."""
        size_bytes = dtype.itemsize * int(np.prod(shape))
        piece = next((p for p in self._pieces if len(p) >= size_bytes and _is_free(p)), None)
        if piece is None:
            piece = torch.empty(-(-size_bytes // 64) * 64, dtype=torch.uint8)
            self._pieces.append(piece)
        return piece[:size_bytes].view(dtype).view(*shape)


def _is_free(piece: Tensor) -> bool:
    storage = piece.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)  # as torch's own CUDA graphs do
    return count == 2  # the piece and `storage`


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within it, kernels of this thread are recorded and not run."""
    _local.recorder = recorder
    try:
        yield
    finally:
        _local.recorder = None


def run_kernel(kernel: int, args: Args, rows_field: int | None = None) -> None:
    """Run a kernel, see `run_unsafe`, or record it. rows_field: which of `args` is the number of
    rows; only such kernels can be recorded."""
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is None:
        run_unsafe(kernel, args)
    else:
        assert rows_field is not None, "this kernel cannot be recorded"
        recorder.add(kernel, args, rows_field)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`torch.empty` for what a kernel writes: of the program, while one is recorded."""
    recorder: Recorder | None = getattr(_local, "recorder", None)
    return torch.empty(shape, dtype=dtype) if recorder is None else recorder.empty(shape, dtype)


class Program:
    """A recorded list of kernels. Not thread-safe; keeps what the recorder owns."""

    def __init__(self, recorder: Recorder) -> None:
        from umbel.kernels.native import program_code as code  # compiles on the first import

        self._recorder = recorder
        self._kernels = np.array(recorder.kernels, dtype=np.int64)
        # A cache line's multiple, from a multiple of one: torch's memory starts there.
        self._args_memory = torch.zeros(len(self._kernels), _ARG_FIELDS, dtype=torch.int64)
        self.args = self._args_memory.numpy()  # [kernels, fields]
        for place, args in enumerate(recorder.args):
            self.args[place, : len(args)] = args
        self._row_places = tuple(np.array(recorder.row_fields, dtype=np.int64).T)
        self._num_rows = 0  # that these hold
        self._header = (ctypes.c_int64 * (code.NUM_FIELDS + 8))()
        start = -(-ctypes.addressof(self._header) // 64) * 64
        fields = (ctypes.c_int64 * code.NUM_FIELDS).from_address(start)
        fields[code.NUM_OPS] = len(self._kernels)
        fields[code.KERNELS] = self._kernels.ctypes.data
        fields[code.ARGS] = self.args.ctypes.data
        fields[code.ARG_BYTES] = 8 * _ARG_FIELDS
        fields[code.YIELD] = code.SCHED_YIELD
        self._fields, self._run = fields, code.RUN
        self._shared = code.TICKET, code.CURRENT, code.INSIDE

    def run(self, num_rows: int) -> None:
        """All kernels, in order, for `num_rows` rows: at most as many as were recorded."""
        self.args[:, 0] = 0
        if num_rows != self._num_rows:
            self.args[self._row_places] = num_rows
            self._num_rows = num_rows
        for field in self._shared:
            self._fields[field] = 0
        run_unsafe(self._run, self._fields)
