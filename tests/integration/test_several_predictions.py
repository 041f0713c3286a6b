"""Several predictions for a request and several choices, through all four services."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.integration.edit import MODEL, ask, edits


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


def test_a_request_is_logged_where_the_proposer_has_the_setting(
    client: OpenAI, request_logs: Path
) -> None:
    edit = edits(1)[0]
    before = set(request_logs.iterdir())
    answer = ask(client, edit, edit.before)
    deadline = time.monotonic() + 10
    (path,) = set(request_logs.iterdir()) - before
    while "the request was closed" not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    command = [sys.executable, "-m", "optimist_cli", "explain", str(path)]
    summary = json.loads(subprocess.check_output([*command, "--json"]))
    # A proposer does not learn what a request ends with.
    assert 0 < summary["output_tokens"] < len(answer.token_ids)
    story = subprocess.check_output([*command, "--color", "never"], text=True)
    assert edit.before.splitlines()[0] in story
