"""`optimist bench engines`: its prompts, rows and plot; a run of all engines with a small model."""

import json
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from optimist_bench.engines.asking import Answer, Round
from optimist_bench.engines.command import EnginesSettings, main
from optimist_bench.engines.plot import draw
from optimist_bench.engines.report import Key, make_rows
from optimist_bench.engines.servers import ENGINES, Engine
from optimist_bench.engines.tables import combine, describe
from optimist_bench.engines.workloads import WORKLOADS, make_prompts, read_files
from optimist_common.errors import SetupError
from optimist_common.settings import load_settings
from tests.bench.conftest import ReportOf
from tests.stack import BUNDLED_MODEL

SOURCE = "def total(values):\n    return sum(values)\n\n\n" * 15


def pairs_file(directory: Path, num_pairs: int) -> str:
    rows = [{"before": f"# {number}\n{SOURCE}", "after": ""} for number in range(num_pairs)]
    path = directory / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_files_come_from_pairs_from_a_directory_or_from_our_sources(tmp_path: Path) -> None:
    texts = [f"# {number}\n{SOURCE}".rstrip() for number in range(3)]
    pairs = pairs_file(tmp_path, 3)
    assert read_files(pairs) == read_files(str(tmp_path)) == texts
    (tmp_path / "pairs.jsonl").unlink()
    (tmp_path / "b").mkdir()
    for name, content in (("b/file", texts[1]), ("a", texts[0]), ("short", "x")):
        (tmp_path / name).write_text(content)
    (tmp_path / "noise").write_bytes(b"\xff" * 700)
    assert read_files(str(tmp_path)) == texts[:2]
    assert len(read_files("")) >= 12
    (tmp_path / "pairs.jsonl").write_text('{"before": "text"}\n{"after": "text"}')
    with pytest.raises(SetupError, match="line 2 has no text 'before'"):
        read_files(str(tmp_path))


def test_a_prediction_is_attached_to_the_same_request(tmp_path: Path) -> None:
    pairs = pairs_file(tmp_path, 5)
    plain, predicted = (make_prompts(each, pairs, 2) for each in ("rewrite", "rewrite-predicted"))
    assert [each.text for each in plain] == [each.text for each in predicted]
    assert [each.prediction for each in plain] == [None, None]
    assert all(each.text.startswith(each.prediction or "none") for each in predicted)
    chats, wrong = (make_prompts(each, pairs, 3, 20) for each in ("chat", "wrong-predicted"))
    assert [(each.text, each.seed) for each in chats] == [(each.text, each.seed) for each in wrong]
    # A question that comes again is sampled with another seed.
    assert len({each.seed for each in chats}) == 20
    assert [each.prediction for each in chats] == [None] * 20
    files = [each.prediction for each in make_prompts("rewrite-predicted", pairs, 5)]
    assert [each.prediction for each in wrong] == files * 4


def test_an_agent_is_sent_the_whole_conversation_about_a_file(tmp_path: Path) -> None:
    source = "\n".join(f"name = {number}  # of a name" for number in range(40))
    (tmp_path / "file").write_text(source)
    fixed, renamed = (
        prompt.conversation() for prompt in make_prompts("edit-agent", str(tmp_path), 1, 2)
    )
    for requests, right in ((fixed, source), (renamed, source.replace("name", "label"))):
        assert [len(each) for each in requests] == [1, 3, 5, 7]
        for shorter, longer in pairwise(requests):
            assert longer[: len(shorter)] == shorter
        last = requests[-1]
        assert [each["role"] for each in last] == ["user", "assistant"] * 3 + ["user"]
        parts, changes = zip(*(each["content"].split("\n\n") for each in last[::2]), strict=True)
        assert "\n".join(parts) == source
        assert len(set(changes)) == 1
        answers = [each["content"] for each in last[1::2]]
        assert right.startswith("\n".join(answers))


def test_more_streams_add_requests_to_the_same_ones(tmp_path: Path) -> None:
    pairs = pairs_file(tmp_path, 5)
    for workload in WORKLOADS:
        few, many = make_prompts(workload, pairs, 2), make_prompts(workload, pairs, 2, 10)
        assert make_prompts(workload, pairs, 2, 2) == few == many[:2]
        assert len(set(many)) == len(many) == 10
    with pytest.raises(SetupError, match=r"^--streams: rewrite has 10 requests, not 17$"):
        make_prompts("rewrite", pairs, 2, 17)


