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
    default_log_directory,
    log_file_name,
)
from optimist_common.request_log.record import MAX_LINE_CHARACTERS, OutputLines, token_text
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


def test_a_log_has_the_whole_story(tmp_path: Path, logs: RequestLogs) -> None:
    prediction = "def f(a):\n    return a\n\ndef g(b):\n    return b\n"
    answer = "def f(a, c):\n    return a\n\ndef g(b):\n    return b\n"
    logs.open("chatcmpl-1", Sources([tokens(prediction)]))
    for known in (0, *range(5, len(answer), 5), len(answer)):
        new = answer[max(known - 1, 0) // 5 * 5 : known]
        logs.step("chatcmpl-1", tokens(new), known, chain(prediction[:8], 0), 1e-5, 0)
    logs.close("chatcmpl-1")

    header, *steps, end = read(tmp_path / "chatcmpl-1.jsonl")
    assert header["optimist_request_log"] == 3
    assert (header["request_id"], header["replica"]) == ("chatcmpl-1", "here:1")
    (predicted,) = header["predictions"]
    lines = predicted["lines"]
    assert (predicted["num_tokens"], predicted["num_lines"]) == (len(prediction), len(lines))
    assert "".join(line["text"] for line in lines) == prediction
    assert [line["position"] for line in lines] == [0, 10, 23, 24, 34]

    position = 0
    for number, step in enumerate(steps):
        assert (step["step"], step["position"]) == (number, position)
        assert (step["microseconds"], step["num_alignments"]) == (10.0, 0)
        assert "".join(step["proposal"]["texts"]) == prediction[:8]
        assert step["proposal"]["positions"] == [*range(8)]
        position += len(step["token_ids"])
        assert step["line_prefix"] == answer[:position].rpartition("\n")[2]
    assert "".join(text for step in steps for text in step["texts"]) == answer
    completed = [line for step in steps for line in step["completed_lines"]]
    assert [line["text"] for line in completed] == answer.splitlines(keepends=True)
    assert [line["number"] for line in completed] == [1, 2, 3, 4, 5]
    assert end == {"end": "the request was closed"}


def test_a_proposal_is_logged_with_its_tree_and_a_window_that_holds_is_none(
    tmp_path: Path, logs: RequestLogs
) -> None:
    logs.open("a", Sources([tokens("a\nb"), tokens("xyz")], tokens("pq")))
    tree = draft_of(tokens("xaby"), [-1, 0, 1, 0], [3, -1, -1, 4], [0.75, 0.5, 0.25, 0.12345])
    for number, draft in enumerate((tree, None, Draft()), 1):
        logs.step("a", tokens("k"), number, draft, 0.0, 0)
    header, step, held, nothing = read(tmp_path / "a.jsonl")
    assert (held["proposal"], nothing["proposal"]["token_ids"]) == (None, [])
    assert header["num_prompt_tokens"] == 2
    assert [len(prediction["lines"]) for prediction in header["predictions"]] == [2, 1]
    assert header["predictions"][1]["lines"][0]["position"] == 3
    assert step["proposal"] == {
        "token_ids": list(tokens("xaby")),
        "texts": ["x", "a", "b", "y"],
        "parents": [-1, 0, 1, 0],
        "positions": [3, -1, -1, 4],
        "values": [0.75, 0.5, 0.25, 0.1235],
    }


def test_part_of_a_character_and_unknown_tokens_show_their_ids() -> None:
    assert token_text(["a", "\N{REPLACEMENT CHARACTER}"], 0) == "a"
    for token_id in (1, 2, -1, 2**31 - 1):
        text = token_text(["a", "\N{REPLACEMENT CHARACTER}"], token_id)
        assert str(token_id) in text
        assert "\N{REPLACEMENT CHARACTER}" not in text


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
    assert lines.take(tokens("ab"), 5000) == []
    assert lines.take(tokens("\nc\n"), 5002) == [(None, "ab\n"), (None, "c\n")]


@pytest.mark.parametrize(
    "request_id",
    [
        *("", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a\0b", "-rf"),
        *(".hidden", "CON", "a" * 5000, "\N{GRINNING FACE}" * 300, "\ud800"),
        *('x"}\n{"end": "x"}\n', "a~b", "~" + "0" * 64),
    ],
)
def test_a_hostile_id_stays_in_the_directory_which_is_its_owner_s(
    tmp_path: Path, request_id: str
) -> None:
    directory = tmp_path / "inner" / "log"
    logs = logs_in(directory)
    logs.open(request_id, Sources([tokens("ab")]))
    logs.step(request_id, tokens("a"), 1, None, 0.0, 0)
    assert len(logs) == 1
    (file,) = directory.iterdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["inner", "log", file.name]
    # For their owner only.
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, file)] == [0o700, 0o600]
    assert len(file.name) < 150
    assert file.name.isascii()
    assert not file.name.startswith((".", "-"))
    header, step = read(file)
    assert header["optimist_request_log"] == 3
    assert step["step"] == 0


