"""Executes the plans of the scheduler on a device, or on several: `runtime.runner` for GPUs.

`execute` returns as soon as everything is enqueued. What the host does next, filling masks above
all, runs beside the step; and before its tokens are waited for, the next step is enqueued by guess.
"""

from subprocess import Popen

from torch import Tensor

from umbel.runtime.device.ahead import StepsAhead
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
        ahead: StepsAhead | None = None,
        workers: Workers | None = None,
    ) -> None:
        """ahead: guesses steps; None: nothing is guessed. workers: the other ranks, told of each
        step before this one takes part in it."""
        self.executor = executor
        self.planner = planner
        self.ahead = ahead
        self._block_size = block_size
        self._workers = workers
        self._plan: StepPlan | None = None  # of the last step

    @property
    def processes(self) -> "list[Popen[bytes]]":
        """Those of the other ranks."""
        return [] if self._workers is None else self._workers.processes

    def execute(self, plan: StepPlan) -> Tensor:
        """Enqueue a step. Returns the logits of the wanted rows on the device, in the plan's order:
        [W, V], valid until the next step; W may be 0. Raises `EngineError` once a rank has ended.
        """
        self._plan = plan
        guessed = None if self.ahead is None else self.ahead.take(plan)
        if guessed is not None:
            return guessed
        step = make_step_input(plan, self.planner, self._block_size)
        if self._workers is None:
            return self.executor.execute(step)
        self._workers.send(step)
        try:
            return self.executor.execute(step)
        except Exception as exc:
            raise self._workers.ended(exc) from exc

    def before_wait(self, tokens: Tensor | None) -> None:
        """What is done for the next step while the device computes this one. tokens: [B] int32 on
        the device, one for each of the plan's samples; None: some have none."""
        if self.ahead is not None and self._plan is not None and tokens is not None:
            self.ahead.guess(self._plan, tokens)
        self.planner.prepare_next()

    def after_wait(self, tokens: list[int]) -> None:
        """The same tokens, read."""
        if self.ahead is not None:
            self.ahead.confirm(tokens)