def _round(seconds: float, *texts: str) -> Round:
    answers = [Answer(text, 10, seconds / 4) for text in texts]
    return Round(seconds, answers, 0.125, front_seconds=seconds / 1000)


ROUNDS = {
    Key("optimist", "rewrite", 1): [_round(4, "a", "b"), _round(5, "a", "c")],
    Key("optimist", "rewrite-predicted", 1): [_round(1, "a", "b"), _round(2, "a", "b")],
    Key("optimist-plain", "rewrite", 1): [_round(4, "a", "b"), _round(4, "a", "b")],
    Key("transformers-lookup", "rewrite", 1): [_round(2, "a", "b"), _round(2, "a", "b")],
}
REWRITES = ("rewrite", "rewrite-predicted")


def _report(*engines: str) -> dict[str, Any]:
    facts = {"model": "models/smollm2", "dtype": "float32", "cpu": "2 x Processor", "threads": 2}
    facts |= {"max_tokens": 10, "versions": {"optimist": "0.1.0"}}
    facts |= {"prompts_digest": {"rewrite": "0123"}}
    engines = engines or ("optimist", "optimist-plain", "transformers-lookup")
    return facts | {"rows": make_rows(ROUNDS, engines, REWRITES, [1])}


def test_a_row_has_the_median_the_spread_and_what_it_was_compared_with() -> None:
    rows = {(row["engine"], row["workload"]): row for row in _report()["rows"]}
    ours = rows["optimist", "rewrite"]
    assert ours["tokens"] == 20
    assert (ours["seconds"], ours["seconds_min"], ours["seconds_max"]) == (4.5, 4, 5)
    assert (ours["tokens_per_second"], ours["tokens_per_second_mean"]) == (4.5, 4.5)
    assert ours["time_to_first_token_ms"] == 1125
    assert ours["front_us_per_token"] == 225
    assert ours["same_text"] == 0.75
    assert [each["stolen_share"] for each in ours["rounds"]] == [0.125, 0.125]
    predicted = rows["optimist", "rewrite-predicted"]
    # Of its two turns, 4 and 2 times as fast as the plain one in the same turn.
    assert (ours["gain"], predicted["gain"]) == (0.9, 3)
    assert predicted["same_text"] == 1
    itself = rows["optimist-plain", "rewrite"]
    # Its second turn is compared with its first.
    assert (itself["same_text"], itself["gain"]) == (1, None)
    # It takes no prediction, so that this is the same measurement.
    assert rows["optimist-plain", "rewrite-predicted"]["seconds"] == itself["seconds"]
    assert (ours["requests"], itself["requests"]) == (2, 2)
    alone = rows["transformers-lookup", "rewrite"]
    assert (alone["same_text"], alone["gain"]) == (None, None)
    assert alone["same_text_reason"] == "transformers was not run"


