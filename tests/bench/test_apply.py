"""`optimist bench apply`: its requests, what it says of answers, and runs against servers."""

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from optimist_bench.apply.answers import count_kept_lines, is_exact, text_of
from optimist_bench.apply.cases import read_cases
from optimist_bench.apply.command import main
from optimist_bench.apply.report import Key, Turn, describe, make_rows
from optimist_bench.engines.asking import Answer, Round
from optimist_bench.engines.options import EngineOptions, describe_setup
from optimist_common.errors import SetupError
from tests.bench.conftest import ReportOf
from tests.stack import BUNDLED_MODEL, PATIENT

BEFORE = "def total(values):\n    return sum(values)\n"
AFTER = "def total(values):\n    return sum(values, 0)\n"
SHOUT: dict[str, object] = {"before": "a\n", "after": "A\n", "task": "Shout.", "kind": "shout"}
EDIT: dict[str, object] = {"before": BEFORE, "after": AFTER, "path": "a.py", "id": 7}


def write_pairs(directory: Path, *rows: Mapping[str, object]) -> Path:
    path = directory / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_row_is_asked_by_its_task_or_by_an_edit_snippet(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, EDIT, EDIT | {"in_fence": True}, SHOUT | {"path": None})
    cases, num_skipped = read_cases(path, 0)
    assert num_skipped == 0
    assert [(kind, len(ones)) for kind, ones in cases.items()] == [("snippet", 2), ("shout", 1)]
    bare, fenced = cases["snippet"]
    assert (bare.name, fenced.name) == (f"{path}, line 1", f"{path}, line 2")
    request = bare.chat_request("m", 4096, "salt", is_predicted=True)
    (message,) = request.messages
    assert message["role"] == "user"
    assert message["content"] == bare.request.prompt()
    assert "Apply this edit:\n```python\n" in message["content"]
    assert AFTER.splitlines()[1] in message["content"]
    assert (request.model, request.temperature, request.cache_salt) == ("m", 0.0, "salt")
    assert request.prediction == BEFORE
    assert request.max_tokens is not None
    assert len(AFTER) // 2 < request.max_tokens < 4096
    in_fence = fenced.chat_request("m", 9, "salt", is_predicted=True)
    assert (in_fence.prediction, in_fence.max_tokens) == (f"```python\n{BEFORE}```", 9)
    assert bare.chat_request("m", 9, "salt", is_predicted=False).prediction is None
    (shout,) = cases["shout"]
    assert shout.request.prompt() == "a\n\n\nShout."


