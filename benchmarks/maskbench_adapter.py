"""Umbel as an engine of the mask benchmark: `--engine benchmarks.maskbench_adapter:Engine`.

The harness draws schemas, feeds instances token by token and times `mask` and `advance`. What it
needs of a tokenizer is what `Tok` below names. Options (`--opt name=value`) go to
`compile_json_schema` as they are.
"""

import gc
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from umbel.grammar import (
    Constraint,
    GrammarError,
    UnsatisfiableGrammar,
    Vocabulary,
    compile_json_schema,
    warm_up,
)
from umbel.grammar.pushdown.reading import MaskRow

_COLLECT_AFTER = 200_000  # new objects


class Tok(Protocol):
    vocab_size: int
    eos_id: int
    token_bytes: list[bytes]
    special_ids: set[int]

    def encode(self, text: str) -> list[int]: ...


class Unsupported(Exception):
    """A schema that is refused on purpose."""


class Unsatisfiable(Unsupported):
    """A schema without instances."""


class Engine:
    """Compiles schemas for one tokenizer. The vocabulary's tables are made here, outside of what is
    timed.

    Garbage is collected as a server does it: between requests (`reset`), never within a step.
    """

    name = "umbel"
    version = version("umbel")

    def __init__(self, tok: Tok, **options: Any) -> None:
        self._options = options
        texts = [
            None if i in tok.special_ids or not text else text
            for i, text in enumerate(tok.token_bytes)
        ]
        self._vocabulary = Vocabulary(texts, [tok.eos_id], size=tok.vocab_size, encode=tok.encode)
        self._row = np.zeros(self._vocabulary.num_words, np.uint32)
        warm_up(self._vocabulary)
        gc.collect()
        gc.freeze()
        gc.disable()

    def compile(self, schema: Any) -> "Session":
        try:
            constraint = compile_json_schema(schema, self._vocabulary, **self._options)
        except UnsatisfiableGrammar as exc:
            raise Unsatisfiable(str(exc)) from exc
        except GrammarError as exc:
            raise Unsupported(str(exc)) from exc
        return Session(constraint, self._row)


class Session:
    def __init__(self, constraint: Constraint, row: MaskRow) -> None:
        self._constraint = constraint
        self._row = row
        self._matcher = constraint.start()

    def mask(self) -> MaskRow:
        self._matcher.fill_mask(self._row)
        return self._row

    def advance(self, token_id: int) -> bool:
        return self._matcher.advance(token_id)

    def accepting(self) -> bool:
        return self._matcher.accepting

    def reset(self) -> None:
        if gc.get_count()[0] > _COLLECT_AFTER:
            gc.collect()
        self._matcher = self._constraint.start()

    def forced(self) -> list[int]:
        return self._matcher.forced()

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
