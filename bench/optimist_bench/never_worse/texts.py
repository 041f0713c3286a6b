"""The requests: files to rewrite and questions, each with the tokens of its answer."""

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from optimist_bench.harness.case_text import function, functions
from optimist_bench.harness.pair import Pair, make_prompt
from optimist_common.errors import SetupError

T = TypeVar("T")

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


def make_workload(
    name: str, rewrites: Sequence[T], questions: Sequence[T], files: Sequence[str]
) -> list[tuple[T, str]]:
    """Returns the requests of one of WORKLOADS, each with what is attached to it, perhaps nothing.

    Args:
        name: Of the workload.
        rewrites: Requests to rewrite a file each.
        questions: As many others.
        files: What is rewritten.
    """
    if name == "mixed":
        kinds = [make_workload(each, rewrites, questions, files) for each in WORKLOADS[:-1]]
        # Each text once: number i is of kind i.
        numbers = range(len(files) - len(files) % len(kinds))
        return [kinds[number % len(kinds)][number] for number in numbers]
    attached = [""] * len(files)
    if name in ("holds", "never"):
        attached = list(files)
    elif name == "partly":
        attached = list(map(mix_lines, files, [*files[1:], *files[:1]]))
    requests = questions if name in ("never", "chat") else rewrites
    return list(zip(requests, attached, strict=True))


def make_pairs(texts: Texts, workload: str, tokenizer: Tokenizer) -> list[Pair]:
    """Returns the requests of one of WORKLOADS, those of any kind in the same order."""

    def make(text: Text, attached: str) -> Pair:
        predicted = array("i", tokenizer.encode(attached, add_special_tokens=False).ids)
        return Pair(predicted, array("i", text.prompt), array("i", text.output), {})

    files = [text.file for text in texts.rewrites]
    return [make(*each) for each in make_workload(workload, texts.rewrites, texts.stories, files)]


def mix_lines(text: str, other: str) -> str:
    """Returns a text of which every second few lines are those of another one."""
    mixed = text.splitlines(keepends=True)
    others = other.splitlines(keepends=True)
    random.Random(len(mixed)).shuffle(others)  # noqa: S311
    for start in range(_BLOCK_LINES, len(mixed), 2 * _BLOCK_LINES):
        for number in range(start, min(start + _BLOCK_LINES, len(mixed))):
            mixed[number] = others[number % len(others)]
    return "".join(mixed)