def test_ids_that_would_be_alike_have_different_files() -> None:
    ids = ["a/b", "a_b", "a\\b", "A_b", "a_B", "", "_", "a" * 100, "a" * 101, "a" * 102]
    ids += [Path(log_file_name(request_id)).stem for request_id in ids]
    assert len({log_file_name(request_id).lower() for request_id in set(ids)}) == len(set(ids))


def test_a_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "precious").write_text("untouched")
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "precious")
    logs_in(tmp_path).open("a", Sources([]))
    assert (tmp_path / "precious").read_text() == "untouched"
    assert "no request is logged any more" in caplog.text


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


def test_other_sources_are_written_again(tmp_path: Path, logs: RequestLogs) -> None:
    logs.open("a", Sources([tokens("ab")]))
    logs.open("a", Sources([tokens("xy")]))
    assert len(logs) == 1
    first, second = read(tmp_path / "a.jsonl")
    assert first["sources"] != second["sources"]
    assert second["predictions"][0]["lines"][0]["text"] == "xy"


def test_a_line_that_was_cut_off_is_ended_first(tmp_path: Path, logs: RequestLogs) -> None:
    logs.open("a", Sources([tokens("ab")]))
    logs.step("a", tokens("a"), 1, None, 0.0, 0)
    path = tmp_path / "a.jsonl"
    content = path.read_bytes()
    path.write_bytes(content + b'{"step": 1, "repl')
    logs_in(tmp_path).open("a", Sources([tokens("ab")]))
    assert path.read_bytes().startswith(content + b'{"step": 1, "repl\n{"opt')


def test_without_room_nothing_fails_and_one_warning_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    logs = logs_in(tmp_path / "file" / "log")
    for request_id in "abc":
        logs.open(request_id, Sources([tokens("ab")]))
        logs.step(request_id, tokens("a"), 1, None, 0.0, 0)
        logs.close(request_id)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Not a directory" in caplog.text


@pytest.mark.parametrize("failure", ["error", "short", "short at the end"])
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


@pytest.mark.parametrize("max_bytes", [500, 3000, 20_000])
def test_a_file_has_a_bound_and_says_so(tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "a.jsonl"
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


def test_a_long_prediction_leaves_room_for_the_steps(tmp_path: Path) -> None:
    logs = logs_in(tmp_path, size=4000)
    logs.open("a", Sources([tokens("abc\n" * 5000), tokens("xyz\n")]))
    logs.step("a", tokens("a"), 1, chain("bc", 5001), 0.0, 0)
    header, step = read(tmp_path / "a.jsonl")
    assert header["predictions"][0]["num_lines"] == 5000
    assert 5 < len(header["predictions"][0]["lines"]) < 100
    assert header["predictions"][1]["lines"] == []
    assert step["proposal"]["positions"] == [5001, 5002]


def test_the_directory_is_in_optimist_home(tmp_path: Path) -> None:
    assert default_log_directory({"OPTIMIST_HOME": str(tmp_path)}) == tmp_path / "log"
    for environment in ({}, {"OPTIMIST_HOME": ""}):
        assert default_log_directory(environment) == Path.home() / ".optimist" / "log"


def test_a_directory_that_holds_as_much_as_it_may_takes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old.jsonl").write_bytes(bytes(MIB))
    logs = logs_in(tmp_path, sizes=MIB + 2000)
    logs.open("a", Sources([tokens("one\n")]))
    for number in range(200):
        logs.step("a", tokens("a"), number + 1, None, 0.0, 0)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert MIB + 1000 < size <= MIB + 2000
    assert len(logs) == 0
    (record,) = caplog.records
    assert "the directory holds as much as it may" in record.getMessage()


def test_a_request_that_is_forgotten_is_logged_no_more(tmp_path: Path, logs: RequestLogs) -> None:
    held, answer = following(max_requests=2, logs=logs), Answer()
    for name in "abcd":
        held.open(Open(name, [tokens("one\n")], tokens(""), ""), answer)
    assert not answer.refusals
    assert len(logs) == 2
