"""Several predictions for a request and several choices, through all four services."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.integration.edit import MODEL, ask, edits
from tests.stack import Stack


def complete(client: OpenAI, messages: list[Any], **options: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(model=MODEL, messages=messages, temperature=0.0, **options)


def content(*texts: str) -> list[dict[str, str]]:
    return [{"type": "content", "content": text} for text in texts]


def test_the_second_of_two_predictions_is_found_when_the_first_is_wrong(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    wrong = "The quick brown fox\njumps over the lazy dog.\n" * 5
    body = {"prediction": content(wrong, edit.before)}
    answer = complete(client, edit.messages(), extra_body=body)
    assert answer.choices[0].message.content == plain.text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > answer.usage.completion_tokens / 2


def test_each_of_several_choices_uses_the_prediction(client: OpenAI) -> None:
    edit = edits(2)[1]
    plain = ask(client, edit, None)
    body = {"prediction": content(edit.before)}
    answer = complete(client, edit.messages(), n=3, extra_body=body)
    assert [choice.message.content for choice in answer.choices] == [plain.text] * 3
    assert answer.usage.completion_tokens == 3 * len(plain.token_ids)
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > answer.usage.completion_tokens / 2


def test_a_request_is_logged_when_the_proposer_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTIMIST_HOME", str(tmp_path))
    monkeypatch.setenv("OPTIMIST_PROPOSER_REQUEST_LOG", "true")
    stack = Stack()
    try:
        with OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
            edit = edits(1)[0]
            answer = ask(client, edit, edit.before)
    finally:
        assert stack.stop() == 0
    (path,) = (tmp_path / "log").iterdir()
    command = [sys.executable, "-m", "optimist_cli", "explain", str(path)]
    summary = json.loads(subprocess.check_output([*command, "--json"]))
    # A proposer is not told what a request ends with.
    assert 0 < summary["output_tokens"] < len(answer.token_ids)
    told = subprocess.check_output([*command, "--color", "never"], text=True)
    assert edit.before.splitlines()[0] in told
