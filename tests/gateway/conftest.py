"""A small tokenizer, and gateways in front of fake schedulers."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from optimist_gateway.text.tokenizer import Tokenizer, load_tokenizer
from tests.gateway.harness import Gateway, Start, starting
from tests.stack import free_port

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' and loop.first %}"
    "{{ raise_exception('begin with a user') }}{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = [
    "def main(argument):\n    return argument + 1\n",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "for index in range(10):\n    print(index, total)\n",
    "ÄÖÜ äöü ß 東京 日本語 \N{GRINNING FACE}\N{ROCKET}",
]


def save_model(directory: Path, vocab_size: int, chat_template: str) -> None:
    """Makes a model directory, with a byte-level BPE and a chat template."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    options: Any = {"special_tokens": ["<|pad|>", "<|end|>"], "show_progress": False}
    options["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=vocab_size, **options))
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(directory)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    save_model(directory, 512, CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def backend(model_directory: Path) -> Backend:
    return Backend.from_file(str(model_directory / "tokenizer.json"))


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> Tokenizer:
    return load_tokenizer(str(model_directory))


@pytest.fixture(scope="session")
def start(model_directory: Path, tokenizer: Tokenizer, backend: Backend) -> Start:
    """Starts gateways of other settings, each with schedulers of its own; see `starting`."""
    return partial(starting, model_directory, tokenizer, backend)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_gateway(start: Start) -> AsyncIterator[Gateway]:
    async with start(grpc_port=free_port()) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(shared_gateway: Gateway) -> AsyncIterator[Gateway]:
    """A gateway of the usual settings, which tests share; nothing runs in it before and after."""
    yield shared_gateway
    await shared_gateway.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets what uses the shared gateway run in its event loop."""
    for item in items:
        if "gateway" in getattr(item, "fixturenames", ()) and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
