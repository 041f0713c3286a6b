"""transformers `generate` for requests whose text is streamed while it comes."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

TokenIds = list[int]
# The fastest of those tried on rewritten files with SmolLM2-135M on two cores (10, 20, 40 tokens).
_LOOKUP = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 4}


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


def pad_left(prompts: list[TokenIds], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and attention mask [num_prompts, longest] of prompts that end together."""
    longest = max(map(len, prompts))
    token_ids = torch.full((len(prompts), longest), pad_token_id)
    mask = torch.zeros((len(prompts), longest), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        token_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return token_ids, mask


@dataclass(frozen=True)
class Piece:
    """What a request's stream says next."""

    text: str = ""
    num_tokens: int = 0
    """Of the answer so far, its end token included."""
    finish_reason: str | None = None
    """`stop` or `length` in the last piece; `error` if the text says what went wrong."""


@dataclass
class Request:
    """A prompt whose answer is streamed."""

    token_ids: TokenIds
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    """Of the whole batch, if it is the first in it."""
    pieces: "queue.SimpleQueue[Piece]" = field(default_factory=queue.SimpleQueue)


class _Answer:
    """The answer of one row of a batch."""

    def __init__(self, request: Request, tokenizer: Any, end_token_ids: frozenset[int]) -> None:
        self._request = request
        self._tokenizer = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._end_token_ids = end_token_ids
        self._num_tokens = 0
        self._has_ended = False

    def extend(self, token_ids: Sequence[int]) -> None:
        """Streams the text of further tokens; what follows the end is padding."""
        text, reason = "", None
        for token_id in token_ids:
            if self._has_ended:
                break
            self._num_tokens += 1
            text += self._decoder.step(self._tokenizer, token_id) or ""
            if token_id in self._end_token_ids:
                reason = "stop"
            elif self._num_tokens == self._request.max_tokens:
                reason = "length"
            self._has_ended = reason is not None
        if text or reason:
            self._request.pieces.put(Piece(text, self._num_tokens, reason))


class _Streamer(BaseStreamer):  # type: ignore[misc, unused-ignore]
    """Hands each row's new tokens to its answer."""

    def __init__(self, answers: list[_Answer]) -> None:
        self._answers = answers
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Takes the prompts first, then a token of each row, or several of a single row."""
        if self._is_prompt:
            self._is_prompt = False
        elif len(self._answers) == 1:
            self._answers[0].extend(value.flatten().tolist())
        else:
            for answer, token_id in zip(self._answers, value.tolist(), strict=True):
                answer.extend([token_id])

    def end(self) -> None:
        """Does nothing: each answer knows where it ends."""


class GenerateStream:
    """`model.generate`, greedy, a batch at a time; with prompt lookup one request at a time."""

    def __init__(self, directory: str, dtype: str, batch_size: int, *, with_lookup: bool) -> None:
        """Loads model and tokenizer; raises OSError or ValueError if it cannot."""
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.batch_size = 1 if with_lookup else batch_size
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = load_weights(directory, dtype).to(device)
        self._options: dict[str, Any] = {"use_cache": True, **(_LOOKUP if with_lookup else {})}
        ends = self._model.generation_config.eos_token_id
        self._end_token_ids = frozenset(ends if isinstance(ends, list) else [ends])

    @torch.inference_mode()
    def answer(self, requests: Sequence[Request]) -> None:
        """Answers requests in one batch, padded on the left; each gets a last piece.

        Args:
            requests: All of the same temperature.
        """
        pad_token_id = min(self._end_token_ids)
        token_ids, mask = pad_left([request.token_ids for request in requests], pad_token_id)
        temperature = requests[0].temperature
        sampling: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            torch.manual_seed(requests[0].seed)
            sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        answers = [_Answer(each, self.tokenizer, self._end_token_ids) for each in requests]
        self._model.generate(
            token_ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            pad_token_id=pad_token_id,
            max_new_tokens=max(request.max_tokens for request in requests),
            streamer=_Streamer(answers),
            **self._options,
            **sampling,
        )
