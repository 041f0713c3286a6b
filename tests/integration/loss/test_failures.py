"""What happens to an answer when a service dies in the middle of it."""

import time

import pytest
from openai import OpenAI

from tests.integration.edit import ask, edits
from tests.stack import START_SECONDS, Stack


@pytest.mark.parametrize("service", ["proposer", "worker"])
def test_the_answer_completes_with_the_same_text(
    stack: Stack, client: OpenAI, service: str
) -> None:
    edit = max(edits(20), key=lambda one: len(one.after))
    whole = ask(client, edit, edit.before)
    plain = ask(client, edit, None)
    pid = stack.service_pid(service)

    def kill_once(number: int) -> None:
        if number == 2:
            stack.kill_service(service)

    prediction = edit.before if service == "proposer" else None
    disturbed = ask(client, edit, prediction, on_chunk=kill_once)
    assert disturbed.token_ids == whole.token_ids == plain.token_ids
    # What died was started again and is of use.
    deadline = time.monotonic() + START_SECONDS
    while True:
        afterwards = ask(client, edit, edit.before)
        assert afterwards.token_ids == whole.token_ids
        if afterwards.accepted >= len(whole.token_ids) / 2:
            break
        assert time.monotonic() < deadline
    assert stack.service_pid(service) != pid
