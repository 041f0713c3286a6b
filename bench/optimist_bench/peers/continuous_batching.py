"""transformers' continuous batching, with a manager that stays between calls."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from optimist_bench.peers.generate import load_model
from optimist_bench.peers.process import Engine, Setup, TokenIds

PAGE_SIZE = 256
POLL_SECONDS = 1.0


class ContinuousBatching:
    """Keeps up to `concurrency` requests running; a new one comes as soon as one has ended."""

    def __init__(self, model: Any, setup: Setup) -> None:
        """Starts the manager, which sizes itself by all free memory unless it gets a size."""
        pages = -(-setup.max_model_len // PAGE_SIZE)
        self._end_token_id = int(model.generation_config.eos_token_id)
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                do_sample=False,
                eos_token_id=self._end_token_id,
                pad_token_id=self._end_token_id,
                max_new_tokens=setup.max_tokens,
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=pages * setup.max_concurrency,
                max_batch_tokens=setup.max_model_len,
                allow_block_sharing=False,
            ),
        )
        self._manager.start()
        self._max_tokens = setup.max_tokens

    @torch.inference_mode()
    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers all prompts."""
        left = list(enumerate(prompts))[::-1]
        numbers: dict[str, int] = {}
        answers: dict[int, TokenIds] = {}
        while len(answers) < len(prompts):
            while left and len(numbers) - len(answers) < concurrency:
                number, prompt = left.pop()
                added = self._manager.add_request(prompt, max_new_tokens=self._max_tokens)
                numbers[added] = number
            result = self._manager.get_result(timeout=POLL_SECONDS)
            if result is None and not self._manager.is_running():
                raise RuntimeError("the manager has ended")
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                answers[numbers[result.request_id]] = list(result.generated_tokens)
        return [answers[number] for number in range(len(prompts))]


def load(setup: Setup) -> Engine:
    """Loads the model and starts its manager."""
    return ContinuousBatching(load_model(setup), setup)
