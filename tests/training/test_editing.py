"""Edits from repositories: what is asked has one right answer, and an adapter learns it."""

import ast
import json
import random
import re
import subprocess
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from optimist_common.errors import SetupError
from optimist_training.__main__ import main as make
from optimist_training.drafters.command import main
from optimist_training.editing.adapter import Adapter
from optimist_training.editing.changes import NAMED, named_change
from optimist_training.editing.fields import field_change
from optimist_training.editing.packing import Pack, pack, packs
from optimist_training.editing.pairs import Pair
from optimist_training.editing.requests import Request, apply_task, elision, fenced, unfenced
from optimist_training.editing.snippets import snippet_of
from optimist_training.editing.spelling import misspelled, paragraphs
from tests.stack import BUNDLED_MODEL

MODEL = str(BUNDLED_MODEL)
FILE = """import os
import sys


class Reader:
    limit = 10

    def __init__(self, path):
        self.path = path

    def read(self, size):
        with open(self.path) as file:
            return file.read(size)


def main():
    reader = Reader(sys.argv[1])
    retries = 3
    print(os.linesep.join(reader.read(retries)))
"""
JSON = """{
  "name": "a",
  "scripts": {
    "test": "b",
    "tags": ["x"]
  },
  "on": true
}
"""
YAML = """name: ci
on: push
jobs:
  build:
    timeout: 30
    steps:
      - uses: a
        name: b
"""
PROSE = "Reading a file takes time. The reader waits until the whole file is there, then it ends.\n"


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Returns the lines that only one of two texts has."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def apply(before: str, snippet: str, path: str) -> str:
    """Merges a snippet as a careful reader would: kept lines say where each piece belongs."""
    lines, mark = before.splitlines(), elision(path)
    pieces: list[list[str]] = [[]]
    for line in snippet.splitlines():
        if line.strip() == mark:
            pieces.append([])
        else:
            pieces[-1].append(line)
    result: list[str] = []
    position = 0
    for number, piece in enumerate(pieces):
        if not piece:
            continue
        head = _longest(piece, lines, position, from_start=True)
        tail = _longest(piece, lines, position, from_start=False)
        start = _find(lines, piece[:head], position) if head else position
        end = _find(lines, piece[len(piece) - tail :], start) + tail if tail else len(lines)
        result += [*lines[position:start], *piece]
        position = len(lines) if number == len(pieces) - 1 else end
    return "\n".join([*result, *lines[position:]]) + "\n"


def _longest(piece: list[str], lines: list[str], position: int, *, from_start: bool) -> int:
    for size in range(len(piece), 0, -1):
        part = piece[:size] if from_start else piece[len(piece) - size :]
        if _find(lines, part, position) >= 0:
            return size
    return 0


def _find(lines: list[str], part: list[str], position: int) -> int:
    size = len(part)
    places = range(position, len(lines) - size + 1)
    return next((place for place in places if lines[place : place + size] == part), -1)


def test_a_request_has_the_file_first_and_its_answer_in_the_form_that_was_asked() -> None:
    request = Request(FILE, "Rename `a`.", "x/a.py", in_fence=True)
    assert request.prompt().startswith(f"x/a.py:\n```python\n{FILE}```\n\nRename `a`.")
    assert request.answer("b\n") == "```python\nb\n```"
    assert Request(FILE, "Rename `a`.", "x/a.py").answer("b\n") == "b\n"
    assert Request("some text", "Correct it.").prompt() == "some text\n\nCorrect it."
    document = fenced("```\na\n```", "a.md")
    assert document == "````markdown\n```\na\n```\n````"
    assert unfenced(document) == "```\na\n```\n"
    assert unfenced(f"Here:\n{document}") is None
    marks = [elision(name) for name in ("a.py", "b.TS", "c.html", "Makefile", "d.sql")]
    assert [mark[:2] for mark in marks] == ["# ", "//", "<!", "# ", "--"]


