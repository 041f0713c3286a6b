"""The benchmark of overload: how it counts, and a few seconds of it with real services."""

import json
import random
from dataclasses import replace

import pytest

from optimist_bench.overload.command import main
from optimist_bench.overload.load import (
    CHAT_TEXT,
    Behaviour,
    LoadTask,
    Outcome,
    make_request,
    read_reply,
    read_text,
)
from optimist_bench.overload.report import is_right, report_memory, report_outcomes

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RIGHT = Outcome(Behaviour.READS, 200, 0.5, is_right=True)
REFUSED = Outcome(Behaviour.READS, 429, 0.01, has_retry_after=True, has_retry_after_ms=True)
LEFT = Outcome(Behaviour.LEAVES, 0, 0.2, has_left=True)


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def test_an_answer_counts_when_all_of_it_is_there() -> None:
    refusal = b"HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}"
    reply = read_reply(refusal)
    assert reply is not None
    assert (reply.status, reply.headers[b"retry-after"], reply.body) == (429, b"3", b"{}")
    assert read_reply(refusal[:-1]) is None
    assert read_reply(refusal[:20]) is None
    chunked = read_reply(HEAD + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert chunked is not None
    assert chunked.body == b"abcde"
    assert read_reply(HEAD + b"3\r\nabc\r\n") is None


def test_texts_of_both_endpoints_are_read_whole_and_streamed() -> None:
    done = b"data: [DONE]\n\n"
    chat = event(delta={"role": "assistant", "content": ""}) + event(delta={"content": "ab"})
    assert read_text(chat + b": keep-alive\n\n" + event(delta={}) + done) == "ab"
    assert read_text(event(text="a") + event(text="b") + done) == "ab"
    assert read_text(json.dumps({"choices": [{"message": {"content": "ab"}}]}).encode()) == "ab"
    assert read_text(json.dumps({"choices": [{"text": "ab"}]}).encode()) == "ab"
    assert read_text(event(text="a")) is None
    assert read_text(event(text="a") + b'data: {"error": {"message": "no"}}\n\n' + done) is None


def test_what_is_wrong_is_counted() -> None:
    good = [RIGHT, REFUSED, LEFT]
    counts = report_outcomes(good)
    assert is_right(counts)
    assert [counts[name] for name in ("sent", "accepted", "left", "lost")] == [3, 1, 1, 0]
    assert counts["refused"] == {"429": 1}
    assert counts["refusal_ms"] == {"p50": 10, "p99": 10, "max": 10}
    assert counts["slow_latency_ms"] == {"p50": None, "p99": None, "max": None}
    for bad in (
        replace(RIGHT, is_right=False),
        replace(LEFT, has_left=False),
        replace(REFUSED, has_retry_after=False),
        replace(REFUSED, has_retry_after_ms=False),
        replace(REFUSED, status=500),
        replace(REFUSED, status=400),
    ):
        assert not is_right(report_outcomes([*good, bad]))


def test_memory_grows_from_the_middle_to_the_end() -> None:
    samples = [{"gateway": size << 20} for size in (100, 130, 140, 150, 142)]
    (memory,) = report_memory(samples).values()
    assert memory == {"start": 100, "middle": 140, "end": 142, "peak": 150, "growth": 2}


def test_requests_are_of_all_kinds() -> None:
    task = LoadTask(0, "m", ["a", "b", "c"], 8, ["x", "y"], 1, slow_share=0.2, leaving_share=0.2)
    rng = random.Random(3)
    requests = [make_request(task, rng) for _ in range(300)]
    assert {request.behaviour for request in requests} == set(Behaviour)
    assert {request.key for request in requests} == {"x", "y"}
    kinds = {
        (request.path, request.body["stream"], "prediction" in request.body) for request in requests
    }
    assert len(kinds) == 8
    for request in requests:
        if "messages" in request.body:
            assert request.text == task.texts[CHAT_TEXT]
        else:
            assert request.text == task.texts[request.body["prompt"][0]]


def test_overload_is_refused_and_what_is_accepted_completes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--seconds", "2", "--capacity-seconds", "1", "--slots", "4", "--places", "8"]
    more = ["--tokens", "48", "--pass-ms", "10", "--slow-share", "0.1", "--leaving-share", "0.2"]
    code = main([*arguments, *more, "--json"])
    report = json.loads(capsys.readouterr().out)
    counts = report["outcomes"]
    assert counts["accepted"] > 0
    assert counts["accepted_right"] == counts["accepted"]
    refused = sum(counts["refused"].values())
    assert refused > 0
    assert set(counts["refused"]) <= {"429", "503"}
    assert counts["refused_with_retry_after"] == counts["refused_with_retry_after_ms"] == refused
    assert counts["lost"] == 0
    assert counts["sent"] == counts["accepted"] + refused + counts["left"]
    assert report["tasks"]["after"] <= report["tasks"]["before"]
    for held in report["descriptors"].values():
        assert held["after"] <= held["before"]
    assert code == 0
