"""The server around transformers' `generate`: streams, batches, seeds, and what it refuses."""

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from optimist_bench.peers.generate_server import GenerateServer, GenerateStream, Piece, Request
from tests.stack import BUNDLED_MODEL, free_port, wait_until

MESSAGES = [{"role": "user", "content": "abc"}]
BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 4, "stream": True, "temperature": 0}


class _Tokenizer:
    def apply_chat_template(self, messages: list[dict[str, str]], **_options: bool) -> list[int]:
        return [ord(letter) for letter in messages[-1]["content"]]


class _Engine:
    """Answers with the length of the prompt, and fails on empty ones."""

    tokenizer = _Tokenizer()
    batch_size = 2

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer(self, requests: Sequence[Request]) -> None:
        self.begun.put(len(requests))
        self.may_answer.wait()
        self.batches.append(len(requests))
        for request in requests:
            if not request.token_ids:
                raise ValueError("an empty prompt")
            request.pieces.put(Piece(str(len(request.token_ids)), 1))
            request.pieces.put(Piece("", 2, "stop"))


@pytest.fixture
def server() -> Iterator[GenerateServer]:
    engine: Any = _Engine()
    running = GenerateServer(engine, "model", free_port())
    for target in (running.serve_forever, running.generate_forever):
        threading.Thread(target=target, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


@pytest.fixture
def http(server: GenerateServer) -> Iterator[httpx.Client]:
    url = f"http://127.0.0.1:{server.server_port}"
    with httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")]
    assert lines[-2:] == ["[DONE]", ""]
    return [json.loads(line) for line in lines[:-2]]


def test_an_answer_is_streamed_with_its_usage(http: httpx.Client) -> None:
    assert http.get("/health").is_success
    assert http.get("/v1/models").json()["data"][0]["id"] == "model"
    first, last, end = _events(http.post("/v1/chat/completions", json=BODY))
    assert first["choices"][0] == {"index": 0, "delta": {"content": "3"}, "finish_reason": None}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert end["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize(
    ("bodies", "batches"),
    [
        ([BODY] * 3, [1, 2, 1]),
        # A batch has one temperature.
        ([BODY, BODY | {"temperature": 1, "seed": 7}], [1, 1, 1]),
    ],
)
def test_what_waits_is_answered_in_batches(
    http: httpx.Client, server: GenerateServer, bodies: list[Any], batches: list[int]
) -> None:
    engine: Any = server.engine
    engine.may_answer.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(http.post, "/v1/chat/completions", json=BODY)
        assert engine.begun.get(timeout=10) == 1
        others = [pool.submit(http.post, "/v1/chat/completions", json=each) for each in bodies]
        wait_until(lambda: server.waiting.qsize() == len(bodies), "requests that wait")
        engine.may_answer.set()
        assert all(_events(each.result()) for each in (first, *others))
    assert engine.batches == batches


@pytest.mark.parametrize("with_lookup", [False, True])
def test_sampled_answers_are_of_their_seed(with_lookup: bool) -> None:
    engine = GenerateStream(str(BUNDLED_MODEL), "float32", 8, with_lookup=with_lookup)
    tokens = engine.tokenizer.encode("abc", add_special_tokens=False)

    def answer(temperature: float, seed: int) -> str:
        request = Request(tokens, 24, temperature, seed)
        engine.answer([request])
        return "".join(request.pieces.get().text for _ in range(request.pieces.qsize()))

    # The model is very sure of its tokens.
    assert answer(1e4, 1) == answer(1e4, 1) != answer(1e4, 2)
    assert answer(0.0, 1) == answer(0.0, 2)


def test_other_requests_are_refused(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json=BODY | {"messages": None})
    assert response.status_code == 400
    assert "TypeError" in response.json()["error"]["message"]
    assert http.post("/v1/completions", json=BODY).status_code == 404
    assert http.get("/metrics").status_code == 404


def test_a_failure_ends_the_answer_and_not_the_server(http: httpx.Client) -> None:
    empty = BODY | {"messages": [{"role": "user", "content": ""}]}
    response = http.post("/v1/chat/completions", json=empty)
    assert "ValueError: an empty prompt" in response.text
    assert "[DONE]" not in response.text
    assert _events(http.post("/v1/chat/completions", json=BODY))