def test_a_snippet_says_where_its_changes_belong() -> None:
    after = FILE.replace("limit = 10", "limit = 20").replace("    retries = 3\n", "")
    snippet = snippet_of(FILE, after, "a.py")
    assert snippet is not None
    assert snippet.splitlines()[0] == "# ... existing code ..."
    assert "def read" not in snippet
    assert apply(FILE, snippet, "a.py") == after
    assert snippet_of(FILE, FILE, "a.py") is None
    # Nothing says which of these lines was changed.
    same = "a\n" * 40
    assert snippet_of(same, "a\n" * 20 + "b\n" + "a\n" * 19, "a.py") is None


@pytest.mark.parametrize("seed", range(60))
def test_what_a_snippet_says_can_be_merged(seed: int) -> None:
    rng = random.Random(seed)
    lines = [f"line {rng.randrange(30)}" for _ in range(rng.randrange(3, 60))]
    after = list(lines)
    for number in range(rng.randrange(1, 4)):
        at = rng.randrange(len(after))
        after[at : at + rng.randrange(3)] = [f"new {seed} {number}"] * rng.randrange(1, 3)
    before, wanted = "\n".join(lines) + "\n", "\n".join(after) + "\n"
    snippet = snippet_of(before, wanted, "a.py")
    if snippet is not None:
        assert apply(before, snippet, "a.py") == wanted


@pytest.mark.parametrize("kind", NAMED)
def test_named_changes_do_what_they_say(kind: str) -> None:
    made = [
        named_change(kind, FILE, "a.py", ["chunk", "Source"], random.Random(seed))
        for seed in range(40)
    ]
    changes = [one for one in made if one is not None]
    assert changes
    for task, after in changes:
        ast.parse(after)
        old, new = changed_lines(FILE, after)
        names = re.findall(r"`([^`]*)`", task)
        if kind == "rename":
            assert re.sub(rf"\b{names[1]}\b", names[0], after) == FILE
        elif kind == "constant":
            assert len(old) == len(new) == 1
            assert new[0].endswith(names[-1])
        elif kind == "parameter":
            assert [line.replace(f", {names[0]}", "") for line in new] == old or names[1] in new[0]
        elif kind == "import":
            assert after.splitlines()[2] == names[0] == new[0]
        else:
            assert not new
            assert f"def {names[0]}(" in "".join(old)


def test_fields_are_set_where_their_path_says() -> None:
    for seed in range(40):
        made = field_change(JSON, random.Random(seed))
        assert made is not None
        task, after = made
        path, value = re.findall(r"`([^`]*)`", task)
        found = json.loads(after)
        for key in path.split("."):
            found = found[key]
        assert str(found).lower() == value
        old, new = changed_lines(JSON, after)
        assert len(old) == len(new) == 1
    tasks = {made[0] for seed in range(40) if (made := field_change(YAML, random.Random(seed)))}
    paths = {re.findall(r"`([^`]*)`", task)[0] for task in tasks}
    assert paths == {"name", "on", "jobs.build.timeout"}
    assert field_change("- a\n- b: 1\n", random.Random(0)) is None


