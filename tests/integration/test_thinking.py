"""A model that thinks before it answers, through all services: with drafts and without the same.

The bundled model knows edits alone, but it repeats what is not to be changed: of a file that begins
as an answer with thoughts does, it makes one.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import MODEL, complete, connect, edits, predict
from tests.stack import BUNDLED_MODEL, ENGINE_PYTHON, EXACT, MODEL_FLAG, start

pytestmark = pytest.mark.skipif(bool(ENGINE_PYTHON), reason="our own services are started")
THOUGHTS = "total = price + tax\nprint(total)"
NO_DRAFTS: dict[str, Any] = {"num_speculative_tokens": 0}
EDIT = edits(1)[0]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of a gateway whose chat template knows thoughts."""
    directory = tmp_path_factory.mktemp("thinker") / MODEL
    shutil.copytree(BUNDLED_MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    template = directory / "chat_template.jinja"
    template.write_text("{#- <think></think> -#}" + template.read_text())
    with ExitStack() as stack:
        proposer = start(stack, "proposer", *MODEL_FLAG)
        worker = start(stack, "worker", *MODEL_FLAG, *EXACT)
        peers = ("--workers", worker.address, "--proposers", proposer.address)
        scheduler = start(stack, "scheduler", *peers)
        options = ("--model", str(directory), "--schedulers", scheduler.address)
        gateway = start(stack, "gateway", *options)
        yield stack.enter_context(connect(f"http://{gateway.address}"))


def ask(client: OpenAI, edit: Edit, *, thinks: bool = True, **extra: Any) -> Any:
    """Returns the answer to a request to edit a file, which begins with thoughts or does not."""
    messages = json.dumps(edit.messages())
    if thinks:
        file = f"<think>\n{THOUGHTS}\n</think>\n\n{edit.before}"
        messages = messages.replace(json.dumps(edit.before)[1:-1], json.dumps(file)[1:-1])
    extra = {"return_token_ids": True} | extra
    return complete(client, json.loads(messages), max_tokens=400, extra_body=extra)


def said(answer: Any) -> tuple[Any, ...]:
    (choice,) = answer.choices
    message = choice.message
    details = answer.usage.completion_tokens_details
    calls = [call.function.arguments for call in message.tool_calls or []]
    thoughts = (message.model_extra or {}).get("reasoning_content")
    tokens = choice.model_extra["token_ids"]
    return thoughts, message.content, calls, tokens, details.reasoning_tokens


def test_a_prediction_is_followed_after_thoughts(thinker: OpenAI) -> None:
    plain, predicted = (
        ask(thinker, EDIT, **NO_DRAFTS),
        ask(thinker, EDIT, **predict(EDIT.before)),
    )
    assert said(predicted) == said(plain)
    thoughts, content, _, token_ids, num_thoughts = said(plain)
    assert thoughts == THOUGHTS
    assert content.startswith(EDIT.before[:3])
    assert 0 < num_thoughts < len(token_ids)
    alone = ask(thinker, EDIT, thinks=False, **predict(EDIT.before))
    num_passes = predicted.usage.num_passes
    # Thoughts are not predicted, but repeated from the prompt; what comes then is as without them.
    assert num_passes < alone.usage.num_passes + num_thoughts


def test_forms_and_calls_come_after_thoughts(thinker: OpenAI) -> None:
    schema = {"type": "object", "properties": {"path": {"enum": ["a", "b"]}}}
    closed = schema | {"required": ["path"], "additionalProperties": False}
    function = {"name": "run", "parameters": closed}
    form = {"structured_outputs": {"regex": r"(run|stop)\([a-z_]{3,9}\)"}}
    lark = {"structured_outputs": {"grammar": 'start: "def " NAME ":"\nNAME: /[a-z]{1,9}/'}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for body, expected, pattern in (
        (form, "run(path)", r"(run|stop)\([a-z_]{3,9}\)"),
        (lark, "def run:", r"def [a-z]{1,9}:"),
        (tools, '{"path": "a"}', ""),
    ):
        plain = said(ask(thinker, EDIT, **body, **NO_DRAFTS))
        thoughts, content, calls, *_ = plain
        assert thoughts == THOUGHTS
        if pattern:
            assert re.fullmatch(pattern, content)
        else:
            assert json.loads(calls[0])["path"] in ("a", "b")
        assert said(ask(thinker, EDIT, **body, **predict(expected))) == plain
