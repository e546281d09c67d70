"""A summary of several texts: each is summed up by itself (map), then two by two (reduce)."""

from benchmarks.programs.workload import Case, Workload, fables

import umbel
from umbel.frontend_dsl import State

NUM_TEXTS = 4  # of one summary
TEXTS = list(fables().values())[: 2 * NUM_TEXTS]


def sum_up(branch: State, text: str) -> str:
    branch += umbel.user(f"Say in one sentence what happens.\n\n{text}")
    branch += umbel.assistant(umbel.gen("sentence", max_tokens=32, stop="\n"))
    return branch["sentence"]


def merge(branch: State, left: str, right: str) -> str:
    branch += umbel.user(f"Make one sentence of these two.\n\n{left}\n{right}")
    branch += umbel.assistant(umbel.gen("sentence", max_tokens=32, stop="\n"))
    return branch["sentence"]


@umbel.program(temperature=0.0)
def summary(s: State, texts: list[str]) -> str:
    s += umbel.system("You sum up texts in one short sentence.")
    return s.reduce(merge, s.map(sum_up, texts))


WORKLOAD = Workload(
    "summary of texts (map and reduce)",
    summary,
    [
        Case({"texts": TEXTS[start : start + NUM_TEXTS]})
        for start in range(0, len(TEXTS), NUM_TEXTS)
    ],
    is_valid=lambda result: isinstance(result, str) and result != "",
)
