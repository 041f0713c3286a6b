"""The process of the chat template keeps nobody but chats, and is started again."""

import asyncio
import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from optimist_gateway.text import tokenizer as tokenizer_module
from optimist_gateway.text.tokenizer import load_tokenizer
from tests.gateway.conftest import CHAT_TEMPLATE, save_model
from tests.gateway.harness import CHAT, COMPLETIONS, starting


async def test_a_template_that_is_broken_keeps_nobody_but_chats(
    tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    save_model(tmp_path / "tiny", 512, CHAT_TEMPLATE + "{{ messages | nothing }}")
    tokenizer = load_tokenizer(str(tmp_path / "tiny"), template_seconds=10)
    async with starting(tmp_path / "tiny", tokenizer, backend) as gateway:
        assert "the chat template refuses the messages" in caplog.text
        gateway.say("x")
        error = await gateway.refused(CHAT)
        assert (error["param"], error["code"]) == ("messages", "invalid_value")
        assert error["message"].startswith("the chat template refuses the messages: ")
        await gateway.answer(COMPLETIONS)


async def test_a_process_that_does_not_start_is_tried_again(
    model_directory: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "RENDERER", "optimist_gateway.text.nothing:nobody")
    monkeypatch.setattr(tokenizer_module, "_RESTART_SECONDS", 0.1)
    tokenizer = load_tokenizer(str(model_directory), template_seconds=10)
    async with starting(model_directory, tokenizer, backend, waits=False) as gateway:
        while "does not start" not in (response := await gateway.http.get("/ready")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert response.status_code == 503
        process = tokenizer._process
        assert process is not None
        process.loader = "optimist_gateway.text.chat_template:load_renderer"
        await gateway.until_healthy()
