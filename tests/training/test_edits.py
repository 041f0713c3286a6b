"""Edits as training data, and the circuit, which makes them untrained."""

import ast
import difflib
import re
import textwrap
from collections import Counter
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from tokenizers import Tokenizer

from optimist_training.circuit import initial
from optimist_training.circuit.basis import spherical_code
from optimist_training.data import corpus
from optimist_training.data import tokenizer as data_tokenizer
from optimist_training.data.corpus import MAX_LINES, MIN_LINES, Split, snippets, split_of
from optimist_training.data.edits import KINDS, Edit, unseen_edits
from optimist_training.data.tokenizer import end_token, train_tokenizer
from optimist_training.evaluate import answer_edit

SPLITS: tuple[Split, ...] = get_args(Split)


@pytest.fixture(scope="module")
def some() -> list[Edit]:
    return unseen_edits(20 * len(KINDS), seed=3)


def changed_lines(edit: Edit) -> Counter[str]:
    """Counts the lines that were removed and added."""
    lines = difflib.ndiff(edit.before.split("\n"), edit.after.split("\n"))
    return Counter(line[0] for line in lines if line[0] in "+-")


def test_the_same_seed_yields_the_same_edits() -> None:
    assert unseen_edits(14, seed=1) == unseen_edits(14, seed=1)
    assert unseen_edits(14, seed=1) != unseen_edits(14, seed=2)


def test_edits_are_of_python_and_do_what_their_kinds_say(some: list[Edit]) -> None:
    assert set(Counter(edit.kind for edit in some).values()) == {20}
    of_one_line = {"delete": {"-": 1}, "insert": {"+": 1}, "docstring": {"+": 1}}
    for edit in some:
        ast.parse(edit.before)
        ast.parse(edit.after)
        assert (edit.before == edit.after) == (edit.kind == "repeat")
        if edit.kind in of_one_line:
            assert changed_lines(edit) == of_one_line[edit.kind]
        if edit.kind == "rename":
            old, new = re.findall(r"`(\w+)`", edit.instruction)
            words = re.findall(r"\w+", edit.after)
            assert old not in words
            assert words.count(new) == re.findall(r"\w+", edit.before).count(old)


def test_snippets_are_definitions_and_no_file_and_no_code_is_in_both_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(name: str) -> str:
        return f"def {name}(a):\n" + "".join(f"    a += {number}\n" for number in range(MIN_LINES))

    names = [f"file{number}.py" for number in range(60)]
    of_split = {split: [one for one in names if split_of(one) == split] for split in SPLITS}
    for name in names:
        own = function(name.removesuffix(".py"))
        text = f"x = 1\n\nclass A:\n{textwrap.indent(own, '    ')}\n{function('common')}"
        (tmp_path / name).write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / names[0]).write_text(function("left_out"))
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.setattr(corpus, "_ROOT", tmp_path)
    found = {split: corpus.snippets.__wrapped__(split) for split in SPLITS}
    for split, some in found.items():
        assert {snippet.path for snippet in some} == set(of_split[split]) != set()
        for snippet in some:
            assert MIN_LINES <= snippet.code.count("\n") + 1 <= MAX_LINES
            assert len(ast.parse(snippet.code).body) == 1
    # What is in the training too is not unseen.
    codes = {split: {snippet.code for snippet in some} for split, some in found.items()}
    assert function("common").strip() in codes["train"]
    assert not codes["train"] & codes["unseen"]


@pytest.fixture(scope="module")
def bundled() -> Tokenizer:
    return Tokenizer.from_file("models/tiny-edit/tokenizer.json")


def test_the_tokenizer_cuts_names_lines_and_indentations_alike(
    monkeypatch: pytest.MonkeyPatch, bundled: Tokenizer
) -> None:
    monkeypatch.setattr(data_tokenizer, "snippets", lambda _: snippets("unseen")[:60])
    monkeypatch.setattr(data_tokenizer, "edits", lambda *_: unseen_edits(70, seed=1))
    trained = train_tokenizer()
    for tokenizer in (trained, bundled):
        tokens = tokenizer.encode("a_b1`\n        a_b: x").tokens
        assert "".join(tokens).startswith("a_b1`Ċ")
        assert {"`", "Ċ", "Ġ" * 8} <= set(tokens)
        assert tokenizer.decode(tokenizer.encode("é `x`\n").ids) == "é `x`\n"
        assert end_token(tokenizer) == 3


@pytest.mark.slow
def test_the_circuit_alone_edits_unseen_code(
    monkeypatch: pytest.MonkeyPatch, bundled: Tokenizer
) -> None:
    # Codes are far enough apart after a tenth of the steps.
    monkeypatch.setattr(initial, "spherical_code", partial(spherical_code, num_steps=10))
    model = initial.initial_model(bundled, seed=0)
    results = [answer_edit(model, bundled, each) for each in unseen_edits(len(KINDS), seed=5)]
    assert sum(result.is_exact for result in results) >= 0.9 * len(results)
