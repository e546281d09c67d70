"""What bfloat16 and `quantize="int8"` cost in exactness, on text, against float32.

    python benchmarks/quantization.py [--model PATH] [--tokens N]

Scores the texts of `benchmarks/programs/data` with the same weights in three ways, and prints the
mean negative log-likelihood of a token, how far its log-probability moves, and how often the token
that is likeliest in float32 is the likeliest too.
"""

import argparse
import statistics
from pathlib import Path

from umbel.runtime.engine import Engine

DATA = Path(__file__).parent / "programs" / "data"
WAYS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, int8 rows": {"dtype": "bfloat16", "quantize": "int8"},
}
_CHUNK = 512  # tokens scored at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder or .gguf file; the embedded model by default")
    parser.add_argument("--tokens", type=int, default=4096)
    args = parser.parse_args()
    scores = {name: score_texts(args.model, args.tokens, way) for name, way in WAYS.items()}
    exact = scores["float32"]
    print(f"{len(exact)} tokens of {DATA.name}/*.txt; log-probabilities against float32")
    print(f"{'':22}{'mean -log p':>12}{'moved, mean':>13}{'moved, max':>12}{'same likeliest':>16}")
    for name, found in scores.items():
        moved = [abs(a[0] - b[0]) for a, b in zip(found, exact, strict=True)]
        same = statistics.mean(a[1] == b[1] for a, b in zip(found, exact, strict=True))
        loss = -statistics.mean(logprob for logprob, _ in found)
        print(f"{name:22}{loss:12.4f}{statistics.mean(moved):13.4f}{max(moved):12.3f}{same:16.1%}")


def score_texts(model: str | None, num_tokens: int, way: dict[str, str]) -> list[tuple[float, int]]:
    """Of each token but the first of a chunk: its log-probability, and the likeliest token."""
    found: list[tuple[float, int]] = []
    with Engine(model, **way) as engine:
        text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(DATA.glob("*.txt")))
        ids = engine.tokenizer.encode(text)[:num_tokens]
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            result = engine.generate(chunk, max_tokens=1, temperature=0, prompt_logprobs=1)
            found += [
                (t.logprob, t.top[0][0]) for t in result.completions[0].prompt_logprobs or () if t
            ]
    return found


if __name__ == "__main__":
    main()
