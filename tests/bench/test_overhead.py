"""The benchmark of what serving costs: its figures, and a small run of real services."""

import json
from pathlib import Path
from typing import Any

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_bench.harness.process_time import find_stolen_share
from optimist_bench.harness.simulated_service import Emissions, read_emissions
from optimist_bench.overhead.command import PACED_MS, find_latencies, main
from optimist_bench.overhead.load import Arrivals
from optimist_common.columns import to_bytes

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def chunk(*texts: str) -> bytes:
    events = [
        b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"
        for text in texts
    ]
    data = b"".join(events)
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


@pytest.mark.parametrize(
    "reads",
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n\r\n", END),
        (HEAD, chunk("a")),
        (HEAD, chunk("a"), b"0\r\n\r\n"),
    ],
)
def test_an_answer_that_is_not_complete_is_an_error(reads: tuple[bytes, ...]) -> None:
    with pytest.raises(RuntimeError, match="answer"):
        arrive(*reads).read_texts()


def test_the_latency_of_a_token_ends_when_all_of_its_text_is_there() -> None:
    answer = [(10, ""), (20, "abc"), (50, "de")]
    assert find_latencies([5, 5, 30], [1, 4, 5], answer) == [15, 45, 20]
    with pytest.raises(ValueError, match="shorter"):
        find_latencies([5, 5], [1, 6], answer)
    with pytest.raises(ValueError, match="shorter"):
        find_latencies([5], [1], [])


def test_the_share_that_a_host_took_is_of_what_was_asked_for() -> None:
    assert find_stolen_share((10.0, 2.0), (16.0, 4.0)) == 0.25
    assert find_stolen_share((10.0, 2.0), (10.0, 2.0)) == 0


def test_emissions_are_by_seed_also_when_a_slot_is_taken_again(tmp_path: Path) -> None:
    emissions = Emissions()
    for now_ns, seed in enumerate((7, 8), 1):
        plan = worker_pb2.ExecuteRequest()
        plan.admissions.add(slot=3).sampling.seed = seed
        response = worker_pb2.ExecuteResponse(
            slots=to_bytes([3]), num_emitted_tokens=to_bytes([now_ns])
        )
        emissions.note(plan, response, 10 * now_ns)
    emissions.note(None, response, 30)
    emissions.write(tmp_path / "emissions")
    assert read_emissions(tmp_path / "emissions") == {7: [10], 8: [20, 20, 30, 30]}


def measure_small(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    small = ["--streams", "4", "--tokens", "60", "--ramp-seconds", "0.1", "--json"]
    assert main([*small, *arguments]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def check_run(run: dict[str, Any]) -> None:
    assert run["all_right"]
    assert run["output_tokens"] == 240
    services = {"gateway", "scheduler", "proposer", "simulated_worker"}
    assert run["cpu_us_per_token"].keys() == services
    assert run["cpu_us_per_token"]["gateway"] > 0
    latency = run["added_latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert 0 <= run["stolen_share"] < 1


def test_requests_whose_answers_repeat_nothing_rest(capsys: pytest.CaptureFixture[str]) -> None:
    report = measure_small(capsys, "--pass-ms", "3", "--answers", "random")
    check_run(report)
    assert (report["pass_ms"], report["answers"], report["follow"]) == (3, "random", "all")
    assert report["tokens_per_pass"] == 1
    assert report["following"]["rested"] <= report["following"]["woken"] <= 4


def test_costs_are_of_the_peak_and_latencies_of_a_paced_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    follow = ("--predictions", "true", "--follow", "predictions")
    report = measure_small(capsys, *follow)
    peak, paced = report["peak"], report["paced"]
    for run in (peak, paced):
        check_run(run)
        assert run["tokens_per_pass"] > 1
        assert run["following"] == {"woken": 0, "rested": 0}
    assert (peak["pass_ms"], paced["pass_ms"]) == (0, PACED_MS)
    for name in ("tokens_per_second", "cpu_us_per_token"):
        assert report[name] == peak[name]
    assert report["added_latency_ms"] == paced["added_latency_ms"]
    assert report["all_right"]
