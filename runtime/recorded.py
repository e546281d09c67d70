"""The layers of a decoder as one native program, for steps with few rows. Used by the runner.

Recording runs the decoder's own code once, with as many rows as a program may have. What torch
computes meanwhile would be missing in the program, and its results are gone when the program runs:
a model that has such a layer runs as usual. The others compute three rows both ways, to be sure.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from umbel.kernels.attention import AttentionStep
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.attention_tasks import MAX_TASK_QUERIES
from umbel.kernels.kv_cache import KVCache
from umbel.kernels.linear import max_recorded_rows
from umbel.kernels.native import threads
from umbel.kernels.rope import Rotation
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.step_context import StepContext

if threads.is_available():
    from umbel.kernels.native import attention as native_attention
    from umbel.kernels.native import rows as native_rows
    from umbel.kernels.native.program import Program, Recorder, recording

logger = logging.getLogger(__name__)

MAX_ROWS = 128  # beyond, the way from kernel to kernel is a hundredth of a step


def record_layers(model: Decoder, cache: KVCache) -> "RecordedLayers | None":
    """None if this model or this machine has layers that are not native."""
    if not threads.is_available() or model.dtype != torch.bfloat16:
        return None
    max_rows = min([MAX_ROWS, *(max_recorded_rows(product) for product in model.layer_products)])
    if max_rows == 0:
        return None
    group = model.config.num_heads // model.config.num_kv_heads
    if group > MAX_TASK_QUERIES or model.config.head_dim % 32:
        return None  # attention is not native
    layers = RecordedLayers(model, cache, max_rows)
    if not layers.is_whole or not _computes_the_same(layers, model, cache):
        logger.debug("the layers are not recorded: not all of them are native")
        return None
    return layers


def _computes_the_same(layers: "RecordedLayers", model: Decoder, cache: KVCache) -> bool:
    """Bit by bit, for three rows of one sequence. Leaves them in the cache."""
    generator = torch.Generator().manual_seed(0)
    num_rows = min(3, layers.max_rows, cache.num_slots)
    rows = torch.randn(num_rows, model.config.hidden_size, generator=generator).to(model.dtype)
    rotations = model.rotations(torch.arange(num_rows))
    stretch = KeyStretch(0, [(0, num_rows)])
    slots = torch.arange(num_rows)
    step = AttentionStep([QueryRun(0, num_rows)], [], [stretch])
    with torch.inference_mode():
        plain = model.layers(rows.clone(), rotations, StepContext(cache, step, None, slots))
        x, out = layers.run(rows, rotations, step, None, slots)
        return torch.equal(x, plain[0]) and torch.equal(out, plain[1])


class _TorchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether torch computes anything, apart from views and memory without content."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_computed = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's documented flag: else the compiler is imported, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_empty = func is torch.ops.aten.empty.memory_format
        self.has_computed |= not (func.is_view or is_empty)
        return func(*args, **(kwargs or {}))


class RecordedLayers:
    """`run` is `Decoder.layers` for at most `max_rows` rows, if `is_whole`: else torch computed
    something on the way, which the program does not have, and it must not run."""

    def __init__(self, model: Decoder, cache: KVCache, max_rows: int) -> None:
        self.max_rows = max_rows
        recorder = Recorder()
        config = model.config
        self._x = torch.zeros(max_rows, config.hidden_size, dtype=model.dtype)
        self._rotations = [
            Rotation(*(torch.zeros(max_rows, 1, config.head_dim) for _ in range(2)))
            for _ in range(model.num_rotations)
        ]
        self._context = _RecordingContext(recorder, cache)
        with torch.inference_mode(), recording(recorder), _TorchWatch() as watch:
            _, self._out = model.layers(self._x, self._rotations, self._context)
        self.is_whole = not watch.has_computed
        self._program = Program(recorder)
        self._kinds = [
            _Kind(*key, members, self._program.args)
            for key, members in self._context.members.items()
        ]
        self._writes = _as_slice(np.array(self._context.writes))
        self._partial_o = torch.empty(0)
        self._partial_lse = torch.empty(0)

    def run(
        self,
        x: Tensor,
        rotations: Sequence[Rotation],
        step: AttentionStep,
        written_rows: Tensor | None,
        slots: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `Decoder.layers`; the arguments of `StepContext` in place of one. Results last until
        the next call."""
        num_rows = len(x)
        self._x[:num_rows] = x
        for ours, given in zip(self._rotations, rotations, strict=True):
            ours.cos[:num_rows] = given.cos
            ours.sin[:num_rows] = given.sin
        args = self._program.args
        args[self._writes, 1] = len(slots)
        args[self._writes, 11] = slots.data_ptr()
        args[self._writes, 12] = 0 if written_rows is None else written_rows.data_ptr()
        for kind in self._kinds:
            tasks = step.tasks(kind.window, kind.group, kind.num_kv_heads)
            if tasks.table is not None:
                self._reserve(tasks.num_results * kind.num_heads, kind.head_dim)
            kind.fill(args, tasks, self._partial_o, self._partial_lse)
        self._program.run(num_rows)
        return self._x[:num_rows], self._out[:num_rows]

    def _reserve(self, num_results: int, head_dim: int) -> None:
        if num_results > len(self._partial_lse) or num_results * head_dim > len(self._partial_o):
            self._partial_lse = torch.empty(2 * num_results)
            self._partial_o = torch.empty(2 * num_results * head_dim)


