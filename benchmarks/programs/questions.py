"""Few-shot questions with four answers, as in MMLU: five solved ones of the subject come first."""

from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

LETTERS = "ABCD"
NUM_SHOTS = 5
SUBJECTS: dict[str, list[tuple[str, list[str], str]]] = load("questions")


@umbel.program(temperature=0.0)
def questions(s: State, examples: str, question: str) -> str:
    s += examples
    s += question
    s += umbel.gen("answer", choices=[f" {letter}" for letter in LETTERS], max_tokens=2)
    return s["answer"].strip()


def spell(question: str, answers: list[str]) -> str:
    lines = [f"{letter}. {answer}" for letter, answer in zip(LETTERS, answers, strict=True)]
    return "\n".join([f"Question: {question}", *lines, "Answer:"])


def solved(subject: str) -> str:
    head = f"These are questions about {subject}, each with four answers.\n\n"
    shots = SUBJECTS[subject][:NUM_SHOTS]
    return head + "".join(f"{spell(text, answers)} {right}\n\n" for text, answers, right in shots)


def cases() -> list[Case]:
    """Subjects take turns, so that those that share examples do not stand side by side."""
    return [
        Case({"examples": solved(subject), "question": spell(text, answers)}, right)
        for turn in range(NUM_SHOTS, min(map(len, SUBJECTS.values())))
        for subject, (text, answers, right) in ((name, SUBJECTS[name][turn]) for name in SUBJECTS)
    ]


WORKLOAD = Workload(
    "few-shot questions (MMLU)",
    questions,
    cases(),
    is_valid=lambda result: result in LETTERS,
    is_right=lambda expected, result: result == expected,
)