def test_a_report_is_printed_and_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    saved.write_text(json.dumps(_report()))
    assert main(["--report", str(saved), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert printed == describe(_report()) + "\n"
    for line in (
        "| workload | at a time | optimist | optimist-plain | transformers-lookup |",
        "| rewrite | 1 | 4.5 (0.90) | 5.0 | **10.0** |",
        "| rewrite-predicted | 1 | **15.0** (3.00) | 5.0 | 10.0 |",
        "Same text as without drafts, at least: optimist 75% greedy; optimist-plain 100% greedy.",
        "| tokens/s, 1 at a time | rewrite | rewrite-predicted |",
        "| optimist | 4 | 15 |",
    ):
        assert line in printed.splitlines()
    texts = "".join(ElementTree.parse(plot).getroot().itertext())
    for text in ("smollm2, float32, 2 x Processor", "tokens per second", *REWRITES, "optimist"):
        assert text in texts
    assert "prefers-color-scheme" in plot.read_text()
    with pytest.raises(SetupError, match="--plot: cannot write /nowhere/plot"):
        draw(_report(), Path("/nowhere/plot.svg"))


def test_reports_of_different_engines_are_one_table(tmp_path: Path) -> None:
    parts = [_report("optimist", "optimist-plain"), _report("transformers-lookup")]
    assert describe(combine(parts)) == describe(_report())
    paths = [tmp_path / "ours.json", tmp_path / "peers.json"]
    for change, message in (
        ({"dtype": "bfloat16"}, "--report: dtype is float32 and bfloat16"),
        ({"prompts_digest": {"rewrite": "4567"}}, "--report: the requests of rewrite are not the"),
    ):
        for path, part in zip(paths, (parts[0], parts[1] | change), strict=True):
            path.write_text(json.dumps(part))
        with pytest.raises(SetupError, match=message):
            main(["--report", ",".join(map(str, paths))])


SERVER = r"""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port, path = sys.argv[1:]

def note(line):
    with open(path, "a") as file:
        file.write(line + "\n")

note("{}")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        models = json.dumps({"data": [{"id": "model"}]})
        self._answer("process_cpu_seconds_total 1.5" if self.path == "/metrics" else models)

    def do_POST(self):
        note(self.rfile.read(int(self.headers["content-length"])).decode())
        choice = {"index": 0, "delta": {"content": "Yes."}}
        event = {"choices": [choice], "usage": {"completion_tokens": 2}}
        self._answer(f"data: {json.dumps(event)}\n\n")

    def _answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.mark.parametrize(
    ("keep_running", "num_starts", "order"),
    [
        # Side by side, with one stream and with two.
        ("true", 1, ["optimist", "transformers"] * 2 + ["transformers", "optimist"] * 2),
        ("false", 2, ["optimist", "transformers", "transformers", "optimist"]),
    ],
)
def test_servers_are_started_in_each_turn_or_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    keep_running: str,
    num_starts: int,
    order: list[str],
) -> None:
    for name in ("optimist", "transformers"):
        words = ("{python}", "-c", SERVER.replace("{", "{{").replace("}", "}}"), "{port}")
        engine = Engine((*words, str(tmp_path / name)), "transformers")
        monkeypatch.setitem(ENGINES, name, engine)
    arguments = ["--model", str(BUNDLED_MODEL), "--engines", "optimist,transformers", "--json"]
    arguments += ["--workloads", "chat", "--prompts", "1", "--streams", "1,2", "--turns", "2"]
    assert main([*arguments, "--keep-running", keep_running]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["keep_running"] is (keep_running == "true")
    sizes = [(row["streams"], row["requests"], len(row["rounds"])) for row in report["rows"]]
    assert sizes == [(1, 1, 2), (1, 1, 2), (2, 2, 2), (2, 2, 2)]
    assert all(row["front_us_per_token"] == 0 for row in report["rows"])
    asked = [line.split()[-1] for line in printed.err.splitlines() if line.startswith("turn ")]
    assert asked == order
    for name in ("optimist", "transformers"):
        requests = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert requests.count({}) == num_starts
        # Warm-ups have none; rounds are asked with different ones, as they repeat their prompts.
        salts = [each["cache_salt"] for each in requests if "cache_salt" in each]
        assert sorted(Counter(salts).values()) == [1, 1, 2, 2]


@pytest.mark.slow
def test_all_engines_answer_the_same_requests(
    tmp_path: Path, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIMIST_WORKER_COST_SECONDS", "0")
    arguments = ["--model", str(BUNDLED_MODEL), "--files", pairs_file(tmp_path, 2), "--turns", "1"]
    arguments += ["--prompts", "2", "--max-tokens", "8", "--streams", "1,2", "--num-threads", "1"]
    arguments += ["--workloads", "rewrite-predicted,chat"]
    # Each kind of server once; what looks drafts up is tested beside its server.
    arguments += ["--engines", "optimist,transformers"]
    report = report_of("engines", *arguments)
    settings = load_settings(EnginesSettings, arguments)
    rows = {(row["engine"], row["workload"], row["streams"]): row for row in report["rows"]}
    assert set(rows) == set(product(settings.engines, settings.workloads, (1, 2)))
    for (engine, _, streams), row in rows.items():
        # `optimist-plain` does not run; the first answers are those to compare with.
        is_compared = engine == "transformers" and streams == 2
        assert row["same_text"] == (1 if is_compared else None)
        assert 0 < row["tokens"] <= 16
        assert row["tokens_per_second"] > 0
        assert row["time_to_first_token_ms"] <= 1000 * row["seconds"]
    # All run the same model on the same prompts, and all count the end token.
    for workload in settings.workloads:
        assert len({row["tokens"] for key, row in rows.items() if key[1] == workload}) == 1
    assert report["variables"]["OPTIMIST_WORKER_COST_SECONDS"] == "0"
    assert all(report["versions"].values())


def test_an_engine_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('loading'); print('no memory'); print(); raise SystemExit(1)"
    monkeypatch.setitem(ENGINES, "optimist", Engine(("{python}", "-c", script), "optimist"))
    with pytest.raises(SetupError, match=r"^optimist did not start: no memory$"):
        main(["--model", str(BUNDLED_MODEL), "--engines", "optimist"])
