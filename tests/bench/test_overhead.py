"""`optimist bench overhead`: its figures, and small runs of real services."""

import json
from typing import Any

import pytest

from optimist_bench.overhead import command
from optimist_bench.overhead.command import PACED_MS
from optimist_bench.overhead.load import Arrivals
from tests.bench.conftest import ReportOf

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"e\r\n" + DONE + b"\r\n0\r\n\r\n"


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def chunk(*texts: str) -> bytes:
    data = b"".join(event(delta={"content": text}) for text in texts)
    return b"%x\r\n%s\r\n" % (len(data), data)


def arrive(*reads: bytes) -> Arrivals:
    arrivals = Arrivals()
    for number, data in enumerate(reads):
        arrivals.data += data
        arrivals.ends.append(len(arrivals.data))
        arrivals.times_ns.append(100 * number)
    return arrivals


def test_pieces_arrive_with_the_last_byte_of_their_chunk() -> None:
    split = chunk("cd")
    arrivals = arrive(HEAD, chunk("a", "b"), split[:9], split[9:] + chunk("e"), END)
    assert arrivals.read_texts() == [(100, "a"), (100, "b"), (300, "cd"), (300, "e")]


def test_an_answer_that_is_not_complete_is_an_error() -> None:
    for reads in (
        (b"HTTP/1.1 429 Too Many\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n\r\n", END),
        (HEAD, chunk("a")),
        (HEAD, chunk("a"), b"0\r\n\r\n"),
    ):
        with pytest.raises(RuntimeError, match="answer"):
            arrive(*reads).read_texts()


SMALL = ("overhead", "--streams", "4", "--tokens", "60", "--ramp-seconds", "0.1")


def check_run(run: dict[str, Any]) -> None:
    assert run["all_right"]
    assert run["output_tokens"] == 240
    services = {"gateway", "scheduler", "proposer", "simulated_worker"}
    assert run["cpu_us_per_token"].keys() == services
    assert run["cpu_us_per_token"]["gateway"] > 0
    latency = run["added_latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert 0 <= run["stolen_share"] < 1


def test_a_run_counts_what_each_service_takes(report_of: ReportOf) -> None:
    words = ("--predictions", "--follow", "predictions", "--pass-ms", "1")
    run = report_of(*SMALL, *words)
    check_run(run)
    assert run["pass_ms"] == 1
    assert run["tokens_per_pass"] > 1
    assert run["following"] == {"woken": 0, "rested": 0}


def test_costs_are_of_the_peak_and_latencies_of_a_paced_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(_: object, pass_ms: float) -> dict[str, Any]:
        names = ("tokens_per_second", "cpu_us_per_token", "added_latency_ms")
        return dict.fromkeys(names, pass_ms) | {"all_right": pass_ms == 0}

    monkeypatch.setattr(command, "_measure", measured)
    report = command.measure(command.OverheadSettings())
    assert (report["tokens_per_second"], report["cpu_us_per_token"]) == (0, 0)
    assert report["added_latency_ms"] == PACED_MS
    assert not report["all_right"]
