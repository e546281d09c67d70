"""A thought of bounded length, then an answer: one grammar, whose parts come back by name."""

import umbel
from umbel.frontend_dsl import State

GRAMMAR = r"""
start: "Thought: " thought "Answer: " answer
thought[capture, max_tokens=40, suffix="\n"]: /[^\n]+/
answer[capture]: /[0-9]{1,4}/ UNIT
UNIT: " " ("cm" | "kg" | "days" | "apples")
"""

EXAMPLES = """Question: Tom has 2 apples and buys 3 more. How many has he?
Thought: He had 2 apples and 3 come to them, so 2 + 3 = 5.
Answer: 5 apples

"""
QUESTIONS = [
    "Ann has 4 apples and eats 1. How many are left?",
    "A box weighs 3 kg. How heavy are two of them?",
    "A week has 7 days. How many days do 2 weeks have?",
]


@umbel.program(temperature=0.0)
def answer(s: State, question: str) -> str:
    s += EXAMPLES
    s += f"Question: {question}\n"
    s += umbel.gen("reply", lark=GRAMMAR, max_tokens=80)
    parts = s.meta("reply").captures
    return parts["answer"][0].text


def main() -> None:
    with umbel.Engine() as engine:
        states = answer.run_batch(engine, [{"question": question} for question in QUESTIONS])
    for question, state in zip(QUESTIONS, states, strict=True):
        thought = state.meta("reply").captures["thought"][0]
        print(f"{question}\n  {thought.text}\n  -> {state.result}")


if __name__ == "__main__":
    main()
