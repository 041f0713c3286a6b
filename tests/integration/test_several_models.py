"""Two models with different weights and tokens through one gateway, as real processes."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from openai import BadRequestError, InternalServerError, NotFoundError, OpenAI
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.checkpoints import add_tokenizer, tiny_checkpoint
from tests.integration.edit import MODEL, ask, connect, edits
from tests.stack import (
    BUNDLED_MODEL,
    ENGINE_PYTHON,
    MODEL_FLAG,
    START_SECONDS,
    Service,
    start,
    wait_until,
)

OTHER = "bytes"
TEXT = "def area(width, height):"
SUFFIX = "\n    return width * height\n"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def save_other(directory: Path) -> Path:
    """Saves a random model, whose tokens are bytes and the marks of fill in the middle."""
    # vLLM has no attention on CPUs for heads of fewer than 32 numbers.
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    path = add_tokenizer(tiny_checkpoint(directory, "llama", **heads))
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(path / "tokenizer.json"), eos_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_tokens(MARKS)
    tokenizer.save_pretrained(path)
    return path


def expected_tokens(path: Path, length: int, text: str = TEXT) -> list[int]:
    """Returns what transformers makes of a text, greedily."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    prompt = torch.tensor([tokenizer(text).input_ids])
    auto_model: Any = AutoModelForCausalLM
    model = auto_model.from_pretrained(path, dtype=torch.float64)
    tokens = model.generate(prompt, max_new_tokens=length, do_sample=False, eos_token_id=None)
    return [int(token) for token in tokens[0, prompt.shape[1] :]]


class Both(NamedTuple):
    """The gateway, and what runs the other model: a scheduler, or an engine of vLLM."""

    gateway: Service
    engine: Service
    client: OpenAI
    path: Path

    def health(self) -> Any:
        url = f"http://{self.gateway.address}/health"
        return httpx.get(url, trust_env=False).json()

    def ask_other(self, **options: Any) -> list[int]:
        """Returns the tokens of the other model's answer."""
        completion = self.client.completions.create(
            model=OTHER,
            prompt=TEXT,
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
            **options,
        )
        assert completion.model == OTHER
        return list((completion.choices[0].model_extra or {})["token_ids"])


def start_engine(stack: ExitStack, model: str) -> Service:
    """Starts what runs a model, and returns what the gateway asks for it."""
    if ENGINE_PYTHON:
        return start(stack, "engine", model, "--engine-python", ENGINE_PYTHON)
    options = ("--dtype", "float64", "--num-threads", "1")
    worker = start(stack, "worker", "--model", model, *options)
    return start(stack, "scheduler", "--workers", worker.address)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path = save_other(tmp_path_factory.mktemp("models"))
    with ExitStack() as stack:
        engines = [start_engine(stack, model) for model in (str(BUNDLED_MODEL), str(path))]
        further = {"model": str(path), "name": OTHER, "schedulers": [engines[1].address]}
        gateway = start(
            stack,
            "gateway",
            *(*MODEL_FLAG, "--schedulers", engines[0].address),
            *("--models", json.dumps([further]), "--resume-seconds", "1"),
        )
        client = stack.enter_context(connect(f"http://{gateway.address}"))
        # One scheduler is enough for the gateway to be ready.
        connected = {"known": 2, "connected": 2, "sound": 2}
        service = Both(gateway, engines[1], client, path)
        wait_until(lambda: service.health()["schedulers"] == connected, "both models")
        yield service


def test_each_model_answers_rightly(both: Both) -> None:
    assert [model.id for model in both.client.models.list()] == [MODEL, OTHER]
    edit = edits(1)[0]
    assert ask(both.client, edit, edit.before).text == edit.after
    assert both.ask_other() == expected_tokens(both.path, 12)
    with pytest.raises(NotFoundError, match=f"`{MODEL}`, `{OTHER}`"):
        both.client.completions.create(model="none", prompt=TEXT)


def test_what_stands_between_two_texts_is_filled_in(both: Both) -> None:
    before, after, answer = MARKS
    text = f"{before}{TEXT}{after}{SUFFIX}{answer}"
    assert both.ask_other(suffix=SUFFIX) == expected_tokens(both.path, 12, text)
    with pytest.raises(BadRequestError, match="suffix: is not supported: this model's tokenizer"):
        both.client.completions.create(model=MODEL, prompt=TEXT, suffix=SUFFIX)


def test_a_model_whose_engine_is_gone_takes_no_other_with_it(both: Both) -> None:
    edit = edits(1)[0]
    before = both.ask_other()

    def kill(number: int) -> None:
        if number == 2:
            both.engine.kill()

    assert ask(both.client, edit, None, on_chunk=kill).text == edit.after
    wait_until(lambda: both.health().get("unavailable_models"), "a loss that is noticed")
    health = both.health()
    assert health["status"] == "ok"
    assert list(health["unavailable_models"]) == [OTHER]
    with pytest.raises(InternalServerError) as raised:
        both.ask_other()
    assert raised.value.status_code == 503
    assert ask(both.client, edit, edit.before).text == edit.after
    both.engine.start()
    both.engine.wait_until_healthy()
    wait_until(lambda: "unavailable_models" not in both.health(), "the model", START_SECONDS)
    assert both.ask_other() == before
