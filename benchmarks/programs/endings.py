"""The likeliest of four endings of a story, as in HellaSwag: `select` scores whole sentences."""

from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

STORIES: list[tuple[str, list[str], int]] = load("stories")
NUM_SHOTS = 4
EXAMPLES = "".join(f"{story} {ends[right]}\n\n" for story, ends, right in STORIES[:NUM_SHOTS])


@umbel.program
def endings(s: State, story: str, ends: list[str]) -> str:
    s += EXAMPLES
    s += story
    s += umbel.select("end", ends)
    return s["end"].strip()


WORKLOAD = Workload(
    "story endings (HellaSwag)",
    endings,
    [
        Case({"story": story, "ends": [f" {end}" for end in ends]}, ends[right])
        for story, ends, right in STORIES[NUM_SHOTS:]
    ],
    is_valid=lambda result: any(result in ends for _, ends, _ in STORIES),
    is_right=lambda expected, result: result == expected,
)
