"""An agent that thinks, acts and observes (ReAct): its tool searches the notes of the suite."""

import re

from benchmarks.programs.workload import DATA, Case, Workload, load

import umbel
from umbel.frontend_dsl import State

NOTES: dict[str, str] = load("notes")
MAX_SEARCHES = 3
EXAMPLES = (DATA / "agent.txt").read_text(encoding="utf-8")
QUESTIONS = [
    ("How high is the Eiffel Tower?", "330"),
    ("Who noticed in 1928 that a mould killed bacteria?", "Fleming"),
    ("How deep is Lake Baikal?", "1642"),
    ("Who was the first to walk on the Moon?", "Armstrong"),
]


def words(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 2}


@umbel.tool(pure=True)
def search(query: str) -> str:
    """The sentence of the notes that has most of the query's words, behind its note's title."""
    wanted = words(query)
    sentences = [
        f"{title}: {sentence}"
        for title, note in NOTES.items()
        for sentence in re.split(r"(?<=\.) ", note)
    ]
    best = max(sentences, key=lambda sentence: (len(wanted & words(sentence)), -len(sentence)))
    return best if wanted & words(best) else "Nothing was found."


@umbel.program(temperature=0.0)
def agent(s: State, question: str) -> str:
    s += EXAMPLES
    s += f"Question: {question}\n"
    for step in range(MAX_SEARCHES + 1):
        s += "Thought:" + umbel.gen(f"thought{step}", max_tokens=24, stop="\n")
        actions = [" search", " finish"] if step < MAX_SEARCHES else [" finish"]
        s += "\nAction:" + umbel.gen(f"action{step}", choices=actions, max_tokens=4)
        s += "\nInput:" + umbel.gen(f"input{step}", max_tokens=16, stop="\n")
        if s[f"action{step}"] == " finish":
            break
        s += f"\nObservation: {search(s[f'input{step}'])}\n"
    return s[f"input{step}"].strip()


WORKLOAD = Workload(
    "agent with a search tool (ReAct)",
    agent,
    [Case({"question": question}, answer) for question, answer in QUESTIONS],
    is_valid=lambda result: isinstance(result, str) and "\n" not in result,
    is_right=lambda expected, result: expected in result,
)
