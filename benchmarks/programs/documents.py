"""Questions over retrieved notes, which are put in the order in which prompts share most.

A retriever ranks; the order of its documents hardly matters to the model, but much to a prefix
cache: sorted by how often a note was found for any question, prompts begin alike.
"""

from collections import Counter

from benchmarks.programs.tool_agent import words
from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

NOTES: dict[str, str] = load("notes")
NUM_DOCUMENTS = 3
QUESTIONS = [
    ("Which sea does the Nile end in?", "Mediterranean"),
    ("How deep is the deepest lake of the world?", "1642"),
    ("In which year did Hillary and Norgay reach the top of Mount Everest?", "1953"),
    ("How high is Mount Everest?", "8849"),
    ("Where do the White Nile and the Blue Nile meet?", "Khartoum"),
    ("Which animal lives only in Lake Baikal?", "seal"),
    ("How far away is the Moon?", "384400"),
    ("How high is the largest volcano of the solar system?", "22"),
    ("How long is the Great Wall of China?", "21000"),
    ("How high is the Eiffel Tower?", "330"),
]


def retrieve(question: str) -> list[str]:
    """Titles of the notes that have most words of the question, best first."""
    wanted = words(question)
    scores = {title: len(wanted & words(f"{title} {note}")) for title, note in NOTES.items()}
    return sorted(scores, key=lambda title: (-scores[title], title))[:NUM_DOCUMENTS]


def reordered(found: list[list[str]]) -> list[list[str]]:
    """Each list of titles, those that most lists have first."""
    counts = Counter(title for titles in found for title in titles)
    return [sorted(titles, key=lambda title: (-counts[title], title)) for titles in found]


@umbel.program(temperature=0.0)
def answer(s: State, documents: list[str], question: str) -> str:
    s += "Answer the question from the notes, with a few words.\n\n"
    for document in documents:
        s += f"Note: {document}\n\n"
    s += f"Question: {question}\nAnswer:"
    s += umbel.gen("answer", max_tokens=20, stop="\n")
    return s["answer"].strip()


WORKLOAD = Workload(
    "questions over notes (RAG, reordered)",
    answer,
    [
        Case({"documents": [NOTES[title] for title in titles], "question": question}, expected)
        for titles, (question, expected) in zip(
            reordered([retrieve(question) for question, _ in QUESTIONS]), QUESTIONS, strict=True
        )
    ],
    is_valid=lambda result: result != "",
    is_right=lambda expected, result: expected in result,
)
