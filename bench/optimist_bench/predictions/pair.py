"""The pairs that are simulated: a prediction and the text that the model is taken to emit."""

import json
import re
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapidfuzz.distance import LCSseq
from tokenizers import Tokenizer

from optimist_common.errors import SetupError
from optimist_proposer.core.vocabulary import Vocabulary

_WORD = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Pair:
    """One edit as tokens."""

    language: str
    edit_ratio: float
    predicted: "array[int]"
    truth: "array[int]"


def edit_ratio(before: str, after: str) -> float:
    """Returns 1 - 2·LCS/(n + m) over words, runs of white space and single other characters."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    if not old and not new:
        return 0.0
    common: int = LCSseq.similarity(old, new)
    return 1 - 2 * common / (len(old) + len(new))


def load_pairs(path: str, tokenizer: Tokenizer, limit: int) -> list[Pair]:
    """Reads pairs from JSON lines with `before` and `after`, perhaps `language`, `edit_ratio`.

    Args:
        path: The file.
        tokenizer: Makes tokens of the texts.
        limit: Most pairs; 0 for all.

    Raises:
        SetupError: There is no such file, or a line is not such a pair.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise SetupError(f"--pairs: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"--pairs: {path} is not UTF-8") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise SetupError(f"--pairs: {path} has no pairs")
    return [
        _pair(line, f"{path}, line {number}", tokenizer)
        for number, line in (numbered[:limit] if limit else numbered)
    ]


def _pair(line: str, where: str, tokenizer: Tokenizer) -> Pair:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise SetupError(f"--pairs: {where} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise SetupError(f"--pairs: {where} is not an object")
    for name in ("before", "after"):
        if not isinstance(row.get(name), str):
            raise SetupError(f"--pairs: {where} has no text {name!r}")
    ratio = row.get("edit_ratio")
    if ratio is not None and not (isinstance(ratio, int | float) and 0 <= ratio <= 1):
        raise SetupError(f"--pairs: {where}: 'edit_ratio' must be a number from 0 to 1")
    return make_pair(
        tokenizer,
        row["before"],
        row["after"],
        language=str(row.get("language", "unknown")),
        ratio=ratio,
    )


def make_pair(
    tokenizer: Tokenizer,
    before: str,
    after: str,
    *,
    language: str = "unknown",
    ratio: float | None = None,
) -> Pair:
    """Returns the texts as tokens; computes the edit ratio if it is not known."""
    return Pair(
        language=language,
        edit_ratio=edit_ratio(before, after) if ratio is None else float(ratio),
        predicted=array("i", tokenizer.encode(before, add_special_tokens=False).ids),
        truth=array("i", tokenizer.encode(after, add_special_tokens=False).ids),
    )


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
    """Returns the text of every token."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    texts = tokenizer.decode_batch(
        [[token_id] for token_id in range(size)], skip_special_tokens=False
    )
    return Vocabulary(texts)
