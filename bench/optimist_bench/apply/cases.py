"""Edits to ask for, read from JSON lines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimist_cli.client import ChatRequest
from optimist_common.errors import SetupError
from optimist_training.data.options import read_json_lines
from optimist_training.editing.requests import Request, apply_task
from optimist_training.editing.snippets import snippet_of

_SPARE_TOKENS = 64
_BYTES_PER_TOKEN = 2
"""Of code, at least: most tokenizers have more than three."""


@dataclass(frozen=True)
class Case:
    """An edit with its right answer."""

    name: str
    """The file and line that it stands in."""
    kind: str
    request: Request
    after: str

    def chat_request(
        self, model: str, most_tokens: int, cache_salt: str | None, *, is_predicted: bool
    ) -> ChatRequest:
        """Returns the greedy request, whose answer may be somewhat longer than the right one.

        Args:
            model: As the server calls it.
            most_tokens: Most tokens of the answer, however long the right one is.
            cache_salt: Requests of different ones share no cached prompts; None: the request has no
                field that OpenAI's API lacks.
            is_predicted: Whether the file is attached as prediction, in the form of the answer.
        """
        size = len(self.request.answer(self.after).encode())
        return ChatRequest(
            model,
            [{"role": "user", "content": self.request.prompt()}],
            self.request.answer(self.request.before) if is_predicted else None,
            min(size // _BYTES_PER_TOKEN + _SPARE_TOKENS, most_tokens),
            cache_salt=cache_salt,
            return_token_ids=cache_salt is not None,
        )


def read_cases(path: Path, limit: int) -> tuple[dict[str, list[Case]], int]:
    """Reads edits from JSON lines with `before` and `after`.

    They may also have `path`, `task`, `kind` and `in_fence`. Without a task, an edit snippet is to
    be applied; edits that no snippet says are left out.

    Args:
        path: The file.
        limit: Most edits of a kind, the first; 0 for all.

    Returns:
        The edits of each kind, and how many were left out.

    Raises:
        SetupError: There is no such file, a line is no such edit, or none is left.
    """
    cases: dict[str, list[Case]] = {}
    num_skipped = 0
    for where, row in read_json_lines(path, "--pairs"):
        kind = _text(row, "kind", where, "snippet")
        if limit and len(cases.get(kind, ())) == limit:
            continue
        case = _case(row, kind, where)
        if case is None:
            num_skipped += 1
        else:
            cases.setdefault(kind, []).append(case)
    if not cases:
        raise SetupError(f"--pairs: {path} has no pairs")
    return cases, num_skipped


def _case(row: dict[str, Any], kind: str, where: str) -> Case | None:
    before, after = (_text(row, name, where) for name in ("before", "after"))
    path, task = (_text(row, name, where, "") for name in ("path", "task"))
    in_fence = row.get("in_fence", False)
    if not isinstance(in_fence, bool):
        raise SetupError(f"--pairs: {where}: 'in_fence' must be true or false")
    if in_fence and not path:
        raise SetupError(f"--pairs: {where}: 'in_fence' needs a 'path'")
    if not task:
        snippet = snippet_of(before, after, path)
        if snippet is None:
            return None
        task = apply_task(snippet, path)
    return Case(where, kind, Request(before, task, path, in_fence), after)


def _text(row: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    """Returns a text of a row; one that has a default may be missing or null."""
    value = row.get(name)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise SetupError(f"--pairs: {where} has no text {name!r}")
    return value
