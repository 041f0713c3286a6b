"""transformers `generate`: alone, with prompt lookup, or with a draft model."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from optimist_bench.peers.process import Engine, Setup, TokenIds, in_batches


def load_model(setup: Setup, directory: str = "") -> Any:
    """Returns the model of the setup, or of another directory, in float32 for inference."""
    torch.set_num_threads(setup.num_threads)
    return load_weights(directory or setup.model, "float32")


def load_weights(directory: str, dtype: str) -> Any:
    """Returns a model for inference, on the CPU.

    Args:
        directory: Of the model.
        dtype: Name of a type of PyTorch, such as bfloat16.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval().requires_grad_(False)


def pad_left(prompts: list[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask [num_prompts, longest] of prompts that end together."""
    longest = max(map(len, prompts))
    token_ids = torch.full((len(prompts), longest), pad_token_id)
    mask = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return token_ids, mask


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
    """Cuts an answer before its end token and the padding after it."""
    if end_token_id in token_ids:
        return token_ids[: token_ids.index(end_token_id)]
    return token_ids


def load(setup: Setup) -> Engine:
    """Loads the model for batches, padded on the left."""
    return Generate(load_model(setup), setup.max_tokens, setup.max_concurrency)


# The fastest of those tried on edits (10 to 100 tokens, n-grams of 1 to 4).
NUM_TOKENS = 40
MAX_NGRAM = 4


def load_prompt_lookup(setup: Setup) -> Engine:
    """Loads the model for prompt lookup, which takes one prompt at a time."""
    return Generate(
        load_model(setup),
        setup.max_tokens,
        most_at_once=1,
        prompt_lookup_num_tokens=NUM_TOKENS,
        max_matching_ngram_size=MAX_NGRAM,
    )


def load_assisted(setup: Setup) -> Engine:
    """Loads the model and a draft model for one prompt at a time; raises ValueError without one."""
    if not setup.draft_model:
        raise ValueError("needs a draft model")
    return Generate(
        load_model(setup),
        setup.max_tokens,
        most_at_once=1,
        assistant_model=load_model(setup, setup.draft_model),
    )
