"""llama.cpp on the workloads of the comparison, through llama-cpp-python's low-level API.

Started by `benchmarks/compare.py` with a Python that has it; `--model` is a GGUF file. Requests run
as sequences of one context and are decoded in one batch a step, as its server does; a common prefix
is computed once and shared. The agent's calls are batched likewise, all branches and then all
judges, without HTTP: llama-cpp-python's own server answers one request at a time.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above
import workloads

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
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)

    def can_do(self, name: str) -> bool:
        is_served = name.startswith("http") or name == "agent_program"
        return not (is_served or name.startswith("json") or name.endswith("warm"))

    def watch(self) -> Callable[[], dict[str, Any]]:
        return dict

    def generate(
        self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]
    ) -> list[measure.Answer]:
        is_text = isinstance(prompts[0], str)
        if is_text:
            prompts = [self._encode(prompt) for prompt in prompts]
        outputs = self._generate(prompts, max_tokens)
        return [measure.Answer(len(ids), self._text(ids) if is_text else "") for ids in outputs]

    def _generate(self, prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        llama_cpp.llama_memory_clear(self._memory, True)
        common = _common_length(prompts) if len(prompts) > 1 else 0
        self._decode([(prompts[0][i], i, 0, False) for i in range(common)])
        for idx in range(1, len(prompts) if common else 0):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, idx, -1, -1)
        rows = [
            (prompt[i], i, idx, i == len(prompt) - 1)
            for idx, prompt in enumerate(prompts)
            for i in range(common, len(prompt))
        ]
        outputs = [[token] for token in self._decode(rows)]
        while True:
            open_idxs = [i for i, ids in enumerate(outputs) if len(ids) < max_tokens[i]]
            if not open_idxs:
                return outputs
            rows = [
                (outputs[i][-1], len(prompts[i]) + len(outputs[i]) - 1, i, True) for i in open_idxs
            ]
            for i, token in zip(open_idxs, self._decode(rows), strict=True):
                outputs[i].append(token)

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

    def _encode(self, text: str) -> list[int]:
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            self._vocabulary, data, len(data), room, len(room), False, True
        )
        if count < 0:
            raise RuntimeError("llama_tokenize failed")
        return list(room[:count])

    def _text(self, token_ids: list[int]) -> str:
        pieces = []
        piece = ctypes.create_string_buffer(256)
        for token_id in token_ids:
            size = llama_cpp.llama_token_to_piece(
                self._vocabulary, token_id, piece, len(piece), 0, False
            )
            pieces.append(piece.raw[: max(0, size)])
        return b"".join(pieces).decode(errors="replace")


def _common_length(prompts: list[list[int]]) -> int:
    """Tokens that all prompts begin with; each keeps one of its own."""
    length = 0
    for tokens in zip(*[prompt[:-1] for prompt in prompts], strict=False):
        if len(set(tokens)) > 1:
            break
        length += 1
    return length


def run_agent(adapter: LlamaAdapter, work: workloads.AgentWork) -> int:
    prompts = [
        work.branch(q, approach) for q in work.questions for approach in workloads.APPROACHES
    ]
    branches = adapter.generate(prompts, [work.branch_tokens] * len(prompts), [])
    texts = [answer.text for answer in branches]
    width = len(workloads.APPROACHES)
    judged = [
        work.judge(q, texts[width * i : width * (i + 1)]) for i, q in enumerate(work.questions)
    ]
    verdicts = adapter.generate(judged, [work.judge_tokens] * len(judged), [])
    return sum(answer.num_tokens for answer in branches + verdicts)


if __name__ == "__main__":
    measure.main("llama.cpp", LlamaAdapter, run_agent)
