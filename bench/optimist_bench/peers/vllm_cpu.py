"""vLLM on CPU, in this process."""

import os
from collections.abc import Sequence
from typing import Any

from optimist_bench.peers.process import Engine, Setup, TokenIds, in_batches


class Vllm:
    """`LLM.generate`; a batch takes new prompts as soon as others have ended."""

    def __init__(self, model: Any, sampling: Any, max_concurrency: int) -> None:
        """Prepares to answer."""
        self._model = model
        self._sampling = sampling
        self._max_concurrency = max_concurrency

    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers all at once if as many as the engine runs are asked for, else in batches."""
        size = len(prompts) if concurrency == self._max_concurrency else concurrency
        answers: list[TokenIds] = []
        for batch in in_batches(prompts, size):
            results = self._model.generate(
                [{"prompt_token_ids": prompt} for prompt in batch], self._sampling, use_tqdm=False
            )
            answers += [list(result.outputs[0].token_ids) for result in results]
        return answers


def load(setup: Setup) -> Engine:
    """Loads the model."""
    # Read when vllm is imported.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM, SamplingParams

    model = LLM(
        model=setup.model,
        dtype="float32",
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_concurrency,
        enforce_eager=True,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=setup.max_tokens, detokenize=False)
    return Vllm(model, sampling, setup.max_concurrency)
