"""A work list on the device: tensors at fixed addresses, filled by one copy per step.

A captured CUDA graph reads these tensors whatever is in them. Their sizes are those of the largest
step; a `LaunchShape` says how many items one launch looks at, and those beyond a step's own are
padding, which a program leaves at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.triton.staged import StagedInts
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

    def holds(self, work: WorkList) -> bool:
        return not self._lacks(WorkCapacity.of(work))

    def check(self, work: WorkList) -> None:
        """Raise `ValueError` if the step does not fit."""
        needed = WorkCapacity.of(work)
        for name in self._lacks(needed)[:1]:
            raise ValueError(
                f"the step needs {name}={getattr(needed, name)}, but the tensors were made for "
                f"{getattr(self, name)}; make them larger"
            )

    def grown(self, work: WorkList) -> "WorkCapacity":
        """This, at least doubled in what `work` needs more of, to a power of two."""
        needed = WorkCapacity.of(work)
        sizes = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in self._lacks(needed):
            sizes[name] = round_up(max(2 * sizes[name], getattr(needed, name)))
        return WorkCapacity(**sizes)

    def _lacks(self, needed: "WorkCapacity") -> list[str]:
        names = self.__dataclass_fields__
        return [name for name in names if getattr(needed, name) > getattr(self, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """What the launches over a work list look like: one that was captured serves every step that
    has its shape."""

    num_narrow: int  # items, padding included
    num_wide: int
    narrow_tile: int
    has_partials: bool

    @classmethod
    def of(cls, work: WorkList) -> "LaunchShape":
        """Of this step alone."""
        return cls(
            num_narrow=len(work.narrow),
            num_wide=len(work.wide),
            narrow_tile=work.narrow_tile,
            has_partials=work.num_partials > 0,
        )

    @classmethod
    def rounded(cls, work: WorkList) -> "LaunchShape":
        """Items padded to a power of two, so that steps alike have the same."""
        exact = cls.of(work)
        return cls(
            num_narrow=round_up(exact.num_narrow),
            num_wide=round_up(exact.num_wide),
            narrow_tile=exact.narrow_tile,
            has_partials=exact.has_partials,
        )


def round_up(count: int) -> int:
    """The least power of two that is not below `count`; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


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
            "merge_begin": capacity.num_rows + 1,
            "merge_list": capacity.num_partials,
            "pages": capacity.num_pages,  # the largest: last, so that only what is used is copied
        }
        self._places: dict[str, slice] = {}
        end = 0
        for name, size in sizes.items():
            self._places[name] = slice(end, end + size)
            end += -(-size // 8) * 8  # so that each part begins at a multiple of 32 bytes
        self._staged = StagedInts(end, device)
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
        self._all_narrow, self._all_wide = self.narrow, self.wide
        self.narrow_tile = 0
        self.has_partials = False
        self.block_size = 0
        self.group = 0
        self.window: int | None = None

    def load(self, work: WorkList, shape: LaunchShape | None = None) -> None:
        """Make these tensors those of `work`, in the order of the current stream.

        shape: what the launches look at; None: all that there is room for. Raises `ValueError` if
        the step does not fit. On CUDA a second call waits until the first one's copy is done, since
        both use the same pinned memory.
        """
        self.capacity.check(work)
        if shape is None:
            shape = LaunchShape(
                num_narrow=self.capacity.num_narrow,
                num_wide=self.capacity.num_wide,
                narrow_tile=work.narrow_tile,
                has_partials=self.capacity.num_partials > 0,
            )
        _check_shape(shape, work)
        staged = self._staged.host()
        for name, place in self._places.items():
            values = getattr(work, name).reshape(-1)
            staged[place.start : place.start + len(values)] = values
        for name, items, count in (
            ("narrow", work.narrow, shape.num_narrow),
            ("wide", work.wide, shape.num_wide),
        ):
            begin = self._places[name].start
            # An item without rows is padding.
            staged[begin + items.size : begin + count * ITEM_WIDTH] = 0
        merge_begin = staged[self._places["merge_begin"]]
        merge_begin[work.num_rows :] = work.num_partials  # rows of no step merge nothing
        self._staged.copy(self._places["pages"].start + len(work.pages))
        self.narrow = self._all_narrow[: shape.num_narrow]
        self.wide = self._all_wide[: shape.num_wide]
        self.narrow_tile = shape.narrow_tile
        self.has_partials = shape.has_partials
        self.block_size = work.block_size
        self.group = work.group
        self.window = work.window

    def _part(self, name: str) -> Tensor:
        return self._staged.device[self._places[name]]


def _check_shape(shape: LaunchShape, work: WorkList) -> None:
    needed = LaunchShape.of(work)
    if (
        shape.num_narrow < needed.num_narrow
        or shape.num_wide < needed.num_wide
        or shape.narrow_tile != needed.narrow_tile
        or shape.has_partials < needed.has_partials
    ):
        raise ValueError(f"a launch of {shape} does not compute a step of {needed}")


def load_work(
    work: WorkList, *, num_heads: int, head_dim: int, device: torch.device
) -> WorkTensors:
    """Tensors of just the size that this step needs."""
    tensors = WorkTensors(
        WorkCapacity.of(work), num_heads=num_heads, head_dim=head_dim, device=device
    )
    tensors.load(work)
    return tensors
