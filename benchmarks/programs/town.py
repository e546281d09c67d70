"""People of a small town (generative agents): each rates what happened, plans, goes somewhere."""

from benchmarks.programs.workload import Case, Workload, load

import umbel
from umbel.frontend_dsl import State

TOWN = load("town")
PLACES: list[str] = TOWN["places"]


@umbel.tool(pure=True)
def weightiest(events: list[str], points: list[int]) -> str:
    """The event with the most points."""
    return events[points.index(max(points))]


@umbel.program(temperature=0.0)
def live(s: State, about: str, name: str, events: list[str]) -> tuple[str, str, str]:
    """What mattered most, the plan for the evening, and where it is carried out."""
    s += f"The people of a small town go about their day.\n\n{about}\n"
    ratings = s.fork(len(events))
    for rating, event in zip(ratings, events, strict=True):
        rating += (
            f'\n{name} noticed: "{event}"\nFrom 1 (nothing special) to 9 (it changes a life), '
        )
        rating += f"how much does it matter to {name}?\nAnswer:"
        rating += umbel.gen("points", regex=" [1-9]", max_tokens=3)
    event = weightiest(events, [rating["points"].strip() for rating in ratings])
    s += f"\nToday this happened: {event}\nIn the evening {name} will"
    s += umbel.gen("plan", max_tokens=32, stop=[".", "\n"])
    s += f".\nTo do this, {name} goes to the"
    s += umbel.select("place", PLACES)
    return event, s["plan"].strip(), s["place"].strip()


WORKLOAD = Workload(
    "people of a town (generative agents)",
    live,
    [Case(person) for person in TOWN["people"]],
    is_valid=lambda result: f" {result[2]}" in PLACES and result[1] != "",
)
