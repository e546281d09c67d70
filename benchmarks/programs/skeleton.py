"""Skeleton of thought: the points of an answer first, then every point written out at once."""

from benchmarks.programs.workload import Case, Workload

import umbel
from umbel.frontend_dsl import State

NUM_POINTS = 5
QUESTIONS = [
    "How do I prepare for a long hike?",
    "What should a town do to have cleaner air?",
    "How can I learn a language by myself?",
]


EXAMPLE = """1. Mix flour and water
2. Knead the dough
3. Let it rise
4. Form the loaf
5. Bake it
"""


@umbel.program(temperature=0.0)
def write(s: State, question: str) -> list[str]:
    s += umbel.system(f"You give {NUM_POINTS} short points, and explain them when asked to.")
    s += umbel.user("How do I bake bread?")
    s += umbel.assistant(EXAMPLE)
    s += umbel.user(question)
    with s.assistant():
        for number in range(1, NUM_POINTS + 1):
            s += f"{number}." + umbel.gen(f"point{number}", max_tokens=8, stop=["\n", "."]) + "\n"
    points = s.fork(NUM_POINTS)
    for number, point in enumerate(points, 1):
        title = s[f"point{number}"].strip()
        point += umbel.user(f"Say more about this point: {title}")
        with point.assistant():
            point += umbel.gen("text", max_tokens=32, stop="\n")
    return [point["text"].strip() for point in points]


WORKLOAD = Workload(
    "points written out (skeleton of thought)",
    write,
    [Case({"question": question}) for question in QUESTIONS],
    is_valid=lambda result: len(result) == NUM_POINTS,
)
