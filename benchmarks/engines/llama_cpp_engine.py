"""llama.cpp on the token workloads of the comparison, through llama-cpp-python's low-level API.

Started by `benchmarks/compare.py` with a Python that has it; `--model` is a GGUF file. Requests run
as sequences of one context and are decoded in one batch a step, as its server does; a common prefix
is computed once and shared.
"""

import argparse
import ctypes
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above

_MAX_SEQUENCES, _CONTEXT, _BATCH = 64, 16_384, 2048


@llama_cpp.llama_log_callback
def _be_quiet(level: int, text: bytes, data: int) -> None:
    pass


class LlamaAdapter:
    def __init__(self, args: argparse.Namespace) -> None:
        llama_cpp.llama_log_set(_be_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(args.model.encode(), options)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = _CONTEXT, _BATCH, 512
        params.n_seq_max, params.kv_unified = _MAX_SEQUENCES, True
        params.n_threads = params.n_threads_batch = args.threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def can_do(self, name: str) -> bool:
        return not name.startswith("json") and not name.endswith("warm")

    def generate(self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]) -> list[int]:
        llama_cpp.llama_memory_clear(self._memory, True)
        common = _common_length(prompts) if len(prompts) > 1 else 0
        rows = [(prompts[0][i], i, 0, False) for i in range(common)]
        self._decode(rows)
        for idx in range(1, len(prompts) if common else 0):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, idx, -1, -1)
        rows = [
            (prompt[i], i, idx, i == len(prompt) - 1)
            for idx, prompt in enumerate(prompts)
            for i in range(common, len(prompt))
        ]
        tokens = self._decode(rows)
        for step in range(max(max_tokens) - 1):
            rows = [(tokens[i], len(p) + step, i, True) for i, p in enumerate(prompts)]
            tokens = self._decode(rows)
        return max_tokens

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """rows: token, position, sequence, whether its next token is wanted. Those tokens."""
        chosen: list[int] = []
        for first in range(0, len(rows), _BATCH):
            part, batch = rows[first : first + _BATCH], self._batch
            batch.n_tokens = len(part)
            for i, (token, position, sequence, is_wanted) in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
                batch.seq_id[i][0], batch.logits[i] = sequence, int(is_wanted)
            if llama_cpp.llama_decode(self._context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            for i, row in enumerate(part):
                if row[3]:
                    logits = llama_cpp.llama_get_logits_ith(self._context, i)
                    array = np.ctypeslib.as_array(logits, shape=(self._vocab_size,))
                    chosen.append(int(array.argmax()))
        return chosen


def _common_length(prompts: list[list[int]]) -> int:
    length = 0
    for tokens in zip(*prompts, strict=False):
        if len(set(tokens)) > 1:
            break
        length += 1
    return length


if __name__ == "__main__":
    measure.main("llama.cpp", LlamaAdapter)
