"""vLLM's CPU build on the workloads of the comparison: single process, all cores, its own Python.

Started by `benchmarks/compare.py` with that Python; `--model` is a Hugging Face folder.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above


class VLLMAdapter:
    def __init__(self, args: argparse.Namespace) -> None:
        from vllm import LLM

        self._llm = LLM(
            args.model,
            dtype="bfloat16",
            max_model_len=8192,
            enable_prefix_caching=True,
            structured_outputs_config={"backend": "xgrammar"},
            distributed_executor_backend="uni",
        )

    def can_do(self, name: str) -> bool:
        return True

    def generate(self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]) -> list[int]:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        params = []
        for count, schema in zip(max_tokens, schemas or [None] * len(prompts), strict=True):
            options: dict[str, Any] = {"ignore_eos": True}
            if schema is not None:
                options = {"structured_outputs": StructuredOutputsParams(json=schema)}
            params.append(SamplingParams(temperature=0, max_tokens=count, **options))
        inputs = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in prompts]
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


if __name__ == "__main__":
    measure.main("vllm", VLLMAdapter)
