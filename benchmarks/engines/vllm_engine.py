"""vLLM's CPU build on the workloads of the comparison: single process, all cores, its own Python.

Started by `benchmarks/compare.py` with that Python; `--model` is a Hugging Face folder.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above


class VLLMAdapter:
    def __init__(self, args: argparse.Namespace) -> None:
        from vllm import LLM

        self._llm = LLM(
            args.model,
            dtype=measure.torch_dtype(),
            max_model_len=8192,
            enable_prefix_caching=True,
            structured_outputs_config={"backend": "xgrammar"},
            distributed_executor_backend="uni",
        )

    def can_do(self, name: str) -> bool:
        return not name.startswith("agent")  # over HTTP only

    def watch(self) -> Callable[[], dict[str, Any]]:
        return dict

    def generate(
        self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]
    ) -> list[measure.Answer]:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        params = []
        for count, schema in zip(max_tokens, schemas or [None] * len(prompts), strict=True):
            options: dict[str, Any] = {"ignore_eos": True}
            if schema is not None:
                options = {"structured_outputs": StructuredOutputsParams(json=schema)}
            params.append(SamplingParams(temperature=0, max_tokens=count, **options))
        inputs = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        outputs = [r.outputs[0] for r in self._llm.generate(inputs, params, use_tqdm=False)]
        return [measure.Answer(len(output.token_ids), output.text) for output in outputs]


if __name__ == "__main__":
    measure.main("vllm", VLLMAdapter)
