"""Executes the plans of the scheduler on a device, or on several: `runtime.runner` for GPUs.

`execute` returns as soon as everything is enqueued. What the host does next, filling masks above
all, runs beside the step; `prepare_next` uses the rest of that time.
"""

from subprocess import Popen

from torch import Tensor

from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.step_input import make_step_input
from umbel.runtime.device.work_planner import WorkPlanner
from umbel.runtime.device.workers import Workers
from umbel.runtime.step import StepPlan


class DeviceRunner:
    """Rank 0. Called by the engine's thread."""

    def __init__(
        self,
        executor: StepExecutor,
        planner: WorkPlanner,
        *,
        block_size: int,
        workers: Workers | None = None,
    ) -> None:
        """workers: the other ranks, told of each step before this one takes part in it."""
        self.executor = executor
        self.planner = planner
        self._block_size = block_size
        self._workers = workers

    @property
    def processes(self) -> "list[Popen[bytes]]":
        """Those of the other ranks."""
        return [] if self._workers is None else self._workers.processes

    def execute(self, plan: StepPlan) -> Tensor:
        """Enqueue a step. Returns the logits of the wanted rows on the device, in the plan's order:
        [W, V], valid until the next step; W may be 0. Raises `EngineError` once a rank has ended.
        """
        step = make_step_input(plan, self.planner, self._block_size)
        if self._workers is None:
            return self.executor.execute(step)
        self._workers.send(step)
        try:
            return self.executor.execute(step)
        except Exception as exc:
            raise self._workers.ended(exc) from exc

    def prepare_next(self) -> None:
        """What can be done for the next step before its plan is known; the device computes
        meanwhile."""
        self.planner.prepare_next()
