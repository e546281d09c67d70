"""Typed JSON from text: the constraint is made from the type, and the answer comes back as one."""

from typing import Annotated

import msgspec

import umbel
from umbel.frontend_dsl import State

Name = Annotated[str, msgspec.Meta(max_length=40)]


class Order(msgspec.Struct):
    customer: Name
    city: Name
    quantity: Annotated[int, msgspec.Meta(ge=1, le=99)]
    item: Name


EXAMPLES = """Text: Please send 3 blue mugs to Anna Berg in Oslo.
JSON:
{"customer": "Anna Berg", "city": "Oslo", "quantity": 3, "item": "blue mugs"}

Text: Hello, this is Tom Hale from Leeds, I need 12 desk lamps by tomorrow!
JSON:
{"customer": "Tom Hale", "city": "Leeds", "quantity": 12, "item": "desk lamps"}

Text: 1 rain coat for Mia Costa, Porto. Next month is fine.
JSON:
{"customer": "Mia Costa", "city": "Porto", "quantity": 1, "item": "rain coat"}

"""
TEXTS = [
    "Could you ship 5 garden chairs to Peter Novak in Prague?",
    "Please deliver 2 coffee grinders to Ida Holm in Bergen, it is urgent.",
    "My name is John Park. Please bring 40 paper lanterns to Seoul.",
    "Sara Lind from Malmo would like 7 wool blankets, if you still have them.",
]


@umbel.program(temperature=0.0)
def extract(s: State, text: str) -> Order:
    s += EXAMPLES
    s += f"Text: {text}\nJSON:\n"
    s += umbel.gen("order", json_schema=Order, max_tokens=80)
    order: Order = s.json("order")
    return order


def main() -> None:
    with umbel.Engine() as engine:
        states = extract.run_batch(engine, [{"text": text} for text in TEXTS])
    for text, state in zip(TEXTS, states, strict=True):
        usage = state.meta("order").usage
        print(f"{text}\n  {state.result}")
        print(f"  {usage.num_output_tokens} tokens, {usage.num_forced_tokens} of them forced")


if __name__ == "__main__":
    main()