def test_what_no_snippet_says_is_left_out_and_each_kind_has_a_limit(tmp_path: Path) -> None:
    same = EDIT | {"after": BEFORE}
    path = write_pairs(tmp_path, same, SHOUT, EDIT, SHOUT | {"after": "B"}, EDIT, same)
    cases, num_skipped = read_cases(path, 1)
    assert [each.after for ones in cases.values() for each in ones] == ["A\n", AFTER]
    assert num_skipped == 1
    assert read_cases(path, 0)[1] == 2
    with pytest.raises(SetupError, match=r"pairs\.jsonl has no pairs"):
        read_cases(write_pairs(tmp_path, same), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"before": None}, "has no text 'before'"),
        ({"after": 3}, "has no text 'after'"),
        ({"kind": 3}, "has no text 'kind'"),
        ({"task": ["x"]}, "has no text 'task'"),
        ({"in_fence": "yes"}, "'in_fence' must be true or false"),
        ({"in_fence": True, "path": ""}, "'in_fence' needs a 'path'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write_pairs(tmp_path, EDIT, EDIT | change)
    with pytest.raises(SetupError, match=f"^--pairs: {path}, line 2:? {message}"):
        read_cases(path, 0)


def test_answers_are_compared_without_a_fence_around_them() -> None:
    for answer in (AFTER, AFTER.rstrip("\n"), f"```python\n{AFTER}```", f"\n````\n{AFTER}````\n"):
        assert is_exact(text_of(answer, AFTER), AFTER)
    for answer in (BEFORE, f"Here it is:\n```python\n{AFTER}```", f"{AFTER}\n", ""):
        assert not is_exact(text_of(answer, AFTER), AFTER)
    document = f"```python\n{AFTER}```\n"
    for answer in (document, f"````markdown\n{document}````"):
        assert is_exact(text_of(answer, document), document)
    assert not is_exact(text_of(AFTER, document), document)
    assert count_kept_lines("b\nx\na\nc\n", "a\nb\nc\n") == 2
    assert count_kept_lines("", "a\n") == 0


def _round(seconds: float, *answers: tuple[str, int, int | None]) -> Round:
    details = {"accepted_prediction_tokens": 5}
    return Round(
        seconds,
        [
            Answer(text, tokens, 0.1, {"num_passes": passes, "completion_tokens_details": details})
            if passes
            else Answer(text, tokens, 0.1, {"completion_tokens_details": None}, is_cut=True)
            for text, tokens, passes in answers
        ],
        0.125,
    )


def test_rows_are_of_each_kind_and_of_all_together(tmp_path: Path) -> None:
    cases, _ = read_cases(write_pairs(tmp_path, EDIT, EDIT, SHOUT), 0)
    plain, right, wrong = (AFTER, 10, 10), (AFTER, 10, 2), (BEFORE, 10, 3)
    edits = [
        Turn(_round(4, plain, plain), _round(1, right, right)),
        Turn(_round(6, plain, plain), _round(2, right, wrong)),
    ]
    shouts = [Turn(_round(1, ("A", 2, 2)), _round(1, ("A", 2, 2)))] * 2
    measured = {Key("server", "snippet", 1): edits, Key("server", "shout", 1): shouts}
    rows = make_rows(measured, cases)
    snippet, shout = rows["by_kind"]
    assert (snippet["engine"], snippet["kind"], snippet["streams"]) == ("server", "snippet", 1)
    assert (snippet["pairs"], snippet["tokens"], snippet["cut"]) == (2, 20, 0)
    assert (snippet["exact"], snippet["exact_lines"], snippet["texts_equal"]) == (0.75, 0.875, 0.75)
    # 4 and 3 times as fast in the same turn.
    assert snippet["speedup"] == 3.5
    assert snippet["plain_tokens_per_second"] == pytest.approx((5 + 20 / 6) / 2, abs=0.01)
    assert snippet["predicted_tokens_per_second"] == 15
    assert (snippet["plain_tokens_per_pass"], snippet["tokens_per_pass"]) == (1, 4.444)
    assert snippet["accepted_share"] == 0.5
    assert (shout["exact"], shout["speedup"]) == (1, 1)
    (both,) = rows["rows"]
    assert (both["pairs"], both["tokens"], both["exact"]) == (3, 22, 0.8333)
    assert both["predicted_tokens_per_second"] == pytest.approx((22 / 2 + 22 / 3) / 2, abs=0.01)
    assert both["speedup"] == pytest.approx((5 / 2 + 7 / 3) / 2, abs=0.001)
    lines = describe(rows | {"skipped": 4}).splitlines()
    assert [line.split()[:5] for line in lines[1:4]] == [
        ["server", "snippet", "1", "2", "0.750"],
        ["server", "shout", "1", "1", "1.000"],
        ["server", "all", "1", "3", "0.833"],
    ]
    assert lines[-1].startswith("4 pairs were left out")
    assert len(describe(rows | {"skipped": 0}).splitlines()) == 4


def test_what_a_server_does_not_report_is_null(tmp_path: Path) -> None:
    cases, _ = read_cases(write_pairs(tmp_path, EDIT), 0)
    silent = _round(1, (AFTER, 10, None))
    for turn, speedup in ((Turn(silent, None), None), (Turn(silent, silent), 1)):
        rows = make_rows({Key("vllm", "snippet", 8): [turn]}, cases)
        (row,) = rows["rows"]
        assert (row["exact"], row["cut"], row["plain_tokens_per_second"]) == (1, 1, 10)
        assert row["speedup"] == row["texts_equal"] == speedup
        for name in ("plain_tokens_per_pass", "tokens_per_pass", "accepted_share"):
            assert row[name] is None
        assert describe(rows | {"skipped": 0}).splitlines()[1].split()[-2] == "-"


def test_a_report_has_no_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BENCH_APPLY_API_KEY", "GATEWAY_API_KEYS", "WORKER_SEED"):
        monkeypatch.setenv(f"OPTIMIST_{name}", "17")
    variables = describe_setup(EngineOptions())["variables"]
    assert variables["OPTIMIST_WORKER_SEED"] == "17"
    assert not [name for name in variables if "KEY" in name]


class Server(ThreadingHTTPServer):
    """Answers every request with the same text, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.usage: dict[str, int] | None = {"completion_tokens": 4}
        self.asked: list[tuple[str | None, dict[str, Any]]] = []
        self.refused = ""
        """A request with this text is refused."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.headers["authorization"], body))
        if self.server.refused and self.server.refused in body["messages"][0]["content"]:
            self.send_response(400)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "the prompt is too long"}}')
            return
        choice = {"index": 0, "delta": {"content": f"```python\n{AFTER}```"}}
        event = {"choices": [choice | {"finish_reason": "stop"}], "usage": self.server.usage}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_any_server_is_measured_and_its_wrong_answers_are_shown(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path, EDIT, SHOUT)
    flags = ["--pairs", str(pairs), "--url", f"http://127.0.0.1:{server.server_port}/v1"]
    flags += ["--served-model", "merger", "--api-key", "secret", "--streams", "2", "--turns", "2"]
    assert main([*flags, "--wrong", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["model"] == "merger"
    assert "secret" not in printed.out + printed.err
    assert {row["kind"]: row["exact"] for row in report["by_kind"]} == {"snippet": 1, "shout": 0}
    assert [row["exact"] for row in report["rows"]] == [0.5]
    assert f"--- server, {pairs}, line 2: right\n" in printed.err
    assert "-A\n+def total(values):\n" in printed.err
    assert printed.err.count("--- ") == 1
    assert {key for key, _ in server.asked} == {"Bearer secret"}
    bodies = [
        body for _, body in server.asked if not body["messages"][0]["content"].startswith("C")
    ]
    assert {body["model"] for body in bodies} == {"merger"}
    # The second turn in reverse order.
    predictions = [(body.get("prediction") or {}).get("content") for body in bodies]
    assert predictions == [None, BEFORE, None, "a\n", BEFORE, None, "a\n", None]
    openai = {"model", "messages", "temperature", "stream", "stream_options", "max_tokens"}
    assert set().union(*bodies) == openai | {"prediction"}
    server.usage = None
    with pytest.raises(SetupError, match=r"^server: it reports no usage of streamed answers$"):
        main(flags)


def test_a_refused_edit_costs_no_other_one_its_answer(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.refused = "Shout."
    pairs = write_pairs(tmp_path, EDIT, SHOUT)
    url = f"http://127.0.0.1:{server.server_port}"
    flags = ["--pairs", str(pairs), "--url", url, "--served-model", "m", "--streams", "1"]
    assert main([*flags, "--turns", "1", "--json"]) == 0
    printed = capsys.readouterr()
    rows = {row["kind"]: row for row in json.loads(printed.out)["by_kind"]}
    assert (rows["snippet"]["exact"], rows["snippet"]["refused"]) == (1, 0)
    assert (rows["shout"]["exact"], rows["shout"]["refused"]) == (0, 1)
    assert printed.err.count(f"{pairs}, line 2: server: ") == 1
    assert "the prompt is too long" in printed.err


@pytest.mark.slow
def test_our_services_are_started_and_the_text_is_the_same_with_predictions(
    tmp_path: Path, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    # The form of request that the bundled model knows has the code last.
    repeat = {"before": "Repeat the code unchanged.", "after": BEFORE, "task": BEFORE.rstrip("\n")}
    pairs = write_pairs(tmp_path, repeat | {"kind": "repeat"}, EDIT)
    flags = ("--pairs", str(pairs), "--model", str(BUNDLED_MODEL), "--max-tokens", "40")
    report = report_of("apply", *flags, "--streams", "1", "--turns", "1", "--num-threads", "1")
    rows = {row["kind"]: row for row in report["by_kind"]}
    assert rows["repeat"]["exact"] == rows["repeat"]["exact_lines"] == 1
    assert report["rows"][0]["pairs"] == 2
    for row in (*rows.values(), *report["rows"]):
        assert (row["engine"], row["streams"], row["texts_equal"]) == ("optimist", 1, 1)
        assert row["tokens"] > 0
        assert row["speedup"] > 0
        assert row["tokens_per_pass"] >= 1
        assert 0 <= row["accepted_share"] <= 1
    assert report["skipped"] == 0
