"""Conversations of several turns, with short and with long answers."""

from benchmarks.programs.workload import Case, Workload

import umbel
from umbel.frontend_dsl import State

RULES = """You are the assistant of a small public library. Be polite and helpful.
The library is open from Tuesday to Saturday, from ten in the morning to six in the evening.
Books may be kept for four weeks, and may be kept for four more if nobody waits for them.
A card costs nothing for children and ten coins a year for all others.
There is a reading room with eight desks, a corner for children, and a collection of old maps.
Questions about anything else are answered as well as possible."""
SHORT = [
    ["When are you open?", "And on Sundays?", "How many desks are there?", "Thank you!"],
    [
        "How long may I keep a book?",
        "Can I keep it longer?",
        "What does a card cost?",
        "And for my son?",
    ],
    [
        "Do you have old maps?",
        "Where can I read them?",
        "May I take one home?",
        "When do you close?",
    ],
    ["My book is late. What now?", "I am sorry.", "Can I bring it on Monday?", "On Tuesday, then."],
    [
        "I would like to read something funny.",
        "Something shorter?",
        "Who wrote it?",
        "I will take it.",
    ],
    [
        "Is there a room for children?",
        "My daughter is six.",
        "Does she need a card?",
        "Good, see you!",
    ],
]
LONG = [
    ["Tell me a story about a library.", "What happened next?", "How does it end?"],
    ["Explain how paper is made.", "How was it made in old times?", "Which is better?"],
    ["Recommend books about the sea.", "Say more about the first one.", "Who should read it?"],
]


def chat(s: State, turns: list[str], max_tokens: int) -> list[str]:
    s += umbel.system(RULES)
    for number, turn in enumerate(turns):
        s += umbel.user(turn)
        s += umbel.assistant(umbel.gen(f"answer{number}", max_tokens=max_tokens))
    return [s[f"answer{number}"] for number in range(len(turns))]


@umbel.program(temperature=0.0)
def short_chat(s: State, turns: list[str]) -> list[str]:
    return chat(s, turns, max_tokens=12)


@umbel.program(temperature=0.0)
def long_chat(s: State, turns: list[str]) -> list[str]:
    return chat(s, turns, max_tokens=64)


SHORT_WORKLOAD = Workload(
    "conversations, short answers",
    short_chat,
    [Case({"turns": turns}) for turns in SHORT],
    is_valid=lambda result: len(result) == 4,
)
LONG_WORKLOAD = Workload(
    "conversations, long answers",
    long_chat,
    [Case({"turns": turns}) for turns in LONG],
    is_valid=lambda result: len(result) == 3,
)
