"""Few-shot classification by `select`: 40 reviews behind one prompt that is computed once."""

from pathlib import Path

import umbel
from umbel.frontend_dsl import State

LABELS = ["positive", "negative"]
REVIEWS = Path(__file__).parent / "data" / "reviews.tsv"
EXAMPLES = """Each review is either positive or negative.

Review: The staff were lovely and breakfast was excellent.
Sentiment: positive

Review: It broke on the first day and they would not take it back.
Sentiment: negative

Review: I laughed all the way through and would watch it again.
Sentiment: positive

Review: Slow, overpriced and badly made.
Sentiment: negative

"""


@umbel.program
def classify(s: State, review: str) -> str:
    s += EXAMPLES
    s += f"Review: {review}\nSentiment:"
    s += umbel.select("label", [f" {label}" for label in LABELS])
    return s["label"].strip()


def load_reviews() -> list[tuple[str, str]]:
    """(label, review) pairs."""
    lines = REVIEWS.read_text(encoding="utf-8").splitlines()
    return [(label, review) for label, _, review in (line.partition("\t") for line in lines)]


def main() -> None:
    reviews = load_reviews()
    with umbel.Engine() as engine:
        states = classify.run_batch(engine, [{"review": review} for _, review in reviews])
    for (label, review), state in zip(reviews, states, strict=True):
        mark = " " if state.result == label else "x"
        confidence = state.meta("label").distribution[state["label"]]
        print(f"{mark} {state.result:8}  {confidence:4.0%}  {review}")
    right = sum(state.result == label for (label, _), state in zip(reviews, states, strict=True))
    print(f"{right} of {len(reviews)} are right")


if __name__ == "__main__":
    main()
