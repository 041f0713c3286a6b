"""What answers have of the texts that they should be."""

from difflib import unified_diff

from rapidfuzz.distance import LCSseq

from optimist_training.editing.requests import unfenced


def text_of(answer: str, after: str) -> str:
    """Returns an answer without the fence around it, unless it is the right text with it."""
    inside = unfenced(answer)
    return answer if inside is None or is_exact(answer, after) else inside


def is_exact(text: str, after: str) -> bool:
    """Returns whether a text is the right one, but for a line break at its end."""
    return text.removesuffix("\n") == after.removesuffix("\n")


def count_kept_lines(text: str, after: str) -> int:
    """Returns how many lines of the right text another one has, in order."""
    kept: int = LCSseq.similarity(after.splitlines(), text.splitlines())
    return kept


def show_difference(text: str, after: str, name: str) -> str:
    """Returns a unified diff from the right text to another one."""
    lines = unified_diff(
        after.splitlines(), text.splitlines(), f"{name}: right", f"{name}: answered", lineterm=""
    )
    return "\n".join(lines)
