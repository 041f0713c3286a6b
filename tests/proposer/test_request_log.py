"""What is logged of a request, and that nothing of it can do harm."""

import json
import logging
import os
import stat
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_common.request_log.logs import (
    FULL,
    RequestLogs,
    log_file_name,
)
from optimist_common.request_log.record import MAX_LINE_CHARACTERS, OutputLines
from optimist_proposer.core.messages import Answer, Open
from tests.proposer.holding import following
from tests.proposer.text import draft_of

CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz=(),.:_1234567890\N{REPLACEMENT CHARACTER}"
VOCABULARY = Vocabulary(CHARACTERS)
MIB = 1024 * 1024


def tokens(text: str) -> "array[int]":
    return array("i", [CHARACTERS.index(character) for character in text])


def chain(text: str, position: int) -> Draft:
    return draft_of(tokens(text), positions=range(position, position + len(text)))


def logs_in(
    directory: Path, *, size: int = MIB, sizes: int = 64 * MIB, name: str = ""
) -> RequestLogs:
    """Returns logs with so many bytes each and in all, by a replica of a name."""
    return RequestLogs(directory, VOCABULARY, size, sizes, name)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def logs(tmp_path: Path) -> RequestLogs:
    return logs_in(tmp_path, name="here:1")


@given(
    texts=st.lists(st.text(st.characters(codec=None), max_size=3), min_size=1, max_size=20),
    predictions=st.lists(st.lists(st.integers(0, 25), max_size=20), max_size=3),
    prompt=st.lists(st.integers(0, 25), max_size=5),
    outputs=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5),
)
def test_whatever_the_tokens_are_the_log_is_json_and_has_them(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    predictions: list[list[int]],
    prompt: list[int],
    outputs: list[list[int]],
) -> None:
    directory = tmp_path_factory.mktemp("log")
    logs = RequestLogs(directory, Vocabulary(texts), MIB, 64 * MIB)
    logs.open("a", Sources([array("i", ids) for ids in predictions], array("i", prompt)))
    num_known = 0
    for ids in outputs:
        num_known += len(ids)
        logs.step("a", array("i", ids), num_known, draft_of(ids), 1.0, 0)
    logs.close("a")
    header, *steps, _ = read(directory / "a.jsonl")
    assert header["num_prompt_tokens"] == len(prompt)
    assert [
        [token_id for line in prediction["lines"] for token_id in line["token_ids"]]
        for prediction in header["predictions"]
    ] == predictions
    assert [step["token_ids"] for step in steps] == outputs
    for step in steps:
        assert len(step["texts"]) == len(step["token_ids"])
        assert step["proposal"]["token_ids"] == step["token_ids"]


def test_of_a_long_line_the_end_is_shown_and_lines_have_no_number_after_a_gap() -> None:
    lines = OutputLines(VOCABULARY)
    ((number, text),) = lines.take(tokens("c" + "d" * 2 * MAX_LINE_CHARACTERS + "\ne"), 0)
    assert (number, lines.prefix) == (1, "e")
    assert text == "\N{HORIZONTAL ELLIPSIS}" + "d" * (MAX_LINE_CHARACTERS - 1) + "\n"
    assert lines.take(tokens("ab\nc\n"), 5000) == [(None, "ab\n"), (None, "c\n")]


HOSTILE = (
    *("", "..", "../../etc/passwd", "/etc/passwd", "a\\b", "a\0b", "-rf", ".hidden", "_", "a~b"),
    *("a" * 100, "a" * 101, "a" * 5000, "\N{GRINNING FACE}" * 300, "\ud800", 'x"}\n{"end": "x"}\n'),
    *("a/b", "a_b", "A_b", "a_B", log_file_name("a/b").removesuffix(".jsonl")),
)


def test_a_hostile_id_stays_in_the_directory_which_is_its_owner_s(tmp_path: Path) -> None:
    directory = tmp_path / "inner" / "log"
    logs = logs_in(directory)
    for request_id in HOSTILE:
        logs.open(request_id, Sources([tokens("ab")]))
        logs.step(request_id, tokens("a"), 1, None, 0.0, 0)
    files = list(directory.iterdir())
    assert {*tmp_path.rglob("*")} == {directory.parent, directory, *files}
    # For their owner only, each its own, also where capitals are small letters.
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert len({file.name.lower() for file in files}) == len(HOSTILE) == len(logs)
    for file in files:
        assert len(file.name) < 150
        assert file.name.isascii()
        assert not file.name.startswith((".", "-"))
        header, step = read(file)
        assert (header["optimist_request_log"], step["step"]) == (3, 0)


