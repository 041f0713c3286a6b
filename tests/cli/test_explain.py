"""The story that `optimist explain` tells of a request's log."""

import json
import re
import subprocess
import sys
from array import array
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import Draft
from optimist_aligner.text.sources import Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_cli.__main__ import main
from optimist_cli.explain.command import page, summarise
from optimist_cli.explain.log import LogError
from optimist_cli.explain.records import records
from optimist_cli.explain.story import Summary
from optimist_cli.explain.text import Style, fit, visible, width_of
from optimist_cli.explain.window import Origin
from optimist_common.request_log.logs import RequestLogs
from tests.proposer.text import draft_of

TEXTS = [
    *("\n", "def ", "f", "g", "(", "a", "b", "):", "    ", "return "),
    *("x", "y", " + ", "new", "1"),
]
PLAIN = Style(is_coloured=False, width=90)
MIB = 1024 * 1024


def tokens(*texts: str) -> "array[int]":
    return array("i", [TEXTS.index(text) for text in texts])


PREDICTION = tokens(
    *("def ", "f", "(", "a", "):", "\n"),
    *("    ", "return ", "a", " + ", "1", "\n"),
    *("def ", "g", "(", "b", "):", "\n"),
    *("    ", "return ", "b", " + ", "1", "\n"),
)


def predicted(start: int, end: int, value: float = 0.5) -> Draft:
    values = [value] * (end - start)
    return draft_of(PREDICTION[start:end], positions=range(start, end), values=values)


def opened(
    directory: Path,
    *predictions: "array[int]",
    prompt: Sequence[str] = (),
    replica: str = "127.0.0.1:50053",
    request_id: str = "a",
) -> RequestLogs:
    """Returns logs in which a request has been opened."""
    logs = RequestLogs(directory, Vocabulary(TEXTS), MIB, 64 * MIB, replica)
    logs.open(request_id, Sources(list(predictions), tokens(*prompt)))
    return logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of an answer in which the prediction's names are changed."""
    logs = opened(tmp_path, PREDICTION, prompt=("x", "y"), request_id="chat-1")
    # A parameter is added: the position is found again in the line.
    tree = draft_of(
        tokens("):", "\n", "a", " + "), [-1, 0, -1, 2], [4, 5, -1, -1], [0.5, 0.5, 0.25, 0.125]
    )
    # New tokens, what is proposed then, microseconds, alignments so far.
    steps: list[tuple[Sequence[str], Draft | None, int, int]] = [
        ((), predicted(0, 6, 1.0), 31, 0),
        (("def ",), None, 2, 0),
        (("f", "(", "a", " + "), tree, 9, 1),
        # The branch is right.
        (("a", " + ", "new"), predicted(4, 12), 8, 2),
        (("):", "\n", "    ", "return ", "new"), predicted(2, 4), 7, 2),
        (("\n",), Draft(), 6, 3),
        (("def ",), predicted(13, 18), 5, 5),
        (("g", "(", "b", "):", "\n"), None, 4, 5),
    ]
    num_known = 0
    for texts, draft, microseconds, num_alignments in steps:
        num_known += len(texts)
        logs.step("chat-1", tokens(*texts), num_known, draft, microseconds * 1e-6, num_alignments)
    logs.close("chat-1")
    return tmp_path / "chat-1.jsonl"


def summary_of(log: Path) -> Summary:
    return summarise(BytesIO(log.read_bytes()))


def explain(log: Path, number: int | None = None) -> list[str]:
    return list(page(BytesIO(log.read_bytes()), PLAIN, number))


STORY = """\
request chat-1
1 prediction: 4 lines, 24 tokens; 2 tokens of the prompt
proposer 127.0.0.1:50053, opened TIME
from the prediction  ⟨from the prompt⟩  ‹from the request's own text›  «the model's own»

step 0  no new tokens  31 µs
  proposes 6 tokens from line 1 of 4, chance 1.00: "def f(a):↵"

step 1  1 token: 1 model's own  2 µs
    «def »
  5 tokens of the window left

step 2  4 tokens: 3 predicted, 1 model's own  9 µs
    f(a« + »
  lost in line 1, found again in it
  proposes 4 tokens from line 1 of 4, chance 0.50: "):↵"
    or after the output, chance 0.25: "a + "

step 3  3 tokens: 2 own text, 1 model's own  8 µs
    ‹a + ›«new»
  went on in a branch
  proposes 8 tokens from line 1 of 4, chance 0.50: "):↵    return a + 1↵"

step 4  5 tokens: 4 predicted, 1 model's own  7 µs
    ):↵
        return «new»
  lost at line 2, found at line 1: back
  proposes 2 tokens from line 1 of 4, chance 0.50: "(a"

step 5  1 token: 1 model's own  6 µs
    «↵»
  lost at line 1
  proposes nothing

step 6  1 token: 1 model's own  5 µs
    «def »
  lost at line 1, found at line 3: forward
  proposes 5 tokens from line 3 of 4, chance 0.50: "g(b):↵"

step 7  5 tokens: 4 predicted, 1 model's own  4 µs
    g(b):«↵»
  nothing proposed

summary
  20 tokens in 7 steps: 2.86 a step
  accepted 13 (65%): 11 predicted, 0 from the prompt, 2 own text
  6 windows; 10 tokens proposed in vain, 0.77 for each accepted
  5 alignments; found its position again 3 times: 1 forward, 1 back, 1 within the line
  proposer's time 6 µs (median), 31 µs (p99)
"""  # noqa: RUF001

