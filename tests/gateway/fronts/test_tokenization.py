"""Tokens of texts and conversations, texts of tokens, and what the tokenizer is."""

from importlib.metadata import version
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import CHAT_TEMPLATE, asking, served
from tests.gateway.fake_scheduler import MAX_MODEL_LEN, USER, FakeScheduler, tokens
from tests.gateway.fronts.test_errors import CHAT, error_of, post

TEXT = "The quick 東京 <|end|> fox"


@pytest.mark.parametrize("with_strings", [None, False, True])
async def test_a_text_there_and_back(
    http: httpx.AsyncClient, backend: Backend, with_strings: Any
) -> None:
    body = {"model": "tiny", "prompt": TEXT, "return_token_strs": with_strings}
    response = await http.post("/tokenize", json=body)
    token_ids = backend.encode(TEXT).ids
    strings = [backend.decode([token], skip_special_tokens=False) for token in token_ids]
    assert response.json() == {
        "count": len(token_ids),
        "max_model_len": MAX_MODEL_LEN,
        "tokens": token_ids,
        "token_strs": strings if with_strings else None,
    }
    back = await http.post("/detokenize", json={"tokens": token_ids})
    assert back.json() == {"prompt": TEXT}


async def test_a_conversation_is_what_a_chat_is_given(
    http: httpx.AsyncClient, scheduler: FakeScheduler, backend: Backend, say: Any
) -> None:
    say("x")
    await http.post(CHAT, json={"model": "tiny", "messages": USER})
    expected = tokens(scheduler.adds[0].prompt_token_ids)
    response = await http.post("/tokenize", json={"messages": USER})
    assert response.json()["tokens"] == expected
    body = {"messages": USER, "add_generation_prompt": False}
    shorter = (await http.post("/tokenize", json=body)).json()["tokens"]
    assert backend.decode(expected) == backend.decode(shorter) + "<|assistant|>"


async def test_special_tokens_are_added_if_wanted(
    settings: GatewaySettings, model_directory: Any
) -> None:
    wrapped = AutoTokenizer.from_pretrained(model_directory)
    wrapped.backend_tokenizer.post_processor = template_of_end()
    async with served(settings, Tokenizer(wrapped)) as http:

        async def tokenized(**body: Any) -> Any:
            return (await http.post("/tokenize", json=body)).json()["tokens"]

        without = await tokenized(prompt="fox", add_special_tokens=False)
        assert await tokenized(prompt="fox") == [1, *without]
        chat = await tokenized(messages=USER)
        assert await tokenized(messages=USER, add_special_tokens=True) == [1, *chat]


def template_of_end() -> Any:
    """Begins every prompt with token 1."""
    return TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 1)])


@pytest.mark.parametrize("shows_template", [False, True])
async def test_the_template_is_shown_if_the_setting_says_so(
    settings: GatewaySettings, tokenizer: Tokenizer, shows_template: bool
) -> None:
    async with asking(settings, tokenizer, show_chat_template=shows_template) as http:
        info = (await http.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|end|>"
    assert info["pad_token"] == "<|pad|>"
    assert info["bos_token"] is None
    assert info["tokenizer_class"]
    assert info.get("chat_template") == (CHAT_TEMPLATE if shows_template else None)
    assert ("chat_template" in info) is shows_template


async def test_the_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": version("optimist")}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": "a\ud800"}, "prompt"),
        ("/tokenize", {"prompt": "a" * 150_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ x }}"}, "chat_template"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [100_000]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_what_is_wrong_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert error_of(await post(http, path, body), 400)["param"] == param


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_other_models_are_unknown(http: httpx.AsyncClient, path: str) -> None:
    body = (
        {"model": "other", "prompt": "a"} if path == "/tokenize" else {"model": "b", "tokens": []}
    )
    assert error_of(await post(http, path, body), 404)["code"] == "model_not_found"


async def test_without_a_scheduler_the_model_is_not_known(
    http_without_scheduler: tuple[httpx.AsyncClient, int],
) -> None:
    http, _ = http_without_scheduler
    error = error_of(await post(http, "/tokenize", {"prompt": "a"}), 503)
    assert error["code"] == "scheduler_unavailable"
    assert (await http.get("/tokenizer_info")).status_code == 200


async def test_many_tokens(http: httpx.AsyncClient, backend: Backend) -> None:
    token_ids = backend.encode("The quick fox. " * 200).ids
    response = await http.post("/detokenize", json={"tokens": token_ids})
    assert response.json() == {"prompt": "The quick fox. " * 200}
