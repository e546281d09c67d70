"""Self-consistency: several sampled ways of reasoning, of which the most frequent answer wins."""

import re

from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

NUM_SAMPLES = 6
EXAMPLES = """Question: A bus has 20 seats. 8 people get on, then 5 more. How many seats are free?
Reasoning: 8 people and 5 more are 13 people. 20 seats less 13 people leave 7 seats.
Answer: 7

Question: One ticket costs 6 coins. What do 4 tickets cost?
Reasoning: 4 tickets cost 4 times 6 coins, which are 24 coins.
Answer: 24

"""


def is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{1,3}", text) is not None


@umbel.tool(pure=True)
def most_frequent(answers: list[str]) -> str:
    """The first of those that were given most often."""
    return max(answers, key=answers.count).strip()


@umbel.program(temperature=0.7)
def vote(s: State, problem: str) -> str:
    s += EXAMPLES
    s += f"Question: {problem}\nReasoning:"
    samples = s.fork(NUM_SAMPLES)
    for seed, sample in enumerate(samples):
        sample += umbel.gen("reasoning", max_tokens=40, stop="\n", seed=seed)
        sample += "\nAnswer:" + umbel.gen("number", regex=" [0-9]{1,3}", max_tokens=5, seed=seed)
    return most_frequent([sample["number"] for sample in samples])


WORKLOAD = Workload(
    "votes on word problems (self-consistency)",
    vote,
    [Case({"problem": problem["text"]}, problem["answer"]) for problem in load("problems")],
    is_valid=is_number,
    is_right=lambda expected, result: int(result) == expected,
)