DETAIL = f"""\
{STORY[STORY.index("step 2") : STORY.index("step 3")]}\
  the output's last line: "def f(a + "
  node  after  chance  token   text
     0      -   0.500      7   "):"  line 1
     1      0   0.500      0   "↵"  line 1

     2      -   0.250      5   "a"  own text
     3      2   0.125     12   " + "  own text
"""


def test_the_command_prints_the_story_a_step_or_a_summary(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*flags: str) -> str:
        assert main(["explain", str(log), *flags]) == 0
        return capsys.readouterr().out

    lines = run("--width", "90").splitlines()
    assert "opened 20" in lines[2]
    lines[2] = re.sub(r"opened \S+", "opened TIME", lines[2])
    assert lines == STORY.splitlines()
    assert run("--step", "2", "--width", "90").splitlines()[5:] == DETAIL.splitlines()
    assert "\x1b[32m" in run("--color", "always")
    assert main(["explain", str(log), "--step", "99"]) == 2
    assert capsys.readouterr().err == f"optimist explain: --step: {log} has no step 99\n"
    assert json.loads(run("--json")) == {
        "request_id": "chat-1",
        "replicas": ["127.0.0.1:50053"],
        "num_predictions": 1,
        "num_predicted_lines": 4,
        "num_predicted_tokens": 24,
        "num_prompt_tokens": 2,
        "steps": 7,
        "output_tokens": 20,
        "tokens_per_step": 2.857,
        "accepted_from_prediction": 11,
        "accepted_from_prompt": 0,
        "accepted_from_own_text": 2,
        "accepted_share": 0.65,
        "windows": 6,
        # 2 where a parameter was added, the other branch, 4 after `return`, and 2 wrong ones.
        "contradicted_tokens": 10,
        "wasted_per_accepted": 0.769,
        "alignments": 5,
        "jumps": {"forward": 1, "back": 1, "same_line": 1},
        "proposer_us": {"p50": 6.0, "p99": 31.0},
        "missing_tokens": 0,
        "damaged_documents": 0,
        "end": "the request was closed",
    }


