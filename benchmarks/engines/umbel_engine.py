"""Umbel on the workloads of the comparison. Started by `benchmarks/compare.py`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above
import workloads

import umbel
from umbel.frontend_dsl import State
from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams


class UmbelAdapter:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def can_do(self, name: str) -> bool:
        return True

    def watch(self) -> Callable[[], dict[str, Any]]:
        """The device's limits are measured when the first watch ends, while nothing runs."""
        before = self.engine.stats()

        def result() -> dict[str, Any]:
            reading = self.engine.gauge_since(before)
            assert reading is not None, "some steps ran"
            split = reading.split
            return {"limit_share": split.bound_s / split.total_s, "limited_by": split.binding}

        return result

    def generate(
        self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]
    ) -> list[measure.Answer]:
        params = [
            SamplingParams(temperature=0, max_tokens=count, json_schema=schema)
            if schema is not None
            else SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
            for count, schema in zip(max_tokens, schemas or [None] * len(prompts), strict=True)
        ]
        answers = []
        for result in self.engine.generate_batch(prompts, params):
            if isinstance(result, UmbelError):
                raise result
            answers.append(measure.Answer(len(result.token_ids), result.text))
        return answers


@umbel.program(temperature=0.0, ignore_eos=True)
def think(s: State, work: Any) -> None:
    """The agent as one program: what the calls share is appended once. All branches of all
    questions are asked for before the first of them is read.
    """
    s += work.system
    judges = s.fork(len(work.questions))
    asked = []
    for judge, question in zip(judges, work.questions, strict=True):
        judge += question
        branches = judge.fork(len(workloads.APPROACHES))
        for branch, approach in zip(branches, workloads.APPROACHES, strict=True):
            branch += approach + umbel.gen("text", max_tokens=work.branch_tokens)
        asked.append((judge, branches))
    for judge, branches in asked:
        texts = [branch["text"] for branch in branches]
        parts = [a + text for a, text in zip(workloads.APPROACHES, texts, strict=True)]
        judge += "\n".join(parts) + workloads.JUDGE
        judge += umbel.gen("verdict", max_tokens=work.judge_tokens)
    judges.join()


def run_agent(adapter: UmbelAdapter, work: workloads.AgentWork) -> int:
    return _num_generated(think.run(adapter.engine, work=work))


def _num_generated(state: State) -> int:
    own = sum(call.usage.num_output_tokens for call in state.calls)
    return own + sum(_num_generated(branch) for branch in state.branches)


def start(args: argparse.Namespace) -> UmbelAdapter:
    return UmbelAdapter(Engine(args.model, num_threads=args.threads))


if __name__ == "__main__":
    measure.main("umbel", start, run_agent)
