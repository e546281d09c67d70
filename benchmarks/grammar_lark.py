"""Time per token of Lark grammars, beside llguidance in the same run if it is installed.

    python benchmarks/grammar_lark.py tokenizer.json[.xz] [--grammar sql]

Per token: fill the mask, advance. Three passes over the texts of every grammar:
cold: the grammar is new to the process (the vocabulary is warmed up, as it is at start);
anew: compiled again, its leaves are known to the vocabulary;
reused: a second request of the same compiled grammar.
CPU time of the thread in microseconds, without automatic garbage collection.
"""

import argparse
import gc
import json
import lzma
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers

from umbel.grammar import Matcher, Vocabulary, compile_lark
from umbel.grammar.warming import warm_up

_GRAMMARS = Path(__file__).parent / "grammars"
_NAMES = ("arithmetic", "sql", "python_like", "json")


class Session(Protocol):
    def mask(self) -> None: ...
    def advance(self, token_id: int) -> bool: ...


@dataclass
class Tokenizer:
    text: str

    def __post_init__(self) -> None:
        self.hf = tokenizers.Tokenizer.from_str(self.text)
        self.size = self.hf.get_vocab_size()
        added = self.hf.get_added_tokens_decoder().items()
        self.special_ids = {token.content: number for number, token in added}
        self.eos_id = min(self.special_ids.values())

    def encode(self, text: str) -> list[int]:
        return list(self.hf.encode(text, add_special_tokens=False).ids)

    def token_bytes(self) -> list[bytes | None]:
        """The texts of a byte-level vocabulary."""
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [value for value in range(256) if value not in printable]
        byte_of = {chr(value): value for value in printable}
        byte_of.update({chr(256 + at): value for at, value in enumerate(others)})
        special = set(self.special_ids.values())
        return [
            None if number in special else bytes(byte_of[c] for c in self.hf.id_to_token(number))
            for number in range(self.size)
        ]


class UmbelSession:
    def __init__(self, matcher: Matcher, row: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        self.matcher = matcher
        self.row = row

    def mask(self) -> None:
        self.matcher.fill_mask(self.row)

    def advance(self, token_id: int) -> bool:
        return self.matcher.advance(token_id)


def umbel_engine(tokenizer: Tokenizer) -> Callable[[str], Callable[[], Session]]:
    vocabulary = Vocabulary(
        tokenizer.token_bytes(), [tokenizer.eos_id], size=tokenizer.size, encode=tokenizer.encode
    )
    row = np.zeros(vocabulary.num_words, np.uint32)
    warm_up(vocabulary)

    def compile_text(text: str) -> Callable[[], Session]:
        constraint = compile_lark(text, vocabulary)
        return lambda: UmbelSession(constraint.start(), row)

    return compile_text


class PeerSession:
    def __init__(self, matcher: Any, row: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        self.matcher = matcher
        self.place = row.ctypes.data, row.nbytes

    def mask(self) -> None:
        self.matcher.unsafe_compute_mask_ptr(*self.place)

    def advance(self, token_id: int) -> bool:
        return bool(self.matcher.consume_token(token_id))


def peer_engine(tokenizer: Tokenizer) -> Callable[[str], Callable[[], Session]] | None:
    try:
        import llguidance
    except ImportError:
        print("llguidance is not installed: its columns are left out")
        return None
    its = llguidance.LLTokenizer(tokenizer.text, n_vocab=tokenizer.size, eos_token=tokenizer.eos_id)
    row = np.zeros((tokenizer.size + 31) // 32, np.int32)

    def compile_text(text: str) -> Callable[[], Session]:
        matcher = llguidance.LLMatcher(its, llguidance.LLMatcher.grammar_from_lark(text))
        assert not matcher.is_error(), matcher.get_error()
        return lambda: PeerSession(matcher.deep_copy(), row)

    return compile_text


def timed(start: Callable[[], Session], texts: list[list[int]]) -> tuple[list[float], int]:
    """Microseconds of every token, and how many tokens were refused."""
    clock = time.thread_time_ns
    times, num_refused = [], 0
    for tokens in texts:
        session = start()
        for token_id in tokens:
            before = clock()
            session.mask()
            allowed = session.advance(token_id)
            times.append((clock() - before) / 1e3)
            if not allowed:
                num_refused += 1
                break
    return times, num_refused


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "tokenizer", type=Path, help="tokenizer.json of a byte-level vocabulary, also .xz"
    )
    parser.add_argument("--grammar", action="append", choices=_NAMES)
    options = parser.parse_args()
    opened = lzma.open if options.tokenizer.suffix == ".xz" else open
    with opened(options.tokenizer, "rt", encoding="utf-8") as file:
        tokenizer = Tokenizer(file.read())
    engines = {"umbel": umbel_engine(tokenizer)}
    peer = peer_engine(tokenizer)
    if peer is not None:
        engines["llguidance"] = peer
    gc.collect()
    gc.freeze()
    gc.disable()
    print(
        f"{'grammar':12} {'engine':11} {'tokens':>6} {'compile ms':>10}  "
        "cold avg/p50/max      anew avg  reused avg"
    )
    for name in options.grammar or _NAMES:
        measure(name, engines, tokenizer)


def measure(
    name: str, engines: dict[str, Callable[[str], Callable[[], Session]]], tokenizer: Tokenizer
) -> None:
    text = (_GRAMMARS / f"{name}.lark").read_text()
    samples = json.loads((_GRAMMARS / "texts" / f"{name}.json").read_text())
    texts = [tokenizer.encode(sample) for sample in samples]
    averages: dict[str, list[float]] = {}
    for engine, compile_text in engines.items():
        before = time.thread_time_ns()
        start = compile_text(text)
        compile_ms = (time.thread_time_ns() - before) / 1e6
        cold, num_refused = timed(start, texts)
        anew, _ = timed(compile_text(text), texts)
        reused, _ = timed(start, texts)
        averages[engine] = [float(np.mean(times)) for times in (cold, anew, reused)]
        print(
            f"{name:12} {engine:11} {len(cold):6} {compile_ms:10.1f}  "
            f"{np.mean(cold):8.1f} {np.median(cold):6.1f} {np.max(cold):8.0f}  "
            f"{np.mean(anew):8.1f}  {np.mean(reused):8.2f}"
            + (f"  {num_refused} texts refused" if num_refused else "")
        )
    if "llguidance" in averages:
        ratios = [a / b for a, b in zip(averages["umbel"], averages["llguidance"], strict=True)]
        print(
            f"{'':12} {'ratio':11} cold {ratios[0]:.2f}x  anew {ratios[1]:.2f}x  "
            f"reused {ratios[2]:.3f}x"
        )


if __name__ == "__main__":
    main()
