"""The requests: files to rewrite and questions, each with the tokens of its answer."""

import json
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from optimist_bench.harness.case_text import function, functions
from optimist_bench.harness.pair import make_prompt
from optimist_common.errors import SetupError

WORKLOADS = ("holds", "partly", "never", "nothing", "chat", "mixed")
"""A prediction that holds, one of which half the lines are another file's, one that has nothing to
do with the answer; nothing attached to a file that is rewritten, or to a question; all in turn."""
NUM_TEXTS = 24
_BLOCK_LINES = 4
"""Lines that a prediction that holds partly has right, and as many that follow and are wrong."""


@dataclass(frozen=True)
class Text:
    """A request, and what the model answers."""

    prompt: list[int]
    file: str
    """What the request is about; of a question, a file that has nothing to do with it."""
    output: list[int]


@dataclass(frozen=True)
class Texts:
    """What the workloads are made of."""

    tokenizer: str
    """Path of the tokenizer of all tokens."""
    rewrites: list[Text]
    """Files to rewrite, which their prompts hold."""
    stories: list[Text]
    """Questions, answered at temperature 1."""


@dataclass(frozen=True)
class Case:
    """A request as the scheduler gets it, and what comes out."""

    prompt: "array[int]"
    predicted: "array[int]"
    output: "array[int]"


def load_texts(path: str) -> Texts:
    """Reads recorded texts; raises SetupError if there are none."""
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        kinds = {name: [Text(**each) for each in given[name]] for name in ("rewrites", "stories")}
        return Texts(given["tokenizer"], **kinds)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SetupError(f"--cases: {path} has no recorded texts: {error!r}") from None


def save_texts(texts: Texts, path: str) -> None:
    """Writes texts for `load_texts`."""
    Path(path).write_text(json.dumps(asdict(texts)), encoding="utf-8")


def generate_texts(path: str, tokenizer: Tokenizer) -> Texts:
    """Returns generated texts: a function of each file is another one, one is renamed.

    Stories are tokens by chance, which nothing can foretell.
    """

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    rewrites, stories = [], []
    chance = random.Random(0)  # noqa: S311
    for number in range(NUM_TEXTS):
        before = functions(2 + number % 2, number)
        name = before[0].split("(")[0].removeprefix("def ")
        after = [text.replace(name, f"{name}_again") for text in before]
        after[-1] = function(1000 + number, number)
        file = "".join(before)
        prompt = encode(make_prompt(file, "Python"))
        rewrites.append(Text(prompt, file, encode("".join(after))))
        story = chance.choices(range(tokenizer.get_vocab_size()), k=100 + 10 * (number % 8))
        stories.append(Text(encode(f"Write story {number}."), file, story))
    return Texts(path, rewrites, stories)


def make_cases(texts: Texts, workload: str, tokenizer: Tokenizer) -> list[Case]:
    """Returns the requests of one of WORKLOADS, those of any kind in the same order."""

    def encode(text: str) -> "array[int]":
        return array("i", tokenizer.encode(text, add_special_tokens=False).ids)

    def make(kind: Sequence[Text], find: Callable[[int, Text], str]) -> list[Case]:
        return [
            Case(array("i", text.prompt), encode(find(number, text)), array("i", text.output))
            for number, text in enumerate(kind)
        ]

    def find_partly(number: int, text: Text) -> str:
        other = texts.rewrites[(number + 1) % len(texts.rewrites)]
        return mix_lines(text.file, other.file)

    if workload == "mixed":
        kinds = [make_cases(texts, each, tokenizer) for each in WORKLOADS[:-1]]
        # Each text once: number i is of kind i.
        turns = [
            [kind[number] for number in range(turn, len(kind), len(kinds))]
            for turn, kind in enumerate(kinds)
        ]
        return list(chain.from_iterable(zip(*turns, strict=False)))
    of_rewrites = workload in ("holds", "partly", "nothing")
    kind = texts.rewrites if of_rewrites else texts.stories
    if workload == "partly":
        return make(kind, find_partly)
    is_attached = workload in ("holds", "never")
    return make(kind, lambda _, text: text.file if is_attached else "")


def mix_lines(text: str, other: str) -> str:
    """Returns a text of which every second few lines are those of another one."""
    mixed = text.splitlines(keepends=True)
    others = other.splitlines(keepends=True)
    random.Random(len(mixed)).shuffle(others)  # noqa: S311
    for start in range(_BLOCK_LINES, len(mixed), 2 * _BLOCK_LINES):
        for number in range(start, min(start + _BLOCK_LINES, len(mixed))):
            mixed[number] = others[number % len(others)]
    return "".join(mixed)
