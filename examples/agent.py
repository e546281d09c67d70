"""A tool-choosing agent: `select` picks a tool, a regex shapes its input, Python answers."""

import json
import operator
from pathlib import Path

import umbel
from umbel.frontend_dsl import State

DATA = Path(__file__).parent / "data"
EXAMPLES = (DATA / "tools.txt").read_text(encoding="utf-8")
FACTS: dict[str, str] = json.loads((DATA / "facts.json").read_text(encoding="utf-8"))
UNITS = {"km to miles": 0.621371, "m to feet": 3.28084, "kg to pounds": 2.20462}
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
INPUTS = {  # what the input of each tool looks like; the line end competes with further digits
    "calculate": r" [0-9]{1,9} [+*/-] [1-9][0-9]{0,8}\n",
    "convert": rf" [0-9]{{1,9}} ({'|'.join(UNITS)})\n",
    "lookup": rf" ({'|'.join(FACTS)})\n",
    "answer": r" [A-Za-z0-9 ,./]{1,30}\n",
}
QUESTIONS = [  # each is a conversation, one question a line
    "What is the height of Everest?\nHow many feet are 8849 m?\nWhat is 29032 divided by 2?",
    "What is the depth of Lake Baikal?\nHow many feet are 1642 m?\nWhat is 1642 divided by 2?",
]


@umbel.tool(pure=True)
def use_tool(tool: str, text: str) -> str:
    if tool == "lookup":
        return FACTS[text]
    number, rest = text.split(" ", 1)
    if tool == "convert":
        return f"{float(number) * UNITS[rest]:.2f} {rest.rpartition(' ')[2]}"
    return f"{SIGNS[rest[0]](float(number), float(rest[2:])):g}"


@umbel.program(temperature=0.0)
def agent(s: State, question: str) -> str:
    s += EXAMPLES
    for turn, line in enumerate(question.splitlines()):
        s += f"Question: {line}\n"
        for call in range(3):  # tools per question
            name, argument = f"tool{turn}.{call}", f"input{turn}.{call}"
            s += "Tool:" + umbel.select(name, [f" {t}" for t in INPUTS], method="greedy_token")
            s += "\nInput:" + umbel.gen(argument, regex=INPUTS[s[name].strip()], max_tokens=24)
            if s[name] == " answer":
                break
            s += f"Result: {use_tool(s[name].strip(), s[argument].strip())}\n"
        s += "\n"
    return s[argument].strip()


def main() -> None:
    with umbel.Engine() as engine:
        for state in agent.run_batch(engine, [{"question": question} for question in QUESTIONS]):
            print(state.text().removeprefix(EXAMPLES))


if __name__ == "__main__":
    main()
