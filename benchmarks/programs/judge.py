"""A judge of texts: each aspect is looked at by itself, then one verdict is given as JSON."""

from typing import Literal

import msgspec
from benchmarks.programs.workload import Case, Workload, fables, typed

import umbel
from umbel.frontend_dsl import State

ASPECTS = ["the clarity of the text", "the lesson that it teaches", "how well it is told"]
TITLES = ["The Fox and the Grapes", "The Goose with the Golden Eggs", "The Oak and the Reeds"]


class Verdict(msgspec.Struct):
    grade: Literal["A", "B", "C", "D"]
    recommended: bool


@umbel.program(temperature=0.0)
def judge(s: State, text: str) -> tuple[list[str], Verdict]:
    s += umbel.system("You judge short texts, fairly and briefly.")
    s += umbel.user(f"Read this text.\n\n{text}")
    aspects = s.fork(len(ASPECTS))
    for branch, aspect in zip(aspects, ASPECTS, strict=True):
        branch += umbel.user(f"What do you say about {aspect}?")
        with branch.assistant():
            branch += umbel.gen("opinion", max_tokens=32, stop="\n")
        branch += umbel.user("Is that good?")
        branch += umbel.assistant(umbel.select("grade", ["Yes", "No"]))
    opinions = [
        f"{a}: {b['opinion']} ({b['grade']})" for a, b in zip(ASPECTS, aspects, strict=True)
    ]
    s += umbel.user("These are the opinions of three readers.\n" + "\n".join(opinions))
    with s.assistant():
        s += umbel.gen("verdict", json_schema=Verdict, max_tokens=24)
    return [branch["grade"] for branch in aspects], s.json("verdict")


WORKLOAD = Workload(
    "judge of texts (LLM judge)",
    judge,
    [Case({"text": fables()[title]}) for title in TITLES],
    is_valid=lambda result: (
        typed(result[1], Verdict) is not None and set(result[0]) <= {"Yes", "No"}
    ),
)
