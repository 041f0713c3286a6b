"""Everything that the official Python client offers for text, against a running stack."""

import json
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.integration.edit import MODEL, edits
from tests.stack import WHITE_SPACE, Stack, our_engine

EDIT = edits(1, seed=5)[0]
MESSAGES: Any = EDIT.messages()
COUNT = {"count": {"type": "integer", "minimum": 0, "maximum": 9}}
PARAMETERS = {"properties": COUNT, "required": ["count"], "additionalProperties": False}
TOOL: Any = {
    "type": "function",
    "function": {"name": "rename", "parameters": {"type": "object"} | PARAMETERS},
}


class Place(BaseModel):
    row: bool
    column: bool


def complete(client: OpenAI, **options: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(**{"model": MODEL, "messages": MESSAGES, "temperature": 0} | options)


def test_streams_say_the_same_and_end_with_usage(client: OpenAI) -> None:
    whole = complete(client, max_tokens=24)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(complete(client, max_tokens=24, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    # Where tokens come from depends on when a proposer answers.
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=24, stop=["\n"]
    ) as stream:
        said = stream.get_final_completion().choices[0].message.content
    stopped = complete(client, max_tokens=24, stop=["\n"])
    assert (said or "") == stopped.choices[0].message.content


@our_engine(reason=WHITE_SPACE)
def test_formats_are_parsed(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Place, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Place)
    text = complete(client, response_format={"type": "json_object"}).choices[0].message.content
    assert isinstance(json.loads(text), dict)


@our_engine(reason=WHITE_SPACE)
@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_results_taken(client: OpenAI, stream: bool) -> None:
    options = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    options["max_tokens"] = 300
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **options) as events:  # type: ignore[arg-type]
            message: Any = events.get_final_completion().choices[0].message
    else:
        choice = complete(client, **options).choices[0]
        assert choice.finish_reason == "tool_calls"
        message = choice.message
    (call,) = message.tool_calls
    assert call.function.name == "rename"
    assert 0 <= json.loads(call.function.arguments)["count"] <= 9
    said = {"role": "assistant", "tool_calls": [call.model_dump(exclude_none=True)]}
    said["tool_calls"][0]["function"].pop("parsed_arguments", None)
    said["tool_calls"][0].pop("index", None)
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    assert complete(client, messages=[*MESSAGES, said, result], max_tokens=4).choices


def test_responses(client: OpenAI) -> None:
    create: Any = partial(client.responses.create, model=MODEL, input="Hello", max_output_tokens=16)
    response, events = create(), list(create(stream=True, temperature=0))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert response.usage is not None
    assert response.usage.output_tokens > 0


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_fields_that_are_not_known_are_named(client: OpenAI) -> None:
    create: Any = client.chat.completions.with_raw_response.create
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2}
    response = create(**body, extra_body={"colour": 1})
    assert response.parse().choices
    assert response.headers["x-ignored-fields"] == "colour"


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"model": "gpt-9"}, "model", "model_not_found"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
    ],
)
def test_errors_have_the_client_s_classes(
    client: OpenAI, options: dict[str, Any], param: str, code: str
) -> None:
    error_class = openai.NotFoundError if param == "model" else openai.BadRequestError
    with pytest.raises(error_class) as caught:
        complete(client, **options)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


async def test_plain_and_async_clients_agree(stack: Stack, client: OpenAI) -> None:
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as other:
        stream = await other.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=16, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == complete(client, max_tokens=16).choices[0].message.content


def test_clients_try_again_as_the_answer_says(stack: Stack) -> None:
    num_asked = 0

    def refuse_once(request: httpx.Request) -> httpx.Response:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            error = {"message": "busy", "type": "server_error", "param": None, "code": "overloaded"}
            return httpx.Response(503, json={"error": error}, headers={"retry-after": "0"})
        with httpx.Client() as http:
            sent = http.post(str(request.url), content=request.content, headers=request.headers)
        return httpx.Response(sent.status_code, json=sent.json())

    http_client: Any = httpx.Client(transport=httpx.MockTransport(refuse_once))
    with OpenAI(
        base_url=f"{stack.url}/v1", api_key="none", max_retries=1, http_client=http_client
    ) as patient:
        assert complete(patient, max_tokens=2).choices
    assert num_asked == 2
