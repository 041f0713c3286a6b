"""How many drafts targets accept: of made-up chains, and of the networks beside our model."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from optimist_training.data.edits import Edit
from optimist_training.data.examples import Batch, Example
from optimist_training.data.tokenizer import end_token, prompt_of
from optimist_training.drafters.acceptance import measure
from optimist_training.drafters.draft_training import DraftTrainee
from optimist_training.drafters.eagle_circuit import circuit_head
from optimist_training.drafters.eagle_training import EagleTrainee
from optimist_training.drafters.medusa_training import MedusaTrainee, known_heads
from optimist_training.drafters.target import Lesson, Target, Trainee
from optimist_worker.drafters.heads.eagle import load_eagle

VOCAB = 50


class CountingTarget:
    """Says the number after each token."""

    def teach(self, batch: Batch, layers: object) -> Lesson:
        said = (batch.token_ids + 1) % VOCAB
        empty = torch.zeros(*batch.token_ids.shape, 1)
        return Lesson(batch.token_ids, batch.wanted, empty, empty, empty, said)


class Drafter:
    """Is right at the given offsets of a chain, wherever the chain starts."""

    layers = None

    def __init__(self, *right: bool) -> None:
        self.right = torch.tensor(right)

    def agreement(self, lesson: Lesson, depth: int) -> torch.Tensor:
        return self.right[:depth].expand(*lesson.said.shape, -1)


@pytest.mark.parametrize(
    ("right", "tokens", "counts", "by_depth"),
    [
        # Of 20 answer tokens the prefill emits the first: three passes of 4 + 1, one of the last 4.
        ((True, True, True, True), range(23), [4, 16, 16], [[4, 4]] * 4),
        # Two tokens a pass, and the last draft of all is accepted too.
        ((True, False, True, True), range(23), [10, 36, 10], [[10, 10], [9, 0], [0, 0], [0, 0]]),
        ((False, False), range(23), [19, 37, 0], [[19, 0], [0, 0]]),
        # A chain ends where the target says something else than the data.
        ((True,) * 4, range(18), [3, 12, 12], [[3, 3]] * 4),
        ((True,) * 4, [*range(8), *range(30, 40)], [4, 15, 11], [[4, 3], [3, 3], [3, 3], [2, 2]]),
    ],
)
def test_every_pass_emits_the_drafts_up_to_the_first_wrong_one_and_one_token(
    right: tuple[bool, ...], tokens: Sequence[int], counts: list[int], by_depth: list[list[int]]
) -> None:
    example = Example(list(tokens), 3)
    (result,) = measure(Drafter(*right), CountingTarget(), [example], (len(right),))  # type: ignore[arg-type]
    assert [result.num_passes, result.num_drafted, result.num_accepted] == counts
    assert result.by_depth == by_depth


MODEL = Path("models/tiny-edit")
CODE = """\
def total_price(items, discount):
    total = 0
    for item in items:
        if item.count > 0:
            total += item.price * item.count
    total -= discount
    return round(total, 2)"""
LINES = CODE.split("\n")
EDITS = [
    Edit("repeat", "Repeat the code unchanged.", CODE, CODE),
    Edit(
        "rename", "Rename `total` to `sum_of_all`.", CODE, re.sub(r"\btotal\b", "sum_of_all", CODE)
    ),
    Edit("delete", "Delete line 6.", CODE, "\n".join([*LINES[:5], LINES[6]])),
    Edit("constant", "Change `2` to `15`.", CODE, CODE.replace("2)", "15)")),
    Edit(
        "insert",
        "Insert the line `print(total, discount)` before line 6.",
        CODE,
        "\n".join([*LINES[:5], "    print(total, discount)", *LINES[5:]]),
    ),
]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(str(MODEL))


@pytest.fixture(scope="module")
def answered() -> list[Example]:
    """The edits with their right answers, which are the model's own."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    examples = []
    for edit in EDITS:
        prompt = tokenizer(prompt_of(edit.messages()))["input_ids"]
        answer = tokenizer(edit.after)["input_ids"]
        end = end_token(tokenizer.backend_tokenizer)
        examples.append(Example([*prompt, *answer, end], len(prompt)))
    return examples


def test_the_target_answers_as_it_should(target: Target, answered: list[Example]) -> None:
    shortest = min(answered, key=lambda each: len(each.token_ids))
    asked = Example(shortest.token_ids[: shortest.num_prompt_tokens], shortest.num_prompt_tokens)
    assert (
        target.answer([asked], 12)[0].token_ids == shortest.token_ids[: len(asked.token_ids) + 12]
    )


def accepted(trainee: Trainee, target: Target, examples: list[Example]) -> float:
    (result,) = measure(trainee, target, examples, (8,))
    return result.num_accepted / result.num_passes


def test_the_eagle_head_drafts_whole_edits(target: Target, answered: list[Example]) -> None:
    head = load_eagle(f"{MODEL}-eagle", target.model)
    trainee = EagleTrainee(head, 1, target.model.dtype)
    assert accepted(trainee, target, answered) > 6.5


def test_the_eagle_head_is_what_the_circuit_writes(target: Target) -> None:
    shipped, written = load_eagle(f"{MODEL}-eagle", target.model), circuit_head(target)
    stored = dict(shipped.named_parameters())
    for name, value in written.named_parameters():
        if value.dim() > 1 and name not in ("embed_tokens", "lm_head"):
            assert (stored[name] == value.half().float()).all(), name


def test_the_draft_model_goes_on_copying(target: Target, answered: list[Example]) -> None:
    draft = Target(f"{MODEL}-draft").model.module
    trainee = DraftTrainee(draft, str(MODEL), target.model.dtype)
    assert accepted(trainee, target, answered) > 4.0


def test_the_medusa_heads_say_some_tokens(target: Target, answered: list[Example]) -> None:
    heads = known_heads(target, f"{MODEL}-medusa")
    trainee = MedusaTrainee(target, heads, target.model.dtype)
    assert accepted(trainee, target, answered) > 0.2
