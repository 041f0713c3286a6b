"""What drafters are trained on: prompts with completions, as tokens."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from optimist_common.errors import SetupError
from optimist_training.data.edits import edits
from optimist_training.data.options import read_json_lines

BUILTIN = "edits"
"""Instead of a file: the generated edits that the bundled model answers."""

_UNSEEN_SHARE = 20
"""One line in so many of a file is kept for the evaluation."""
_BUILTIN_UNSEEN = 140
_BUILTIN_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and what the model is to say to it."""

    token_ids: list[int]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded at the end where causal attention does not see it."""

    token_ids: torch.Tensor
    """`[batch, length]`."""
    wanted: torch.Tensor
    """Bool `[batch, length]`: the token after this one belongs to the completion."""

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.token_ids.numel()


class Data:
    """Examples to train on, in an order that the seed decides, and others to evaluate on."""

    def __init__(self, source: str, model_name: str, seed: int, max_length: int) -> None:
        """Reads the data.

        Args:
            source: A JSONL file or BUILTIN.
            model_name: Whose tokenizer and chat template turn text into tokens.
            seed: Of the order.
            max_length: Longer examples lose their end, in tokens.

        Raises:
            SetupError: The file is missing, or a line of it is none of the known kinds.
        """
        self._seed, self._max_length = seed, max_length
        self._is_builtin = source == BUILTIN
        self._lines: list[tuple[str, dict[str, Any]]] = []
        self._tokenizer: Any = None
        if not self._is_builtin:
            if not Path(source).is_file():
                raise SetupError(f"--data: {source} is no file; give one, or {BUILTIN!r}")
            self._lines = list(read_json_lines(Path(source), "--data"))
            if len(self._lines) < 2:
                raise SetupError(f"--data: {source} has fewer than two lines")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model_name)
        except (OSError, ValueError) as error:
            if self._is_builtin:
                reason = " ".join(str(error).split())[:200]
                raise SetupError(f"--model: {model_name} has no tokenizer: {reason}") from None

    def training(self) -> Iterator[Example]:
        """Yields examples without end, always the same for the same seed."""
        if self._is_builtin:
            for edit in edits("train", self._seed + 1):
                yield self._chat([*edit.messages(), _answer(edit.after)])
        numbers = [n for n in range(len(self._lines)) if not self._is_unseen(n)]
        rng = random.Random(self._seed)
        while True:
            rng.shuffle(numbers)
            for number in numbers:
                yield self._line(number)

    def unseen(self, count: int | None = None) -> list[Example]:
        """Returns the examples that training leaves out, at most `count`."""
        if self._is_builtin:
            chosen = islice(edits("unseen", self._seed), count or _BUILTIN_UNSEEN)
            return [self._chat([*edit.messages(), _answer(edit.after)]) for edit in chosen]
        numbers = [number for number in range(len(self._lines)) if self._is_unseen(number)]
        return [self._line(number) for number in numbers[:count]]

    def commonest(self, count: int) -> list[int]:
        """Returns the tokens that completions have most often, in ascending order.

        They are counted over the file once, or over some generated edits.

        Args:
            count: How many at most; there are fewer if the completions have fewer.
        """
        number = _BUILTIN_COUNTED if self._is_builtin else len(self._lines)
        counts: Counter[int] = Counter()
        for example in islice(self.training(), number):
            counts.update(example.token_ids[example.num_prompt_tokens :])
        return sorted(token_id for token_id, _ in counts.most_common(count))

    def answer_id(self) -> int | None:
        """Returns the token that the chat template puts before answers and nowhere else."""
        if self._tokenizer is None or not self._tokenizer.chat_template:
            return None
        question = [{"role": "user", "content": "?"}]
        before, after = (
            self._tokenizer.apply_chat_template(
                question, add_generation_prompt=asked, return_dict=False
            )
            for asked in (False, True)
        )
        return next((token for token in after[len(before) :] if token not in before), None)

    def _is_unseen(self, number: int) -> bool:
        return number % _UNSEEN_SHARE == _UNSEEN_SHARE - 1 or number == len(self._lines) - 1

    def _line(self, number: int) -> Example:
        where, record = self._lines[number]
        try:
            return self._record(record)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise SetupError(
                f"--data: {where} is none of "
                '{"prompt", "completion"}, {"messages"} and {"token_ids", "num_prompt_tokens"}: '
                f"{type(error).__name__} {error}"
            ) from None

    def _record(self, record: dict[str, Any]) -> Example:
        if "token_ids" in record:
            token_ids = [int(token_id) for token_id in record["token_ids"]]
            return self._cut(token_ids, int(record.get("num_prompt_tokens", 1)))
        if self._tokenizer is None:
            raise SetupError("--data: texts need a tokenizer, which the model does not have")
        if "messages" in record:
            return self._chat(record["messages"])
        prompt = self._tokenizer(str(record["prompt"]))["input_ids"]
        completion = self._tokenizer(str(record["completion"]), add_special_tokens=False)
        return self._cut([*prompt, *completion["input_ids"], *self._end()], len(prompt))

    def _chat(self, messages: list[dict[str, Any]]) -> Example:
        """Returns a conversation whose last message is the completion."""
        prompt: list[int] = self._tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_dict=False
        )
        answer = self._tokenizer(str(messages[-1]["content"]), add_special_tokens=False)
        return self._cut([*prompt, *answer["input_ids"], *self._end()], len(prompt))

    def _end(self) -> list[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [int(end)]

    def _cut(self, token_ids: list[int], num_prompt_tokens: int) -> Example:
        num_prompt_tokens = min(num_prompt_tokens, len(token_ids))
        if num_prompt_tokens < 1:
            raise ValueError("the prompt has no token")
        return Example(token_ids[: self._max_length], num_prompt_tokens)


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def batches(examples: Iterator[Example], num_tokens: int) -> Iterator[Batch]:
    """Yields batches of at most `num_tokens`, padding included; longer ones come alone."""
    chosen: list[Example] = []
    longest = 0
    for example in examples:
        if len(example.token_ids) <= example.num_prompt_tokens:
            continue
        length = max(longest, len(example.token_ids))
        if chosen and length * (len(chosen) + 1) > num_tokens:
            yield batch_of(chosen)
            chosen, length = [], len(example.token_ids)
        chosen.append(example)
        longest = length
    if chosen:
        yield batch_of(chosen)


def batch_of(examples: list[Example]) -> Batch:
    """Returns examples side by side."""
    length = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros(len(examples), length, dtype=torch.int64)
    wanted = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, example in enumerate(examples):
        token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        wanted[row, example.num_prompt_tokens - 1 : len(example.token_ids) - 1] = True
    return Batch(token_ids, wanted)
