"""transformers `generate`: a batch at a time, padded on the left."""

from collections.abc import Sequence
from typing import Any

import torch

from optimist_bench.peers.engine import Engine, Setup, TokenIds, in_batches
from optimist_bench.peers.transformers_model import load_model, pad_left


class Generate:
    """`model.generate`, greedy, with further options that make it speculate."""

    def __init__(self, model: Any, max_tokens: int, most_at_once: int, **options: Any) -> None:
        """Prepares to answer up to `most_at_once` prompts in a batch."""
        self._model = model
        self._most_at_once = most_at_once
        self._options = {
            "max_new_tokens": max_tokens,
            "do_sample": False,
            "use_cache": True,
            **options,
        }
        self._end_token_id = int(model.generation_config.eos_token_id)

    @torch.inference_mode()
    def answer(self, prompts: Sequence[TokenIds], concurrency: int) -> list[TokenIds]:
        """Answers in batches."""
        size = min(concurrency, self._most_at_once)
        return [each for batch in in_batches(prompts, size) for each in self._answer(batch)]

    def _answer(self, batch: list[TokenIds]) -> list[TokenIds]:
        token_ids, mask = pad_left(batch, self._end_token_id)
        output = self._model.generate(
            token_ids, attention_mask=mask, pad_token_id=self._end_token_id, **self._options
        )
        answers: list[TokenIds] = output[:, token_ids.shape[1] :].tolist()
        return [_until(answer, self._end_token_id) for answer in answers]


def _until(token_ids: TokenIds, end_token_id: int) -> TokenIds:
    """Cuts an answer before its end token and the padding behind it."""
    if end_token_id in token_ids:
        return token_ids[: token_ids.index(end_token_id)]
    return token_ids


def load(setup: Setup) -> Engine:
    """Loads the model."""
    return Generate(load_model(setup), setup.max_tokens, setup.max_concurrency)
