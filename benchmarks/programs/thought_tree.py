"""Tree of thought on word problems: ways to begin are tried and rated, the best are worked out."""

from benchmarks.programs.voting import is_number, most_frequent
from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

BEGINNINGS = ["First, we write down what is given:", "We go step by step:", "We make an equation:"]
NUM_KEPT = 2
FINISHES = ["Put together:", "To check it:"]


@umbel.program(temperature=0.0)
def solve(s: State, problem: str) -> str:
    s += umbel.system("You solve word problems. Be short.")
    s += umbel.user(problem)
    ways = s.fork(len(BEGINNINGS))
    for way, beginning in zip(ways, BEGINNINGS, strict=True):
        with way.assistant():
            way += beginning + umbel.gen("steps", max_tokens=32, stop="\n\n")
        way += umbel.user("Is this a good way to solve the problem? Answer yes or no.")
        way += umbel.assistant(umbel.select("good", ["Yes", "No"]))
    kept = umbel.best(ways, NUM_KEPT, key=lambda way: way.meta("good").distribution["Yes"])
    numbers = []
    for way in kept:
        way += umbel.user("Finish it and say the number that was asked for.")
        for end, finish in zip(way.fork(len(FINISHES)), FINISHES, strict=True):
            with end.assistant():
                end += finish + umbel.gen("rest", max_tokens=16, stop="\n")
                end += "\nThe answer is" + umbel.gen("number", regex=" [0-9]{1,3}", max_tokens=5)
            numbers.append(end["number"])
    return most_frequent(numbers)


WORKLOAD = Workload(
    "word problems (tree of thought)",
    solve,
    [Case({"problem": problem["text"]}, problem["answer"]) for problem in load("problems")[:2]],
    is_valid=is_number,
    is_right=lambda expected, result: int(result) == expected,
)