def test_a_replica_goes_on_with_the_log_of_another(tmp_path: Path) -> None:
    first, second = (logs_in(tmp_path, name=name) for name in ("one", "two"))
    first.open("a", Sources([tokens("ab\ncd")]))
    first.step("a", tokens("a"), 1, None, 0.0, 0)
    second.open("a", Sources([tokens("ab\ncd")]))
    second.step("a", tokens("b\n"), 3, None, 0.0, 0)
    first.step("a", tokens("c"), 4, None, 0.0, 0)
    header, step, again, other, last = read(tmp_path / "a.jsonl")
    assert "predictions" in header
    assert "predictions" not in again
    assert header["sources"] == again["sources"]
    assert [part["replica"] for part in (header, again)] == ["one", "two"]
    steps = [(part["step"], part["replica"]) for part in (step, other, last)]
    assert steps == [(0, "one"), (1, "two"), (1, "one")]
    # A line that was cut off is ended first.
    path = tmp_path / "a.jsonl"
    content = path.read_bytes() + b'{"step": 2, "repl'
    path.write_bytes(content)
    logs_in(tmp_path).open("a", Sources([tokens("ab")]))
    assert path.read_bytes().startswith(content + b'\n{"opt')


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_where_nothing_can_be_written_nothing_fails_and_one_warning_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, obstacle: str
) -> None:
    file, directory = tmp_path / "file", tmp_path / "log"
    file.write_text("untouched")
    if obstacle == "file":
        directory = file / "log"
    else:
        directory.mkdir()
        (directory / "a.jsonl").symlink_to(file)
    logs = logs_in(directory)
    for request_id in "abc":
        logs.open(request_id, Sources([tokens("ab")]))
        logs.step(request_id, tokens("a"), 1, None, 0.0, 0)
        logs.close(request_id)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no request is logged any more" in caplog.text
    assert file.read_text() == "untouched"


@pytest.mark.parametrize("failure", ["error", "short at the end"])
def test_a_full_disk_ends_all_logs_with_one_warning(
    tmp_path: Path,
    logs: RequestLogs,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
) -> None:
    logs.open("a", Sources([tokens("ab")]))
    logs.open("b", Sources([tokens("ab")]))
    write = os.write

    def fail(file: int, content: bytes) -> int:
        if failure == "error":
            raise OSError(28, "No space left on device")
        return write(file, content[:10])

    monkeypatch.setattr(os, "write", fail)
    if failure == "short at the end":
        logs.close("a")
    else:
        logs.step("a", tokens("a"), 1, None, 0.0, 0)
    monkeypatch.undo()
    assert len(logs) == 0
    logs.step("b", tokens("a"), 1, None, 0.0, 0)
    logs.open("c", Sources([]))
    logs.close("a")
    assert caplog.text.count("No space left on device") == 1
    assert not (tmp_path / "c.jsonl").exists()


def test_a_file_has_a_bound_and_says_so(tmp_path: Path) -> None:
    path, max_bytes = tmp_path / "a.jsonl", 3000
    sources = Sources([tokens("abc\n" * 500)])
    for _ in range(3):
        logs = logs_in(tmp_path, size=max_bytes)
        logs.open("a", sources)
        for number in range(200):
            logs.step("a", tokens("abcd\n"), 5 * number + 5, chain("abc\nabc", 4), 0.0, 0)
        logs.close("a")
        logs.stop()
        assert path.stat().st_size <= max_bytes
    assert path.read_bytes().endswith(FULL)
    assert path.read_bytes().count(FULL) == 1


def test_a_directory_that_holds_as_much_as_it_may_takes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.jsonl").write_bytes(bytes(MIB))
    logs = logs_in(tmp_path, sizes=MIB + 2000)
    logs.open("a", Sources([tokens("one\n")]))
    for number in range(200):
        logs.step("a", tokens("a"), number + 1, None, 0.0, 0)
    assert MIB + 1000 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= MIB + 2000
    assert caplog.text.count("the directory holds as much as it may") == 1


def test_a_request_that_is_forgotten_is_logged_no_more(tmp_path: Path, logs: RequestLogs) -> None:
    held, answer = following(max_requests=2, logs=logs), Answer()
    for name in "abcd":
        held.open(Open(name, [tokens("one\n")], tokens(""), ""), answer)
    assert not answer.refusals
    assert len(logs) == 2
