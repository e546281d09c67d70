"""JSON out of announcements: the schema is made from the type, the answer is one of its values."""

from typing import Annotated, Literal

import msgspec
from benchmarks.programs.workload import Case, Workload, load, typed

import umbel
from umbel.frontend_dsl import State

Months = Literal[
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
]  # fmt: skip
Short = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]


class Announcement(msgspec.Struct):
    topic: Short
    day: Annotated[int, msgspec.Meta(ge=1, le=31)]
    month: Months
    place: Short


MESSAGES = load("messages")
NUM_SHOTS = 2
EXAMPLES = "".join(
    f"Text: {message['text']}\nJSON:\n{msgspec.json.encode(message['want']).decode()}\n\n"
    for message in MESSAGES[:NUM_SHOTS]
)


@umbel.program(temperature=0.0)
def extract(s: State, text: str) -> Announcement:
    s += EXAMPLES
    s += f"Text: {text}\nJSON:\n"
    s += umbel.gen("announcement", json_schema=Announcement, max_tokens=72)
    return s.json("announcement")


WORKLOAD = Workload(
    "announcements to JSON (extraction)",
    extract,
    [
        Case({"text": message["text"]}, msgspec.convert(message["want"], Announcement))
        for message in MESSAGES[NUM_SHOTS:]
    ],
    is_valid=lambda result: typed(result, Announcement) is not None,
    is_right=lambda expected, result: typed(result, Announcement) == expected,
)
