"""Answers are as `/openapi.json` says: schemathesis sends whatever it allows, and other things."""

import asyncio
import sys

import jsonschema
import pytest

from tests.gateway.harness import Gateway
from tests.stack import ENGINE_PYTHON, REPOSITORY, Stack

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"
CHECKS += ",response_schema_conformance"
SEED = "2"
NUM_EXAMPLES = "3"
"""Of an operation in a phase; coverage has as many as the document has limits."""
SECONDS = 280


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
async def test_the_gateway_keeps_what_its_document_says(gateway: Gateway) -> None:
    gateway.say("The quick brown fox", width=2, accepted=[0, 1])
    await ask_whatever_it_allows(gateway.url)


@pytest.mark.skipif(not ENGINE_PYTHON, reason="OPTIMIST_TEST_ENGINE_PYTHON is not set")
@pytest.mark.timeout(SECONDS + 300)
async def test_so_it_does_with_vllm_below() -> None:
    # Short sequences, so that no answer takes long.
    stack = await asyncio.to_thread(Stack, vllm_flags=("--max-model-len", "160"))
    try:
        await ask_whatever_it_allows(stack.url)
    finally:
        await asyncio.to_thread(stack.stop)


async def ask_whatever_it_allows(url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("--no-color", "--config-file", "schemathesis.toml", "run", f"{url}/openapi.json"),
        *("--checks", CHECKS, "--phases", "coverage,fuzzing", "--mode", "all"),
        *("--max-examples", NUM_EXAMPLES, "--seed", SEED, "--request-timeout", "60"),
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    assert "Tested: 10" in text, text
    for phase in ("Coverage", "Fuzzing"):
        assert f"✅ {phase}" in text, text


async def test_every_operation_with_a_body_has_examples_that_are_served(gateway: Gateway) -> None:
    gateway.say("{}")
    document = (await gateway.http.get("/openapi.json")).json()
    posts = {path: one["post"] for path, one in document["paths"].items() if "post" in one}
    assert len(posts) == 5
    for path, operation in posts.items():
        content = operation["requestBody"]["content"]["application/json"]
        for name, example in content["examples"].items():
            schema = content["schema"] | {"components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(example["value"])
            response = await gateway.http.post(path, json=example["value"])
            assert response.status_code == 200, (path, name, response.text)
