"""Exact-match rate by kind of edit."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from optimist_training.data.edits import KINDS, Edit
from optimist_training.data.tokenizer import end_token, prompt_of


@dataclass(frozen=True)
class Answer:
    """One edit and how far the model's greedy answer to it is right."""

    edit: Edit
    num_tokens: int
    """Of the expected answer, with the end of turn."""
    num_right: int
    """Tokens before the first wrong one."""
    wrong: str
    """Text of the first wrong token."""

    @property
    def is_exact(self) -> bool:
        """Whether the whole answer is the expected one."""
        return self.num_right == self.num_tokens


@torch.inference_mode()
def answer_edit(model: LlamaForCausalLM, tokenizer: Tokenizer, edit: Edit) -> Answer:
    """Answers greedily: drafts the expected answer and verifies it in one pass.

    As long as every token before was the argmax, the argmax is the next token of greedy decoding;
    so the answer is exact if and only if all expected tokens are.
    """
    prompt = tokenizer.encode(prompt_of(edit.messages())).ids
    expected = [*tokenizer.encode(edit.after).ids, end_token(tokenizer)]
    logits = model(torch.tensor([[*prompt, *expected]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.argmax(dim=-1).tolist()
    pairs = zip(expected, chosen, strict=True)
    right = next((n for n, (wanted, token) in enumerate(pairs) if wanted != token), len(expected))
    wrong = tokenizer.decode(chosen[right : right + 1])
    return Answer(edit, len(expected), right, wrong)


def report(results: Iterable[Answer]) -> dict[str, Any]:
    """Returns the share of exact answers, over all and by kind of edit."""
    everything = list(results)
    of_kind = {kind: [one for one in everything if one.edit.kind == kind] for kind in KINDS}
    return {
        "edits": len(everything),
        "exact_match": _share(everything),
        "exact_match_by_kind": {kind: _share(some) for kind, some in of_kind.items() if some},
        "mean_answer_tokens": round(sum(one.num_tokens for one in everything) / len(everything), 1),
        "largest_answer_tokens": max(one.num_tokens for one in everything),
    }


def _share(some: list[Answer]) -> float:
    return round(sum(one.is_exact for one in some) / len(some), 4)
