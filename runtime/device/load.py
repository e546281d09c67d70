"""From a configuration to what computes on a device: one rank, or the first of several."""

from collections.abc import Callable
from dataclasses import dataclass

from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.work_split import DeviceRates
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.ahead import StepsAhead
from umbel.runtime.device.collectives import Ranks, open_store
from umbel.runtime.device.decoder import DeviceDecoder
from umbel.runtime.device.group import OneRank
from umbel.runtime.device.machine import Machine, make_machine
from umbel.runtime.device.rank import Rank, load_rank
from umbel.runtime.device.runner import DeviceRunner
from umbel.runtime.device.sampler import DeviceSampler
from umbel.runtime.device.work_planner import WorkPlanner
from umbel.runtime.device.workers import Workers
from umbel.runtime.loading.source import ModelSource


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A loaded model with its pool. `close` ends the other ranks."""

    decoder: DeviceDecoder
    runner: DeviceRunner
    sampler: DeviceSampler
    num_blocks: int
    close: Callable[[], None]


def load_on_device(
    config: EngineConfig,
    source: ModelSource,
    device: str,
    *,
    machine: Machine | None = None,
    backend: Backend | None = None,
) -> OnDevice:
    """Load `source` to "cpu" or "cuda", on `config.tensor_parallel` ranks.

    machine, backend: in place of the device's own, for tests. Raises as `load_rank` does.
    """
    machine = machine or make_machine(device)
    if config.tensor_parallel == 1:
        rank = load_rank(config, source, machine, OneRank(), backend=backend)
        return _assemble(rank, rank.num_blocks(), workers=None)
    group = Ranks(0, config.tensor_parallel, machine.device)
    store = open_store()
    workers = Workers(config, device, store.port, on_failure=group.abort)
    try:
        rank = load_rank(config, source, machine, group, backend=backend)
        num_blocks = min(rank.num_blocks(), workers.wait_until_loaded())
        workers.begin(num_blocks)
        group.connect(store)
        return _assemble(rank, num_blocks, workers)
    except BaseException:
        workers.close()
        raise


def _assemble(rank: Rank, num_blocks: int, workers: Workers | None) -> OnDevice:
    decoder, block_size = rank.decoder, rank.config.block_size
    planner = WorkPlanner(
        decoder.heads, block_size=block_size, windows=decoder.windows, rates=DeviceRates()
    )
    executor = rank.executor(num_blocks)
    ahead = None
    if workers is None and rank.config.steps_ahead:  # the other ranks do not have the tokens
        ahead = StepsAhead(executor, planner, rank.config.max_step_tokens)
    runner = DeviceRunner(executor, planner, block_size=block_size, ahead=ahead, workers=workers)
    sampler = DeviceSampler(rank.machine, beside=runner, backend=rank.backend)
    close = _nothing if workers is None else workers.close
    return OnDevice(decoder, runner, sampler, num_blocks, close)


def _nothing() -> None:
    pass