class _Kind:
    """The layers whose attention has the same tasks, and where their arguments are."""

    def __init__(
        self,
        window: int | None,
        group: int,
        num_kv_heads: int,
        head_dim: int,
        members: list[tuple[int, int, int]],
        args: "np.ndarray[Any, np.dtype[np.int64]]",
    ) -> None:
        self.window, self.group, self.num_kv_heads = window, group, num_kv_heads
        self.num_heads, self.head_dim = group * num_kv_heads, head_dim
        attends, merges, self._outs = np.array(members, dtype=np.int64).T
        self._attends, self._merges = _as_slice(attends), _as_slice(merges)
        args[self._merges, 3] = self.num_heads
        args[self._merges, 4] = head_dim
        args[self._merges, 8] = self._outs

    def fill(
        self, args: "np.ndarray[Any, np.dtype[np.int64]]", tasks: Any, o: Tensor, lse: Tensor
    ) -> None:
        args[self._attends, 1:5] = native_attention.task_fields(tasks)
        if tasks.table is None:
            args[self._attends, 13] = self._outs
            args[self._attends, 14] = 0
            args[self._merges, 1] = 0  # nothing to merge
            return
        args[self._attends, 13:15] = o.data_ptr(), lse.data_ptr()
        num_rows, width, table = native_attention.merge_fields(tasks)
        args[self._merges, 1:3] = num_rows, width
        args[self._merges, 5:8] = table, o.data_ptr(), lse.data_ptr()


def _as_slice(places: "np.ndarray[Any, np.dtype[np.int64]]") -> Any:
    """The same places as a slice, which is filled in half the time, if their distances are equal:
    they are where all layers are alike."""
    steps = np.unique(np.diff(places))
    if len(steps) != 1:
        return places
    return slice(int(places[0]), int(places[-1]) + 1, int(steps[0]))


class _RecordingContext:
    """The `AttentionContext` of the recording: notes the places of what changes from step to
    step."""

    def __init__(self, recorder: "Recorder", cache: KVCache) -> None:
        self._recorder = recorder
        self._cache = cache
        self.writes: list[int] = []
        # By window, group, KV heads, head size: places of both kernels, address of the result.
        self.members: dict[tuple[int | None, int, int, int], list[tuple[int, int, int]]] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        k_pool, v_pool = self._cache.k[layer], self._cache.v[layer]
        num_kv_heads, head_dim = k_pool.shape[0], k_pool.shape[2]
        group = q.shape[1] // num_kv_heads
        add = self._recorder.add
        write = native_rows.write_args(k, v, k_pool, v_pool)
        self.writes.append(add(native_rows.WRITE, write, None))
        attend = native_attention.attend_args(q, k_pool, v_pool, threads.float_bits(scale))
        out = self._recorder.empty(q.shape, q.dtype)
        places = add(native_attention.ATTEND, attend, None), add(native_attention.MERGE, [], None)
        key = (window, group, num_kv_heads, head_dim)
        self.members.setdefault(key, []).append((*places, out.data_ptr()))
        return out
