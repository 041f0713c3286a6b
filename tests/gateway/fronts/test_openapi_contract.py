"""What `/openapi.json` says is so: schemathesis asks for whatever it allows and forbids."""

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest
from tokenizers import Tokenizer as Backend

from optimist_gateway.fronts.openapi import numbers_below
from tests.gateway.fake_scheduler import FakeScheduler, Script, Step
from tests.gateway.fronts.openapi_hooks import is_ruled_out
from tests.stack import REPOSITORY

SEED = "2"
NUM_EXAMPLES = "40"
"""Of an operation in a phase; coverage has as many as the document has limits."""
SECONDS = 280


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
async def test_the_gateway_keeps_what_its_document_says(
    url: str, say: Callable[..., list[int]]
) -> None:
    say("The quick brown fox", width=2, accepted=[0, 1])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("--no-color", "--config-file", "schemathesis.toml", "run", f"{url}/openapi.json"),
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        *("--phases", "examples,coverage,fuzzing,stateful", "--mode", "all"),
        *("--max-examples", NUM_EXAMPLES, "--seed", SEED, "--request-timeout", "60"),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    assert "Tested: 13" in text, text
    for phase in ("Examples", "Coverage", "Fuzzing", "Stateful"):
        assert f"✅ {phase}" in text, text


@pytest.mark.parametrize("end", [1, 2, 10, 11, 100, 368, 1000, 1024])
def test_numbers_below(end: int) -> None:
    pattern = re.compile(numbers_below(end))
    matched = [number for number in range(2 * end + 20) if pattern.fullmatch(str(number))]
    assert matched == list(range(end))
    assert pattern.fullmatch("01") is None


async def test_every_operation_with_a_body_has_examples_that_are_served(
    http: httpx.AsyncClient, say: Callable[..., list[int]]
) -> None:
    say("{}")
    document = (await http.get("/openapi.json")).json()
    paths: dict[str, Any] = document["paths"]
    posts = {path: one["post"] for path, one in paths.items() if "post" in one}
    assert len(posts) == 5
    for path, operation in posts.items():
        content = operation["requestBody"]["content"]["application/json"]
        for name, example in content["examples"].items():
            schema = content["schema"] | {"components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(example["value"])
            response = await http.post(path, json=example["value"])
            assert response.status_code == 200, (path, name, response.text)


@pytest.mark.parametrize(
    ("path", "asked", "expected"),
    [
        ("/v1/completions", {"prompt": "The fox"}, {"start": 0, "end": 7}),
        ("/v1/completions", {"prompt": [40, 41, 42]}, {"token_start": 0, "token_end": 3}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "The fox"}]},
            {"message": 0, "start": 0, "end": 7},
        ),
        ("/v1/responses", {"input": "The fox"}, {"message": 0, "start": 0, "end": 7}),
    ],
)
async def test_places_in_the_prompt_are_as_the_document_says(
    http: httpx.AsyncClient,
    scheduler: FakeScheduler,
    backend: Backend,
    path: str,
    asked: dict[str, Any],
    expected: dict[str, int],
) -> None:
    ids = asked.get("prompt")
    if not isinstance(ids, list):
        ids = backend.encode("The fox").ids
    messages = [{"role": "user", "content": "The fox"}]
    tokenized = (await http.post("/tokenize", json={"messages": messages})).json()["tokens"]
    prompt_ids = ids if "prompt" in asked else tokenized
    size = len(ids)
    (start,) = [at for at in range(len(prompt_ids)) if prompt_ids[at : at + size] == ids]
    positions = range(len(prompt_ids) - start, len(prompt_ids) - start - size, -1)
    step = Step([*ids, 1], size, positions=[-1] * size, prompt_positions=positions)
    scheduler.script = Script([step])
    body = {"model": "tiny", "include_provenance": True, **asked}
    answer = (await http.post(path, json=body)).json()
    document = (await http.get("/openapi.json")).json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    schema = content["schema"] | {"components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer)
    provenance = answer.get("provenance") or answer["choices"][0]["provenance"]
    assert provenance[0]["prompt"] == expected


async def test_limits_of_the_server_are_in_the_document(http: httpx.AsyncClient) -> None:
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    chat = schemas["ChatCompletionBody"]["properties"]
    assert chat["model"]["enum"] == ["tiny"]
    assert chat["n"]["anyOf"][0]["maximum"] == 4
    assert chat["max_completion_tokens"]["anyOf"][0]["maximum"] == 4095
    tokens = schemas["DetokenizeBody"]["properties"]["tokens"]["items"]
    assert tokens["minimum"] == 0
    body = {"tokens": [tokens["maximum"]]}
    assert (await http.post("/detokenize", json=body)).status_code == 200
    body = {"tokens": [tokens["maximum"] + 1]}
    assert (await http.post("/detokenize", json=body)).status_code == 400


async def test_the_document_is_there_without_a_scheduler(
    http_without_scheduler: tuple[httpx.AsyncClient, int],
) -> None:
    http, _ = http_without_scheduler
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    tokens = schemas["DetokenizeBody"]["properties"]["tokens"]["items"]
    assert "maximum" not in tokens


def test_only_named_rules_excuse_a_refusal() -> None:
    assert is_ruled_out("/v1/completions", {"param": "best_of", "code": "invalid_value"})
    assert not is_ruled_out("/v1/completions", {"param": "best_of", "code": "invalid_type"})
    assert not is_ruled_out("/v1/completions", {"param": "temperature", "code": "invalid_value"})
    assert not is_ruled_out("/detokenize", {"param": "tokens", "code": "invalid_value"})
