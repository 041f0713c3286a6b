"""A checkpoint with whatever may be unusual about one at once, served as a user would."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import VOCAB_SIZE, tiny_checkpoint
from tests.common.test_grammar_tokenizers import SCHEMA, is_value, unigram
from tests.damage import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, change
from tests.stack import Stack, our_engine

pytestmark = our_engine(reason="vLLM's grammars do not take such a tokenizer")
LENGTH = 512
ROPE = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
COMPLETIONS, CHAT = "completions", "chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unusual")
    path = tiny_checkpoint(directory, "qwen2", max_position_embeddings=128)
    change(CONFIG, rope_parameters=..., rope_scaling=ROPE, eos_token_id=...)(path)
    change(GENERATION, eos_token_id=[7, 99999])(path)
    tokenizer = unigram(has_bytes=False)
    tokenizer.add_special_tokens([f"<|{index}|>" for index in range(VOCAB_SIZE)])
    tokenizer.save(str(path / TOKENIZER))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (path / TOKENIZER_CONFIG).write_text(json.dumps(config | {"chat_template": ""}))
    (path / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def stack(model: Path) -> Iterator[Stack]:
    stack = Stack(model=str(model))
    yield stack
    stack.stop()


def ask(stack: Stack, path: str, **fields: Any) -> Any:
    prompt: dict[str, Any] = {"prompt": "ab true"}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "ab true"}]}
    body = {"model": "qwen2", "temperature": 0, "max_tokens": 100, **prompt, **fields}
    answer = httpx.post(f"{stack.url}/v1/{path}", json=body, timeout=60.0, trust_env=False).json()
    return answer["error"] if "error" in answer else answer["choices"][0]


def test_the_length_is_multiplied_and_texts_are_those_of_transformers(
    stack: Stack, model: Path
) -> None:
    served = httpx.get(f"{stack.url}/v1/models", trust_env=False).json()["data"][0]
    assert served["max_model_len"] == LENGTH
    prompt = [5, 9, 11, 30, 40, 5, 200]
    fields = {"prompt": prompt, "max_tokens": 250, "ignore_eos": True, "return_token_ids": True}
    tokens = ask(stack, COMPLETIONS, **fields)["token_ids"]
    auto_model: Any = AutoModelForCausalLM
    reference = auto_model.from_pretrained(model, dtype=torch.float64)
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=250, do_sample=False, eos_token_id=None
    )
    assert tokens == expected[0, len(prompt) :].tolist()
    predicted = ask(stack, COMPLETIONS, **fields, predicted_token_ids=tokens)
    assert predicted["token_ids"] == tokens


@pytest.mark.parametrize("end", [2, 7])
def test_texts_end_where_any_file_says(stack: Stack, end: int) -> None:
    fields: dict[str, Any] = {"logit_bias": {str(end): 100}, "return_token_ids": True}
    choice = ask(stack, COMPLETIONS, **fields)
    assert (choice["token_ids"], choice["finish_reason"]) == ([end], "stop")
    # Neither may come before that.
    choice = ask(stack, COMPLETIONS, **fields, min_tokens=9)
    assert end not in choice["token_ids"][:9]
    assert choice["token_ids"][9:] == [end]
    choice = ask(stack, CHAT, **fields, min_tokens=9, logprobs=True)
    assert len(choice["logprobs"]["content"]) == 10


def test_forms_are_kept(stack: Stack) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    for seed in range(4):
        drawn = {"temperature": 1.0, "seed": seed, "max_tokens": 300}
        choice = ask(stack, CHAT, response_format=form, **drawn)
        text = choice["message"]["content"]
        assert is_value(text)
        prediction = {"type": "content", "content": text}
        again = ask(stack, CHAT, response_format=form, prediction=prediction, **drawn)
        assert again["message"]["content"] == text
        pattern = r"( the)?[ab]{3,5}( the)?"
        choice = ask(stack, COMPLETIONS, structured_outputs={"regex": pattern}, **drawn)
        assert re.fullmatch(pattern, choice["text"])


def test_tokens_that_the_model_lacks_are_named(stack: Stack) -> None:
    last = f"<|{VOCAB_SIZE - 1}|>"
    error = ask(stack, COMPLETIONS, prompt=f"ab {last}")
    assert error["param"] == "prompt"
    assert f"('{last}') is not a token of this model (0 to 319)" in error["message"]
    plain = ask(stack, CHAT)
    text = plain["message"]["content"]
    prediction = {"type": "content", "content": f"{text[:20]}{last}{text[20:]}"}
    choice = ask(stack, CHAT, prediction=prediction, include_provenance=True)
    assert choice["message"]["content"] == text