def test_mistakes_are_of_known_words_and_are_no_words() -> None:
    (text,) = paragraphs(f"# Title\n\n{PROSE}\n- one\n- two\n", 40, 200)
    assert text == PROSE.strip()
    known = frozenset({"reader", "waits", "whole", "file", "takes"})
    for seed in range(40):
        wrong = misspelled(text, known, random.Random(seed))
        pairs = list(zip(text.split(), wrong.split(), strict=True))
        mistakes = [(right, word) for right, word in pairs if right != word]
        assert len(mistakes) <= 5
        for right, word in mistakes:
            assert right.strip(".,") in known
            assert word.strip(".,") not in known


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a few files, whose code was changed once."""
    directory = tmp_path_factory.mktemp("clone") / "project"
    directory.mkdir()
    files = {"a.py": FILE, "b.json": JSON, "c.yaml": YAML, "README.md": PROSE * 3, "d.bin": "\0"}

    def commit(message: str) -> None:
        for name, text in files.items():
            (directory / name).write_text(text)
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", message)):
            subprocess.run(["git", *command], cwd=directory, check=True)

    commit("first")
    files["a.py"] = FILE.replace("limit = 10", "limit = 20")
    commit("second")
    return directory


@pytest.fixture(scope="module")
def pairs_file(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    assert main(["pairs", str(repository), "--out", str(out), "--files", "20"]) == 0
    return out


def read_pairs(file: Path) -> list[Pair]:
    return [Pair(**json.loads(line)) for line in file.read_text().splitlines()]


def test_edits_are_made_of_commits_and_files(
    pairs_file: Path, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = read_pairs(pairs_file)
    kinds = {pair.kind for pair in pairs}
    assert kinds >= {"snippet", "field", "spelling"}
    assert kinds & set(NAMED)
    historic = FILE, FILE.replace("limit = 10", "limit = 20")
    assert historic in [(pair.before, pair.after) for pair in pairs if pair.kind == "snippet"]
    for pair in pairs:
        assert pair.before != pair.after
        assert pair.source.startswith("project@")
    again = tmp_path / "again.jsonl"
    assert main(["pairs", str(repository), "--out", str(again), "--files", "20"]) == 0
    assert again.read_bytes() == pairs_file.read_bytes()
    printed = json.loads(capsys.readouterr().out)
    assert printed["pairs"] == len(pairs)
    with pytest.raises(SetupError, match="not a git repository"):
        main(["pairs", str(tmp_path), "--out", str(again)])


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    return Adapter(MODEL, rank=2, seed=0)


def some_edits(before: str = FILE) -> list[Pair]:
    """Returns edits of one file."""
    rng = random.Random(5)
    changes = {
        kind: named_change(kind, before, "a.py", ["chunk"], rng) for kind in ("delete", "import")
    }
    made = [
        Pair(kind, "s", "a.py", before, one[1], one[0], in_fence=False)
        for kind, one in changes.items()
        if one is not None
    ]
    after = before.replace("limit = 10", "limit = 20")
    snippet = snippet_of(before, after, "a.py")
    assert snippet is not None
    task = apply_task(snippet, "a.py")
    return [*made, Pair("snippet", "s", "a.py", before, after, task, in_fence=True)]


@torch.inference_mode()
def test_edits_beside_each_other_are_computed_as_each_alone(adapter: Adapter) -> None:
    edits = some_edits()
    together = pack(edits, adapter.tokenizer, 4096, 1.0, random.Random(0))
    alone = [pack([one], adapter.tokenizer, 4096, 1.0, random.Random(0)) for one in edits]
    assert len(together.token_ids) < sum(len(one.token_ids) for one in alone)
    assert [t for t in together.targets if t >= 0] == [
        t for one in alone for t in one.targets if t >= 0
    ]
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)

    def logits(one: Pack) -> torch.Tensor:
        token_ids, positions, sees, targets = one.tensors("cpu")
        found = model(input_ids=token_ids, position_ids=positions, attention_mask=sees).logits[0]
        return found[targets >= 0]  # type: ignore[no-any-return]

    torch.testing.assert_close(
        logits(together), torch.cat([logits(one) for one in alone]), rtol=1e-2, atol=1e-2
    )
    # A single one is an ordinary causal sequence.
    (first, *_) = alone
    usual = model(input_ids=torch.tensor([first.token_ids])).logits[0]
    taught = [number for number, target in enumerate(first.targets) if target >= 0]
    torch.testing.assert_close(logits(first), usual[taught], rtol=1e-2, atol=1e-2)


def test_what_is_left_out_of_an_answer_keeps_the_positions_of_the_rest(adapter: Adapter) -> None:
    edits = some_edits(
        FILE + "".join(f"\n\ndef f{n}():\n    return {n} + {n}\n" for n in range(20))
    )
    whole = pack(edits[:1], adapter.tokenizer, 4096, 1.0, random.Random(0))
    some = pack(edits[:1], adapter.tokenizer, 4096, 0.0, random.Random(0))
    assert len(some.token_ids) < len(whole.token_ids)
    of_whole = list(zip(whole.token_ids, whole.targets, strict=True))
    for token, target, position in zip(some.token_ids, some.targets, some.positions, strict=True):
        assert of_whole[position][0] == token
        assert target in (-100, of_whole[position][1])
    end = adapter.tokenizer.eos_token_id
    assert [one.targets[-2] for one in (whole, some)] == [end, end]
    snippet = pack(edits[2:], adapter.tokenizer, 4096, 0.0, random.Random(0))
    taught = adapter.tokenizer.decode([target for target in snippet.targets if target >= 0])
    assert "limit = 20" in taught
    # What does not fit is left out, not cut.
    short = pack(edits, adapter.tokenizer, len(whole.token_ids) + 40, 1.0, random.Random(0))
    assert set(short.branches) == {0, 1}


def test_packs_are_the_same_for_the_same_seed(adapter: Adapter) -> None:
    groups = [some_edits(), some_edits()[:1]]

    def first(seed: int) -> list[list[int]]:
        found = packs(groups, adapter.tokenizer, 4096, 0.5, seed)
        return [one.token_ids for one in islice(found, 6)]

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "-1"], "--steps must not be negative"),
        (["--whole-share", "2"], "--whole-share: must be from 0 to 1"),
        (["--max-length", "20"], "--max-length: no edit fits into 20 tokens"),
        (["--data", "no.jsonl"], "--data: cannot read no.jsonl"),
    ],
)
def test_what_cannot_be_trained_is_explained(
    pairs_file: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    usual = ["edit", "--model", MODEL, "--data", str(pairs_file), "--out", str(tmp_path / "out")]
    with pytest.raises(SetupError, match=f"^{message}"):
        main([*usual, *flags])


def test_a_row_that_is_no_edit_is_named(pairs_file: Path, tmp_path: Path) -> None:
    row = json.loads(pairs_file.read_text().splitlines()[0])
    for wrong, message in ((row | {"more": 1}, "more"), (row | {"after": 3}, "must be texts")):
        file = tmp_path / "wrong.jsonl"
        file.write_text(json.dumps(wrong) + "\n")
        flags = ["--model", MODEL, "--data", str(file), "--out", str(tmp_path / "out")]
        with pytest.raises(SetupError, match=rf"^--data: .*line 1 is no edit: .*{message}"):
            main(["edit", *flags])


def test_an_adapter_is_trained_resumed_and_merged(
    pairs_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["edit", "--model", MODEL, "--data", str(pairs_file), "--rank", "2"]
    flags += [
        "--batch-tokens",
        "300",
        "--max-length",
        "500",
        "--base-name",
        "base",
        "--threads",
        "1",
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*flags, "--out", str(whole), "--steps", "4"]) == 0
    # A run can be made longer as long as its rate is constant.
    assert main([*flags, "--out", str(parts), "--steps", "2"]) == 0
    assert main([*flags, "--out", str(parts), "--steps", "4", "--resume"]) == 0
    with pytest.raises(SetupError, match=r"--seed: the run to resume had '0', not '3'"):
        main([*flags, "--out", str(parts), "--seed", "3", "--resume"])
    config = json.loads((whole / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"], config["peft_type"]) == (
        "base",
        2,
        "LORA",
    )
    lines = pairs_file.read_text().splitlines(keepends=True)
    unseen = tmp_path / "unseen.jsonl"
    unseen.write_text("".join(lines[:3]))
    capsys.readouterr()
    trained = (whole / "adapter_model.safetensors").read_bytes()
    assert main([*flags, "--out", str(whole), "--steps", "0", "--unseen", str(unseen)]) == 0
    assert (whole / "adapter_model.safetensors").read_bytes() == trained
    measured = json.loads(capsys.readouterr().out)["unseen"]
    assert sum(kind["edits"] for kind in measured.values()) == 3
    merged = tmp_path / "merged"
    assert make(["merge", "--model", MODEL, "--adapter", str(whole), "--out", str(merged)]) == 0
    base, made = (
        AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32) for name in (MODEL, merged)
    )
    name = "model.layers.0.mlp.down_proj.weight"
    assert not torch.equal(base.state_dict()[name], made.state_dict()[name])
    text = "def a():\n"
    assert AutoTokenizer.from_pretrained(merged)(text) == AutoTokenizer.from_pretrained(MODEL)(text)
    assert make(["merge", "--model", MODEL, "--adapter", MODEL, "--out", str(merged)]) == 1
