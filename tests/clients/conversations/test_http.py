"""Clients that offer HTTP/2 with what they send first, over plaintext: Java's and curl's."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conversations.conftest import Served
from tests.clients.conversations.scripted import NAME, obey
from tests.command import run

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
}
ORDER = {"role": "user", "content": '[[call weather {"city": "Oslo"}]]'}


def command(name: str, package: str) -> str:
    """Returns the path of a command; skips the test if there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name}: apt-get install {package}")
    return path


@pytest.mark.slow
def test_java(served: Served) -> None:
    java = command("java", "openjdk-17-jdk-headless")
    with served.scheduler.follow(obey):
        script = Path(__file__).parent / "sdks" / "Conversation.java"
        run(java, script, served.url, timeout=120)


def test_curl(served: Served) -> None:
    curl = command("curl", "curl")

    def send(messages: list[Any], **options: Any) -> str:
        body = json.dumps({"model": NAME, "messages": messages, "tools": [TOOL]} | options)
        return run(
            *(curl, "--http2", "--no-buffer", "--silent", "--show-error", "--fail-with-body"),
            *("--max-time", "60", "--json", body, f"{served.url}/v1/chat/completions"),
        )

    def ask(messages: list[Any]) -> Any:
        return json.loads(send(messages))["choices"][0]["message"]

    with served.scheduler.follow(obey):
        message = ask([ORDER])
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        messages = [ORDER, message, result]
        assert ask(messages)["content"] == "The tools said: rain."
        streamed = send(messages, stream=True)
        assert streamed.endswith("data: [DONE]\n\n")