def test_records_are_printed_as_yaml(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = [json.loads(line) for line in log.read_bytes().splitlines()]
    assert main(["explain", str(log), "--yaml"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == written
    assert max(map(len, text.splitlines())) <= 100
    assert main(["explain", str(log), "--yaml", "--step", "5"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == [written[6]]
    assert main(["explain", str(log), "--yaml", "--step", "99"]) == 2
    log.write_bytes(log.read_bytes()[:-20] + b"\n")
    damaged = yaml.safe_load("\n".join(records(BytesIO(log.read_bytes()))))
    assert damaged == [*written[:-1], {"damaged_line": len(written)}]


@given(st.text())
@settings(max_examples=15)
def test_every_text_comes_through_yaml(text: str) -> None:
    lines = [{"position": 0, "token_ids": [1], "text": text}]
    header = {**HEADER, "predictions": [{"num_tokens": 1, "num_lines": 1, "lines": lines}]}
    shown = "\n".join(records(BytesIO(json.dumps(header).encode() + b"\n")))
    assert yaml.safe_load(shown) == [header]
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\xff\xfe\0", "it does not begin as one"),
        (b'{"optimist_request_log": 4, "x": 1}\n', "its format is 4, this version reads 3"),
    ],
)
def test_another_file_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    for flags in ([], ["--json"], ["--yaml"]):
        assert main(["explain", str(path), *flags]) == 2
        error = capsys.readouterr().err
        assert error == f"optimist explain: {path} is no request log: {reason}\n"


def test_a_missing_file_and_a_directory_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.endswith("missing: No such file or directory\n")
    assert main(["explain", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(": Is a directory\n")
    assert main(["explain"]) == 2
    assert "--log is required" in capsys.readouterr().err


def test_a_log_is_read_up_to_where_it_is_cut(log: Path) -> None:
    content = log.read_bytes()
    whole = explain(log)
    for size in range(30, len(content), 61):
        log.write_bytes(content[:size])
        lines = explain(log)
        shown = lines[: lines.index("summary") - 1]
        assert shown == whole[: len(shown)]
        rest = content[:size].rpartition(b"\n")[2]
        is_cut = rest != b"" and rest not in content.splitlines()
        assert any("cut off" in line for line in lines) == is_cut
        assert "  the log does not say that the request was closed" in lines


def test_what_follows_a_cut_is_read_too(log: Path) -> None:
    content = log.read_bytes()
    cut = content.index(b'"step": 3')
    log.write_bytes(content[: cut + 40])
    other = {"replica": "127.0.0.1:50054", "request_id": "chat-1"}
    logs = opened(log.parent, PREDICTION, prompt=("x", "y"), **other)
    logs.step("chat-1", tokens("f"), 9, predicted(3, 5), 1e-6, 0)
    logs.close("chat-1")
    lines = explain(log)
    assert "opened again" in lines
    assert any("proposer 127.0.0.1:50054" in line for line in lines)
    assert "  3 tokens before these not in this log" in lines
    summary = summary_of(log)
    assert summary.replicas == ["127.0.0.1:50053", "127.0.0.1:50054"]
    assert (summary.damaged_documents, summary.missing_tokens) == (1, 3)
    assert summary.num_predicted_tokens == 24


def test_nothing_in_a_text_reaches_the_terminal_as_a_command(tmp_path: Path) -> None:
    texts = ["\x1b[2J", "\x9b31m", "\r", "\u202e", "\x07", "ok\n"]
    logs = RequestLogs(tmp_path, Vocabulary(texts), MIB, 64 * MIB, "\x1b]0;x\x07")
    ids = array("i", range(6))
    logs.open("\x1b[31m", Sources([ids]))
    logs.step("\x1b[31m", ids, 6, draft_of(ids, positions=ids), 0.0, 0)
    (path,) = tmp_path.iterdir()
    for number in (None, 0):
        lines = explain(path, number=number)
        assert all(line.isprintable() for line in lines)
        assert "␛[2J" in "\n".join(lines)


def test_a_reader_who_has_seen_enough_is_no_error(log: Path) -> None:
    command = f"{sys.executable} -m optimist_cli explain {log} | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


LINES = [
    {"position": 0, "token_ids": [1] * 5, "text": "aaaa\n"},
    {"position": 5, "token_ids": [2], "text": "b"},
]
HEADER = {
    "optimist_request_log": 3,
    "sources": "s",
    "request_id": "r",
    "replica": "p",
    "opened": "t",
    "num_prompt_tokens": 0,
    "predictions": [{"num_tokens": 9, "num_lines": 3, "lines": LINES}],
}


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_it_fail_otherwise(content: bytes, is_after_header: bool) -> None:
    data = json.dumps(HEADER).encode() + b"\n" + content if is_after_header else content
    try:
        list(page(BytesIO(data), PLAIN))
    except LogError:
        assert not is_after_header


NUMBERS = st.integers(-3, 12) | st.integers()


@st.composite
def proposals(draw: st.DrawFn) -> dict[str, object]:
    size = draw(st.integers(0, 5))
    numbers = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    return {
        "token_ids": draw(numbers),
        "texts": draw(st.lists(st.text("ab\n", max_size=2), min_size=size, max_size=size)),
        "parents": [draw(st.integers(-1, node - draw(st.integers(0, 1)))) for node in range(size)],
        "positions": draw(st.lists(NUMBERS, min_size=size, max_size=size)),
        "values": draw(st.lists(st.floats(0, 1), min_size=size, max_size=size)),
    }


STEPS = st.fixed_dictionaries(
    {
        "step": NUMBERS,
        "replica": st.just("p"),
        "position": st.integers(0, 12),
        "token_ids": st.lists(st.integers(0, 3), max_size=3),
        "texts": st.lists(st.text("ab\n", max_size=2), max_size=3),
        "completed_lines": st.just([{"number": None, "text": "a\n"}]),
        "line_prefix": st.just(""),
        "proposal": st.none() | proposals(),
        "num_alignments": st.integers(0, 100),
        "microseconds": st.floats(0, 1e9),
    }
)


@given(st.lists(STEPS, max_size=4))
def test_no_values_in_a_log_make_it_fail(steps: list[object]) -> None:
    data = "".join(f"{json.dumps(record)}\n" for record in [HEADER, *steps]).encode()
    assert "summary" in list(page(BytesIO(data), PLAIN))
    assert summarise(BytesIO(data)).steps <= len(steps)


@given(st.text(), st.integers(1, 50))
def test_text_fits(text: str, width: int) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert width_of(fit(shown, width)) <= width
    if width_of(shown) <= width:
        assert fit(shown, width) == shown


@given(st.text("ab\n\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{COMBINING ACUTE ACCENT}"), st.integers(20, 40))
def test_wrapped_text_is_whole_and_fits(text: str, width: int) -> None:
    lines = list(Style(False, width).lines_by_origin([(text, Origin.PREDICTION)], "    "))
    assert "".join(line.removeprefix("    ") for line in lines) == visible(text)
    assert all(width_of(line) <= width for line in lines)
