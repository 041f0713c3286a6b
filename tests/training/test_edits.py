"""Edits as training data, and the circuit, which makes them untrained."""

import ast
import difflib
import re
from collections import Counter
from functools import partial

import pytest

from optimist_training.circuit import initial
from optimist_training.circuit.basis import spherical_code
from optimist_training.data.corpus import MAX_LINES, MIN_LINES, snippets
from optimist_training.data.edits import KINDS, Edit, unseen_edits
from optimist_training.data.tokenizer import train_tokenizer
from optimist_training.evaluate import answers


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


def test_a_snippet_is_one_definition_of_the_documented_size() -> None:
    for snippet in snippets("unseen")[:200]:
        assert MIN_LINES <= snippet.code.count("\n") + 1 <= MAX_LINES
        assert len(ast.parse(snippet.code).body) == 1


def test_no_file_and_no_code_is_in_both_splits() -> None:
    train, unseen = list(snippets("train")), list(snippets("unseen"))
    assert train
    assert unseen
    assert not {snippet.path for snippet in train} & {snippet.path for snippet in unseen}
    assert not {snippet.code for snippet in train} & {snippet.code for snippet in unseen}


@pytest.mark.slow
def test_the_circuit_alone_edits_unseen_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Codes are far enough apart after a tenth of the steps.
    monkeypatch.setattr(initial, "spherical_code", partial(spherical_code, num_steps=10))
    tokenizer = train_tokenizer()
    model = initial.initial_model(tokenizer, seed=0)
    results = list(answers(model, tokenizer, unseen_edits(len(KINDS), seed=5)))
    assert sum(result.is_exact for result in results) >= 0.9 * len(results)
