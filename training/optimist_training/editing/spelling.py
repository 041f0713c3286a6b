"""Texts with planted mistakes of spelling."""

import random
import re

_WORD = re.compile(r"\b[a-z]{4,}\b")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def paragraphs(text: str, least: int, most: int) -> list[str]:
    """Returns the paragraphs of prose in a document, their lines joined.

    Args:
        text: Markdown or reStructuredText.
        least: Characters of a paragraph, at least.
        most: Characters of a paragraph, at most.
    """
    found = []
    for block in re.split(r"\n\s*\n", text):
        joined = " ".join(line.strip() for line in block.strip().split("\n"))
        is_prose = re.match(r"[A-Z]\w+ \w", joined) and joined[-1] in ".!?"
        if (
            is_prose
            and least <= len(joined) <= most
            and not re.search(r"[`*_<>{}\[\]|:\\]", joined)
        ):
            found.append(joined)
    return found


def misspelled(text: str, known: frozenset[str], rng: random.Random) -> str:
    """Returns a text with at most five mistakes, in words that are known.

    Args:
        text: The right text.
        known: Words; a mistake is none of them.
        rng: Which words, and how.
    """
    places = [found.span() for found in _WORD.finditer(text) if found[0] in known]
    count = min(rng.randint(1, 5), len(places))
    for start, end in sorted(rng.sample(places, count), reverse=True):
        wrong = _mistake(text[start:end], rng)
        if wrong in known or wrong == text[start:end]:
            continue
        text = text[:start] + wrong + text[end:]
    return text


def _mistake(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    match rng.randrange(4):
        case 0:
            return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        case 1:
            return word[:at] + word[at + 1 :]
        case 2:
            return word[: at + 1] + word[at] + word[at + 1 :]
    row = next(row for row in _ROWS if word[at] in row)
    beside = row[max(row.index(word[at]) + rng.choice((-1, 1)), 0) :][:1] or row[-2]
    return word[:at] + beside + word[at + 1 :]
