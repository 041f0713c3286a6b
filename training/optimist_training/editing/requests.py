"""How an edit is asked for: the file first, then what to do with it.

Requests of one file begin with the same tokens, so that a server's prefix cache holds the file.
"""

import re
from dataclasses import dataclass
from pathlib import PurePath

_COMMENTS = {
    "//": "c cc cpp cs go h java js json jsx kt mjs rs swift ts tsx",
    "<!-- -->": "html md svg vue xml",
    "--": "hs lua sql",
}
_LANGUAGES = {
    "cc": "cpp",
    "htm": "html",
    "js": "javascript",
    "md": "markdown",
    "mjs": "javascript",
    "py": "python",
    "pyi": "python",
    "rb": "ruby",
    "rs": "rust",
    "sh": "bash",
    "ts": "typescript",
    "yml": "yaml",
}
_FENCED = re.compile(r"(?P<fence>`{3,})[^`\n]*\n(?P<inside>.*\n)(?P=fence)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """What one edit is asked by."""

    before: str
    """The file, or a text."""
    task: str
    """What to do with it, as `apply_task` makes it or in words."""
    path: str = ""
    """Of the file; a text has none, and no fence."""
    in_fence: bool = False
    """Whether the answer is to stand in a fence; otherwise it is the file alone."""

    def prompt(self) -> str:
        """Returns the message of the user."""
        if not self.path:
            return f"{self.before}\n\n{self.task}"
        how = "in a fence" if self.in_fence else "and nothing else"
        file = fenced(self.before, self.path)
        return f"{self.path}:\n{file}\n\n{self.task}\n\nAnswer with the whole file {how}."

    def answer(self, after: str) -> str:
        """Returns what the model is to say if `after` is the right text."""
        return fenced(after, self.path) if self.in_fence else after


def apply_task(snippet: str, path: str) -> str:
    """Returns the task to merge an edit snippet into the file."""
    return f"Apply this edit:\n{fenced(snippet, path)}"


def fenced(text: str, path: str) -> str:
    """Returns a text in a fence of its language, as long as the text needs it."""
    fence = "```"
    while fence in text:
        fence += "`"
    line_break = "" if text.endswith("\n") else "\n"
    return f"{fence}{language_of(path)}\n{text}{line_break}{fence}"


def unfenced(text: str) -> str | None:
    """Returns what stands in a fence that is around all of a text; None if there is none."""
    found = _FENCED.fullmatch(text.strip())
    return found["inside"] if found else None


def language_of(path: str) -> str:
    """Returns the name of a file's language as fences have it."""
    ending = _ending(path)
    return _LANGUAGES.get(ending, ending)


def elision(path: str) -> str:
    """Returns the comment that stands for lines of the file that a snippet leaves out."""
    ending = _ending(path)
    mark = next((mark for mark, endings in _COMMENTS.items() if ending in endings.split()), "#")
    before, _, after = mark.partition(" ")
    return f"{before} ... existing code ...{f' {after}' if after else ''}"


def _ending(path: str) -> str:
    return PurePath(path).suffix[1:].lower()
