"""The requests that are simulated: their prediction or prompt, and what the model emits."""

import re
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from rapidfuzz.distance import LCSseq
from tokenizers import Tokenizer

from optimist_aligner.text.sources import Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_common.errors import SetupError
from optimist_training.data.options import read_json_lines

SOURCES = ("prediction", "prompt")
"""Where the text that an edit begins with is: attached, or in the prompt alone."""
_EDGES = (0.01, 0.03, 0.10, 0.25, 0.60)
BUCKETS = ("under 1 %", "1-3 %", "3-10 %", "10-25 %", "25-60 %", "60 % and more")
"""Names of the ranges of the edit ratio; each begins where the one before ends."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Pair:
    """One request as tokens.

    Attributes:
        predicted: The attached prediction; empty if nothing is attached.
        prompt: The prompt as far as it is simulated; may be empty.
        truth: What the model is taken to emit.
        groups: Names of the groups that the request belongs to, by what they are grouped by.
    """

    predicted: "array[int]"
    prompt: "array[int]"
    truth: "array[int]"
    groups: dict[str, str]

    @property
    def sources(self) -> Sources:
        """What a proposer gets of the request."""
        return Sources([self.predicted] if self.predicted else [], self.prompt)

    @property
    def source(self) -> "array[int]":
        """What the oracles copy from: the prediction, or the prompt if nothing is attached."""
        return self.predicted or self.prompt


def edit_ratio(before: str, after: str) -> float:
    """Returns 1 - 2·LCS/(n + m) over words, runs of white space and single other characters."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if not old and not new:
        return 0.0
    common: int = LCSseq.similarity(old, new)
    return 1 - 2 * common / (len(old) + len(new))


def load_pairs(
    path: str, tokenizer: Tokenizer, limit: int, source: str = "prediction"
) -> list[Pair]:
    """Reads requests from JSON lines.

    Each has `before` and `after`, perhaps `language` and `edit_ratio`; or `prompt` and `answer`,
    perhaps `kind` and `client`.

    Args:
        path: The file.
        tokenizer: Makes tokens of the texts.
        limit: Most requests; 0 for all.
        source: One of SOURCES: where `before` is. A `prompt` is taken as it is.

    Raises:
        SetupError: There is no such file, or a line is not such a request.
    """
    rows = islice(read_json_lines(Path(path), "--pairs"), limit or None)
    pairs = [_pair(row, where, tokenizer, source) for where, row in rows]
    if not pairs:
        raise SetupError(f"--pairs: {path} has no pairs")
    return pairs


def _pair(row: dict[str, Any], where: str, tokenizer: Tokenizer, source: str) -> Pair:
    is_answer = "answer" in row and "after" not in row
    for name in ("prompt", "answer") if is_answer else ("before", "after"):
        if not isinstance(row.get(name), str):
            raise SetupError(f"--pairs: {where} has no text {name!r}")
    if is_answer:
        groups = {name: str(row.get(name, "unknown")) for name in ("kind", "client")}
        prompt, answer = _encode(tokenizer, row["prompt"]), _encode(tokenizer, row["answer"])
        return Pair(array("i"), prompt, answer, groups)
    ratio = row.get("edit_ratio")
    if ratio is not None and not (isinstance(ratio, int | float) and 0 <= ratio <= 1):
        raise SetupError(f"--pairs: {where}: 'edit_ratio' must be a number from 0 to 1")
    return make_pair(
        tokenizer,
        row["before"],
        row["after"],
        language=str(row.get("language", "unknown")),
        ratio=ratio,
        source=source,
    )


def make_pair(
    tokenizer: Tokenizer,
    before: str,
    after: str,
    *,
    language: str = "unknown",
    ratio: float | None = None,
    source: str = "prediction",
) -> Pair:
    """Returns an edit as tokens; computes the edit ratio if it is not known."""
    ratio = edit_ratio(before, after) if ratio is None else float(ratio)
    groups = {"language": language, "edit_ratio": bucket_of(ratio)}
    truth = _encode(tokenizer, after)
    if source == "prediction":
        return Pair(_encode(tokenizer, before), array("i"), truth, groups)
    return Pair(array("i"), _encode(tokenizer, make_prompt(before, language)), truth, groups)


def make_prompt(before: str, language: str) -> str:
    """Returns a prompt that holds a text in a fence, which is longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`{3,}", before)), default=0))
    end = "" if before.endswith("\n") else "\n"
    return (
        "Make the change that was agreed in the following file.\n\n"
        f"{fence}{language.lower()}\n{before}{end}{fence}\n\n"
        "Answer with the whole file after the change, and with nothing else.\n"
    )


def bucket_of(edit_ratio: float) -> str:
    """Returns the range of the edit ratio that an edit belongs to."""
    return BUCKETS[bisect_right(_EDGES, edit_ratio)]


def _encode(tokenizer: Tokenizer, text: str) -> "array[int]":
    return array("i", tokenizer.encode(text, add_special_tokens=False).ids)


def load_tokenizer(path: str) -> Tokenizer:
    """Reads a tokenizer file of Hugging Face's library; raises SetupError if it is none."""
    if not Path(path).is_file():
        raise SetupError(f"--tokenizer: no file {path}; give a tokenizer.json")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # The library raises nothing narrower.
        reason = " ".join(str(error).split())
        raise SetupError(f"--tokenizer: {path} is no tokenizer file: {reason}") from None


def load_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Returns the text of every token, and the tokenizer as what splits texts."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    texts = tokenizer.decode_batch(
        [[token_id] for token_id in range(size)], skip_special_tokens=False
    )
    return Vocabulary(texts, partial(_encode, tokenizer))
