"""A work list on the device: tensors at fixed addresses, filled by one copy per step.

A captured CUDA graph reads these tensors whatever is in them, so their sizes are those of the
largest step, and items beyond a step's own are padding, which a program leaves at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.triton.work_list import WorkList
from umbel.kernels.triton.work_split import ITEM_WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCapacity:
    """The largest step that the tensors hold."""

    num_rows: int  # query rows, T
    num_narrow: int  # items
    num_wide: int
    num_listed_rows: int
    num_pages: int
    num_partials: int

    @classmethod
    def of(cls, work: WorkList) -> "WorkCapacity":
        """What this one step needs."""
        return cls(
            num_rows=work.num_rows,
            num_narrow=len(work.narrow),
            num_wide=len(work.wide),
            num_listed_rows=len(work.rows),
            num_pages=len(work.pages),
            num_partials=work.num_partials,
        )


class WorkTensors:
    """The tensors that the attention kernels read, all parts of one buffer. Not for two streams."""

    def __init__(
        self, capacity: WorkCapacity, *, num_heads: int, head_dim: int, device: torch.device
    ) -> None:
        """num_heads: query heads of a layer, for the partial results."""
        self.capacity = capacity
        sizes = {
            "narrow": capacity.num_narrow * ITEM_WIDTH,
            "wide": capacity.num_wide * ITEM_WIDTH,
            "rows": capacity.num_listed_rows,
            "positions": capacity.num_rows,
            "pages": capacity.num_pages,
            "merge_begin": capacity.num_rows + 1,
            "merge_list": capacity.num_partials,
        }
        self._places: dict[str, slice] = {}
        end = 0
        for name, size in sizes.items():
            self._places[name] = slice(end, end + size)
            end += -(-size // 8) * 8  # so that each part begins at a multiple of 32 bytes
        is_cuda = device.type == "cuda"
        self._staging = torch.zeros(end, dtype=torch.int32, pin_memory=is_cuda)
        self._buffer = torch.zeros(end, dtype=torch.int32, device=device)
        self._is_copied = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]  # torch
        self.narrow = self._part("narrow").view(-1, ITEM_WIDTH)
        self.wide = self._part("wide").view(-1, ITEM_WIDTH)
        self.rows = self._part("rows")
        self.positions = self._part("positions")
        self.pages = self._part("pages")
        self.merge_begin = self._part("merge_begin")
        self.merge_list = self._part("merge_list")
        self.partial_out = torch.empty(
            capacity.num_partials, num_heads, head_dim, dtype=torch.float32, device=device
        )
        self.partial_lse = torch.empty(
            capacity.num_partials, num_heads, dtype=torch.float32, device=device
        )
        self.narrow_tile = 0
        self.block_size = 0
        self.group = 0
        self.window: int | None = None

    def load(self, work: WorkList) -> None:
        """Make these tensors those of `work`, in the order of the current stream.

        Raises `ValueError` if the step does not fit. On CUDA a second call waits until the first
        one's copy is done, since both use the same pinned memory.
        """
        needed = WorkCapacity.of(work)
        for name in WorkCapacity.__dataclass_fields__:
            if getattr(needed, name) > getattr(self.capacity, name):
                raise ValueError(
                    f"the step needs {name}={getattr(needed, name)}, but the tensors were made for "
                    f"{getattr(self.capacity, name)}; make them larger"
                )
        if self._is_copied is not None:
            self._is_copied.synchronize()
        staged = self._staging.numpy()
        staged[:] = 0  # an item without rows is padding
        for name, place in self._places.items():
            values = getattr(work, name).reshape(-1)
            staged[place.start : place.start + len(values)] = values
        merge_begin = staged[self._places["merge_begin"]]
        merge_begin[work.num_rows :] = work.num_partials  # rows of no step merge nothing
        self._buffer.copy_(self._staging, non_blocking=True)
        if self._is_copied is not None:
            self._is_copied.record()
        self.narrow_tile = work.narrow_tile
        self.block_size = work.block_size
        self.group = work.group
        self.window = work.window

    def _part(self, name: str) -> Tensor:
        return self._buffer[self._places[name]]


def load_work(
    work: WorkList, *, num_heads: int, head_dim: int, device: torch.device
) -> WorkTensors:
    """Tensors of just the size that this step needs."""
    tensors = WorkTensors(
        WorkCapacity.of(work), num_heads=num_heads, head_dim=head_dim, device=device
    )
    tensors.load(work)
    return tensors
