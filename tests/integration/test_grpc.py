"""The gRPC API of running services, with the bundled model."""

from collections.abc import Iterator

import httpx
import pytest

from optimist_client import Client, Message, Options
from optimist_training.data.edits import Edit
from tests.integration.edit import MODEL, edits
from tests.stack import Stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    assert f"gRPC     {stack.grpc_address}" in stack.output
    with Client(stack.grpc_address, timeout=120) as connected:
        yield connected


def messages(edit: Edit) -> list[Message]:
    return [Message(one["role"], one["content"]) for one in edit.messages()]


def test_an_edit_is_the_same_over_both_apis(stack: Stack, client: Client) -> None:
    edit = edits(1)[0]
    plain = client.generate(messages(edit), temperature=0.0).result()
    options = Options(temperature=0.0, prediction=edit.before, include_provenance=True)
    options |= Options(include_speculation=True)
    predicted = client.generate(messages(edit), **options).result()
    body = {"model": MODEL, "messages": edit.messages(), "temperature": 0}
    url = f"{stack.url}/v1/chat/completions"
    rest = httpx.post(url, json=body, timeout=120, trust_env=False).json()
    assert plain.text == predicted.text == rest["choices"][0]["message"]["content"]
    assert plain.answers[0].token_ids == predicted.answers[0].token_ids
    assert predicted.usage.accepted_prediction_tokens > plain.usage.completion_tokens / 2
    assert predicted.usage.num_passes < plain.usage.completion_tokens / 2
    assert predicted.speculation is not None
    assert predicted.speculation.num_passes == predicted.usage.num_passes
    segments = predicted.answers[0].segments
    assert "".join(segment.text for segment in segments) == predicted.text
    places = [(one.prediction, one.text) for one in segments if one.prediction and one.text]
    assert places
    for place, text in places:
        assert edit.before[place.start : place.end] == text


def test_every_step_is_a_pass(client: Client) -> None:
    edit = edits(1)[0]
    stream = client.generate(messages(edit), temperature=0.0, prediction=edit.before)
    steps = [step for step in stream if step.token_ids]
    result = stream.result()
    assert len(steps) == result.usage.num_passes
    assert max(step.num_accepted_tokens for step in steps) > 8
