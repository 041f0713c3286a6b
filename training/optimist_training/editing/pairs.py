"""`optimist train pairs`: makes edits from the history and the files of git repositories."""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path

from optimist_training.data.options import require_file_name, require_positive, write_out
from optimist_training.editing.changes import NAMED, named_change
from optimist_training.editing.fields import field_change
from optimist_training.editing.history import Change, Repository
from optimist_training.editing.requests import apply_task
from optimist_training.editing.snippets import snippet_of
from optimist_training.editing.spelling import misspelled, paragraphs

_CODE = (".py", ".js", ".ts", ".go")
_FIELDS = (".json", ".yaml", ".yml")
_PROSE = (".md", ".rst", ".txt")
_SPELLING = "Correct the spelling. Change nothing else."
_KNOWN_AT_LEAST = 4
"""A word that is so often in the texts is spelled right."""
_LONGEST_SNIPPET = 0.7
"""Of the file; a longer one is no snippet."""
_MOST_TRIES = 50
"""For each file that is wanted."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One edit: what is asked, of which file, and the only right file after it."""

    kind: str
    source: str
    path: str
    before: str
    after: str
    task: str
    in_fence: bool


def add_pairs_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument("repositories", type=Path, nargs="+", help="git clones, bare or not")
    parser.add_argument("--out", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--files", type=int, default=400, help="of each repository, at most")
    parser.add_argument("--per-file", type=int, default=4, help="edits of one file")
    parser.add_argument("--max-characters", type=int, default=3600, help="of a file")
    parser.add_argument("--whole", action="store_true", help="no excerpts of longer files")
    parser.add_argument("--seed", type=int, default=0)


def write_pairs(options: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
        SetupError: An option or a repository cannot be used.
    """
    require_positive(options, "files", "per_file", "max_characters")
    require_file_name(options.out)
    groups: list[list[Pair]] = []
    for directory in options.repositories:
        groups += _Maker(Repository(directory), options).groups()
    random.Random(options.seed).shuffle(groups)
    rows = [json.dumps(asdict(pair)) for group in groups for pair in group]
    write_out(options.out, "".join(f"{row}\n" for row in rows).encode())
    kinds = Counter(pair.kind for group in groups for pair in group)
    print(json.dumps({"pairs": len(rows), "files": len(groups), "kinds": kinds}))


def _snippet_task(before: str, after: str, path: str) -> str | None:
    """Returns the task to apply a snippet, if one says the change and leaves enough out."""
    snippet = snippet_of(before, after, path)
    if snippet is None or len(snippet) > _LONGEST_SNIPPET * len(before):
        return None
    return apply_task(snippet, path)


class _Maker:
    """Makes the edits of one repository; those of one file are a group."""

    def __init__(self, repository: Repository, options: argparse.Namespace) -> None:
        self._repository = repository
        self._rng = random.Random(f"{options.seed} {repository.name}")
        self._per_file: int = options.per_file
        self._most: int = options.max_characters
        self._whole: bool = options.whole
        self._count: int = options.files
        self._names: list[str] = []
        self._made: Counter[str] = Counter()

    def groups(self) -> Iterator[list[Pair]]:
        """Yields groups, at most `--files`: commits, files, documents and texts in shares."""
        code = list(self._repository.files(_CODE))
        words = {word for _, text in code for word in re.findall(r"\b[A-Za-z_]{3,20}\b", text)}
        self._names = sorted(words) or ["value", "other_value", "Value"]
        shares = (
            (0.4, self._of_commits()),
            (0.3, self._of_files(code)),
            (0.1, self._of_documents()),
            (0.2, self._of_texts()),
        )
        for share, some in shares:
            yield from islice(some, round(share * self._count))

    def _of_commits(self) -> Iterator[list[Pair]]:
        for change in self._repository.changes((*_CODE, *_FIELDS, ".md"), 20 * self._count):
            cut = self._cut_change(change)
            if cut is None:
                continue
            before, after = cut
            task = _snippet_task(before, after, change.path)
            if task is None:
                continue
            first = self._pair("snippet", change.source, change.path, before, after, task)
            yield [first, *self._named(change.source, change.path, before, self._per_file - 1)]

    def _of_files(self, code: list[tuple[str, str]]) -> Iterator[list[Pair]]:
        # Not every file has a place for a change.
        for path, text in self._rng.choices(code, k=_MOST_TRIES * self._count if code else 0):
            before = self._excerpt(text)
            if before is None:
                continue
            group = self._named(f"{self._repository.name}@HEAD", path, before, self._per_file)
            if group:
                yield group

    def _of_documents(self) -> Iterator[list[Pair]]:
        documents = [one for one in self._repository.files(_FIELDS) if len(one[1]) <= self._most]
        while documents:
            path, before = self._rng.choice(documents)
            made = [field_change(before, self._rng) for _ in range(self._per_file)]
            if None in made:
                documents.remove((path, before))
                continue
            source = f"{self._repository.name}@HEAD"
            yield [self._pair("field", source, path, before, one[1], one[0]) for one in made if one]

    def _of_texts(self) -> Iterator[list[Pair]]:
        documents = list(self._repository.files(_PROSE))
        counts = Counter(
            word for _, text in documents for word in re.findall(r"\b[a-z]{3,}\b", text)
        )
        known = frozenset(word for word, count in counts.items() if count >= _KNOWN_AT_LEAST)
        found = [
            (path, paragraph)
            for path, text in documents
            for paragraph in paragraphs(text, 80, min(self._most, 900))
        ]
        self._rng.shuffle(found)
        for path, after in found:
            source = f"{self._repository.name}@HEAD:{path}"
            for _ in range(self._per_file):
                before = misspelled(after, known, self._rng)
                if before != after:
                    yield [Pair("spelling", source, "", before, after, _SPELLING, in_fence=False)]

    def _named(self, source: str, path: str, before: str, count: int) -> list[Pair]:
        """Returns named changes of one file, a third of them asked by a snippet."""
        made: list[Pair] = []
        # The kind that was made least comes first: not every file has a place for each.
        for kind in sorted(NAMED, key=lambda kind: (self._made[kind], self._rng.random())):
            if len(made) == count:
                break
            one = named_change(kind, before, path, self._names, self._rng)
            if one is None:
                continue
            self._made[kind] += 1
            task, after = one
            snippet_task = _snippet_task(before, after, path)
            if snippet_task is not None and self._rng.random() < 1 / 3:
                kind, task = "snippet", snippet_task
            made.append(self._pair(kind, source, path, before, after, task))
        return made

    def _pair(self, kind: str, source: str, path: str, before: str, after: str, task: str) -> Pair:
        return Pair(kind, source, path, before, after, task, in_fence=self._rng.random() < 0.5)

    def _budget(self) -> int:
        """Returns how long an excerpt may be, in characters: mostly short."""
        if self._whole:
            return self._most
        return min(round(self._rng.lognormvariate(6.9, 0.6)), self._most)

    def _excerpt(self, text: str) -> str | None:
        """Returns some of a file from one empty line at the margin to another."""
        budget = self._budget()
        if len(text) <= budget:
            return text
        if self._whole:
            return None
        starts = [0, *(found.end() for found in re.finditer(r"\n\n(?=\S)", text)), len(text)]
        first = self._rng.randrange(len(starts) - 1)
        fitting = [end for end in starts[first + 1 :] if end - starts[first] <= budget]
        if not fitting or fitting[-1] - starts[first] < 120:
            return None
        return text[starts[first] : fitting[-1]].rstrip("\n") + "\n"

    def _cut_change(self, change: Change) -> tuple[str, str] | None:
        """Returns the lines of a file around its first changes, before and after."""
        budget = self._budget()
        if max(len(change.before), len(change.after)) <= budget:
            return change.before, change.after
        if self._whole:
            return None
        old, new = change.before.split("\n"), change.after.split("\n")
        codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        changes = [code[1:] for code in codes if code[0] != "equal"]
        if not changes:
            return None
        old_start, old_end, new_start, new_end = changes[0]
        start, end = old_start, old_end
        while start > 0 and len("\n".join(old[start - 1 : end])) < budget * 0.6:
            start -= 1
        limit = changes[1][0] if len(changes) > 1 else len(old)
        while end < limit and len("\n".join(old[start : end + 1])) < budget:
            end += 1
        before = old[start:end]
        after = [*old[start:old_start], *new[new_start:new_end], *old[old_end:end]]
        if max(len("\n".join(before)), len("\n".join(after))) > 1.5 * budget + 200:
            return None
        return "\n".join(before).rstrip("\n") + "\n", "\n".join(after).rstrip("\n") + "\n"
