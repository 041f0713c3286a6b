"""Requests without a prediction, drafted from their prompts by real services."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Timer
from typing import Any

import grpc
import pytest
import redis

from optimist.proposer.v1 import proposer_pb2, proposer_pb2_grpc
from optimist_common.columns import from_bytes, to_bytes
from tests.integration.edit import Answer, ask, complete, connect, edits, predict
from tests.redis_server import RedisServer
from tests.stack import EXACT, MODEL_FLAG, Service, start, start_services

NO_DRAFTS = {"num_speculative_tokens": 0}


class Parts:
    """Services that were started one by one."""

    def __init__(self, stack: ExitStack, proposer: Service, drafter: str, *scheduler: str) -> None:
        worker = (*EXACT, "--drafter", drafter)
        url = start_services(stack, [proposer], worker, scheduler).url
        self.client = stack.enter_context(connect(url))
        # Who comes before a proposer is reached is not followed.
        assert any("ngram" in self.ask().by_source for _ in range(50))

    def ask(self, number: int = 0, **extra: object) -> Answer:
        """Asks for an edit of a file that stands in the prompt."""
        chosen = [edit for edit in edits(40, seed=19) if len(edit.after) > 200][number]
        return ask(self.client, chosen, None, extra_body=extra)

    def complete(self, messages: list[dict[str, str]], **extra: object) -> dict[str, Any]:
        """Asks for a whole answer, with where it came from."""
        extra = {"include_provenance": True, "return_token_ids": True} | extra
        whole: dict[str, Any] = complete(self.client, messages, extra_body=extra).model_dump()
        return whole


@pytest.fixture(scope="module")
def proposer(redis_server: RedisServer) -> Iterator[Service]:
    with ExitStack() as stack:
        yield start(stack, "proposer", *MODEL_FLAG, "--store", redis_server.url)


def test_the_file_in_the_prompt_is_drafted(proposer: Service) -> None:
    with ExitStack() as stack:
        parts = Parts(stack, proposer, "none")
        answers = [(parts.ask(number), parts.ask(number, **NO_DRAFTS)) for number in range(2)]
    for drafted, plain in answers:
        assert drafted.token_ids == plain.token_ids
        # What is drafted from the prompt is own text: nothing was predicted.
        assert drafted.by_source["ngram"] > len(drafted.token_ids) / 2
        assert drafted.by_source.keys() == {"target", "ngram"}
        assert drafted.accepted == drafted.rejected == 0
        assert plain.by_source.keys() == {"target"}


def require_same(plain: dict[str, Any], drafted: dict[str, Any]) -> None:
    (expected,), (choice,) = plain["choices"], drafted["choices"]
    assert choice["message"] == expected["message"]
    assert choice["token_ids"] == expected["token_ids"]


def test_prediction_prompt_and_model_draft_for_one_request(proposer: Service) -> None:
    """The prediction has the first half; a name that changes breaks windows all the time."""
    edit = edits(8, seed=19)[7]
    earlier = [
        {"role": "user", "content": "What can you do?"},
        {"role": "assistant", "content": "I edit code."},
    ]
    messages = [*earlier, *edit.messages()]
    lines = edit.before.splitlines(keepends=True)
    prediction = "".join(lines[: len(lines) // 2])
    with ExitStack() as stack:
        # The model drafts where a step has no window yet: none waits for one.
        wait = ("--proposer-wait", "paying", "--proposer-wait-ms", "0")
        parts = Parts(stack, proposer, "eagle", *wait)
        plain = parts.complete(messages, **NO_DRAFTS)
        for attempt in range(20):
            # So they come late, however slow the worker is.
            proposer.signal(signal.SIGSTOP)
            resume = Timer(attempt / 20, proposer.signal, [signal.SIGCONT])
            resume.start()
            drafted = parts.complete(messages, **predict(prediction))
            resume.join()
            require_same(plain, drafted)
            by_source = drafted["usage"]["completion_tokens_details"]["tokens_by_source"]
            if by_source.keys() == {"target", "prediction", "ngram", "eagle"}:
                break
        else:
            pytest.fail(f"not all drafted: {by_source}")
    (choice,) = drafted["choices"]
    assert drafted["usage"]["num_passes"] < plain["usage"]["num_passes"]
    segments, counts = choice["provenance"], Counter[str]()
    assert "".join(segment["text"] for segment in segments) == choice["message"]["content"]
    for segment in segments:
        counts[segment["source"]] += segment["num_tokens"]
        if "prediction" in segment:
            place = segment["prediction"]
            assert prediction[place["start"] : place["end"]] == segment["text"]
        if "message" in (place := segment.get("prompt", {})):
            content = messages[place["message"]]["content"]
            assert place["message"] == 2
            assert content[place["start"] : place["end"]] == segment["text"]
    assert counts == by_source
    assert any("prediction" in segment for segment in segments)
    assert any("message" in segment.get("prompt", {}) for segment in segments)


def test_what_a_prompt_holds_is_never_drafted_for_another(
    proposer: Service, redis_server: RedisServer
) -> None:
    """Two tenants at one proposer, also after it was started again and reads from Redis."""
    secret, other = list(range(100, 160)), list(range(200, 260))
    shared = [90, 91, 92, 93, 94, 95, 96, 97]
    said, again = (proposer_pb2.ProposeRequest(batch=1) for _ in range(2))
    prompts = {"a": shared + secret, "b": other + shared, "c": other + shared}
    for name, prompt in prompts.items():
        tenant = "B" if name == "b" else "A"
        said.opens.add(request_id=name, prompt_token_ids=to_bytes(prompt), tenant=tenant)
        said.observations.add(request_id=name, token_ids=to_bytes(shared))
        again.observations.add(request_id=name, position=8, token_ids=to_bytes([100]))
    drafted = propose(proposer.address, said)
    # It does draft, and for each what its own prompt holds.
    assert drafted["a"] & set(secret)
    assert not drafted["b"] & set(secret)
    assert not drafted["c"] & set(secret)
    assert redis.Redis.from_url(redis_server.url).dbsize() > 0
    with ExitStack() as stack:
        replica = start(stack, "proposer", *MODEL_FLAG, "--store", redis_server.url)
        drafted = propose(replica.address, again)
    assert drafted["a"] & set(secret[1:])
    assert not drafted.get("b", set()) & set(secret)
    assert not drafted.get("c", set()) & set(secret)


def propose(address: str, batch: proposer_pb2.ProposeRequest) -> dict[str, set[int]]:
    """Sends a batch; returns the tokens of all windows by request."""
    drafted: dict[str, set[int]] = {}
    with grpc.insecure_channel(address) as channel:
        for response in proposer_pb2_grpc.ProposerServiceStub(channel).Propose(iter([batch])):
            assert not response.gaps
            for window in response.windows:
                tokens = from_bytes(window.token_ids).tolist()
                drafted.setdefault(window.request_id, set()).update(tokens)
    return drafted
