"""Several edits of one file as one sequence, of which only what teaches is computed.

The file is the common beginning of all its edits, so it is computed once; each edit is a branch
that sees the file and itself. Of an answer most is copied and teaches little: a branch holds the
beginning, the end, what lies around each change and some of the rest, at the positions that they
have in the whole answer. What is left out costs nothing, and is not there to be attended to.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from rapidfuzz.distance import LCSseq
from torch import Tensor

from optimist_common.errors import SetupError
from optimist_training.editing.pairs import Pair
from optimist_training.editing.requests import Request

_BEGINNING, _END, _BEFORE, _AFTER, _ELSEWHERE = 24, 16, 16, 24, 32
"""Tokens of an answer that are computed: around its ends, around a change, and somewhere."""
_UNTAUGHT = 8
"""Tokens at the start of a piece that only lead up to it."""
_SHORT = 128
"""An answer up to this length is computed whole."""


class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    eos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """Returns `input_ids` of a text."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, return_dict: bool
    ) -> Any:
        """Returns the tokens of a conversation."""


@dataclass(slots=True)
class Pack:
    """One sequence of a common beginning and branches."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    """0 of the common beginning, else the number of the branch."""
    targets: list[int] = field(default_factory=list)
    """The token that follows; -100 where it is not taught."""

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns tokens and positions `[1, length]`, which sees which, and targets.

        The third is bool `[1, 1, length, length]`, the last int64 `[length]`.
        """
        branches = torch.tensor(self.branches)
        sees = (branches == 0) | (branches[:, None] == branches)
        length = len(self.token_ids)
        sees &= torch.ones(length, length, dtype=torch.bool).tril()
        tokens, positions = torch.tensor([self.token_ids]), torch.tensor([self.positions])
        parts = (tokens, positions, sees[None, None], torch.tensor(self.targets))
        return tuple(part.to(device) for part in parts)  # type: ignore[return-value]


def pack(
    pairs: Sequence[Pair],
    tokenizer: Tokenizer,
    max_length: int,
    whole_share: float,
    rng: random.Random,
) -> Pack:
    """Returns edits of one file side by side; those that do not fit are left out.

    Args:
        pairs: Edits with the same `before`.
        tokenizer: Of the model, with its chat template.
        max_length: Of the sequence, in tokens.
        whole_share: Of answers that are computed whole, 0 to 1.
        rng: Which, and which pieces of the others.
    """
    prompts, answers, changes = [], [], []
    for pair in pairs:
        request = Request(pair.before, pair.task, pair.path, pair.in_fence)
        message = {"role": "user", "content": request.prompt()}
        prompts.append(
            tokenizer.apply_chat_template([message], add_generation_prompt=True, return_dict=False)
        )
        before, after = (
            tokenizer(request.answer(text), add_special_tokens=False)["input_ids"]
            for text in (pair.before, pair.after)
        )
        changes.append(_changed(before, after))
        answers.append([*after, tokenizer.eos_token_id])
    common = _common_length(prompts)
    result = Pack()
    _extend(result, prompts[0][:common], 0, 0)
    edits = zip(prompts, answers, changes, strict=True)
    for number, (prompt, answer, changed) in enumerate(edits, 1):
        is_whole = len(answer) <= _SHORT or rng.random() < whole_share
        taught = [(0, len(answer))] if is_whole else _pieces(changed, answer, rng)
        size = len(prompt) - common + sum(end - start for start, end in taught)
        if len(result.token_ids) + size > max_length:
            continue
        _extend(result, prompt[common:], common, number)
        result.targets[-1] = answer[0]
        for start, end in taught:
            _extend(result, answer[start:end], len(prompt) + start, number)
            untaught = _UNTAUGHT if start else 0
            wanted = [-100] * untaught + answer[start + untaught + 1 : end + 1]
            targets = wanted + [-100] * (end - start - len(wanted))
            result.targets[len(result.targets) - (end - start) :] = targets
    return result


def packs(
    groups: Sequence[Sequence[Pair]],
    tokenizer: Tokenizer,
    max_length: int,
    whole_share: float,
    seed: int,
) -> Iterator[Pack]:
    """Yields packs without end, each time in another order and of other pieces.

    Raises:
        SetupError: No edit is as short as that.
    """
    rng = random.Random(seed)
    order = list(range(len(groups)))
    while True:
        rng.shuffle(order)
        fits = False
        for number in order:
            group = list(groups[number])
            rng.shuffle(group)
            one = pack(group, tokenizer, max_length, whole_share, rng)
            if any(target >= 0 for target in one.targets):
                fits = True
                yield one
        if not fits:
            raise SetupError(f"--max-length: no edit fits into {max_length} tokens")


def _common_length(prompts: Sequence[list[int]]) -> int:
    """Returns how many tokens all prompts begin with; nothing of a single one is common."""
    if len(prompts) == 1:
        return 0
    columns = enumerate(zip(*prompts, strict=False))
    return next((number for number, column in columns if len(set(column)) > 1), 0)


def _extend(result: Pack, token_ids: list[int], position: int, branch: int) -> None:
    result.token_ids += token_ids
    result.positions += range(position, position + len(token_ids))
    result.branches += [branch] * len(token_ids)
    result.targets += [-100] * len(token_ids)


def _changed(before: list[int], after: list[int]) -> list[tuple[int, int]]:
    """Returns the ranges of `after` that are not copied."""
    codes = LCSseq.opcodes(before, after)
    return [(code.dest_start, code.dest_end) for code in codes if code.tag != "equal"]


def _pieces(
    changed: list[tuple[int, int]], answer: list[int], rng: random.Random
) -> list[tuple[int, int]]:
    """Returns what of an answer is computed, in order and apart from each other."""
    length = len(answer)
    elsewhere = rng.randrange(length - _ELSEWHERE)
    wanted = [
        (0, _BEGINNING),
        (length - _END, length),
        (elsewhere, elsewhere + _ELSEWHERE),
        *((start - _BEFORE, end + _AFTER) for start, end in changed),
    ]
    pieces: list[tuple[int, int]] = []
    for first, last in sorted(wanted):
        start, end = max(first, 0), min(last, length)
        if pieces and start <= pieces[-1][1] + _UNTAUGHT:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], end))
        else:
            pieces.append((start, end))
    return pieces
