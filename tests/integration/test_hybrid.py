"""Models with recurrent layers by real services: the text of transformers, with drafts and without,
alone, in a burst of 16, and when there are blocks for a few of them only."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.checkpoints import HYBRID_FAMILIES, add_tokenizer, tiny_checkpoint
from tests.stack import Services, our_engine, read_totals, start

pytestmark = our_engine(reason="its states are another's")
NUM_TOKENS, BURST = 100, 16
VOCAB_SIZE = 259
"""Of the tokenizer of bytes."""
# A request takes 3 blocks at first and 9 in the end.
WORKER = ("--dtype", "float32", "--num-kv-blocks", "24", "--num-threads", "1")


class Served(NamedTuple):
    """A model, and what transformers says of it."""

    services: Services
    name: str
    prompts: list[list[int]]
    texts: list[list[int]]


def generate(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    auto_model: Any = AutoModelForCausalLM
    module = auto_model.from_pretrained(path, attn_implementation="eager")
    options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "eos_token_id": None}
    outputs = [module.generate(torch.tensor([prompt]), **options)[0] for prompt in prompts]
    return [output[len(prompt) :].tolist() for prompt, output in zip(prompts, outputs, strict=True)]


@pytest.fixture(scope="module", params=list(HYBRID_FAMILIES))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    path = tiny_checkpoint(tmp_path_factory.mktemp("hybrid"), request.param, vocab_size=VOCAB_SIZE)
    # Of these texts no two likeliest tokens are closer than 1e-4.
    source = random.Random(12)
    beginning = source.choices(range(3, VOCAB_SIZE), k=32)
    # Prompts have two blocks in common.
    prompts = [[*beginning, *source.choices(range(3, VOCAB_SIZE), k=3)] for _ in range(BURST)]
    texts = generate(path, prompts)
    model = ("--model", str(add_tokenizer(path)))
    with ExitStack() as stack:
        proposer = start(stack, "proposer", *model)
        worker = start(stack, "worker", *model, *WORKER)
        options = ("--workers", worker.address, "--proposers", proposer.address)
        scheduler = start(stack, "scheduler", *options)
        gateway = start(stack, "gateway", *model, "--schedulers", scheduler.address)
        yield Served(Services(worker, scheduler, gateway), path.name, prompts, texts)


def ask(served: Served, number: int, **fields: Any) -> dict[str, Any]:
    body = {"model": served.name, "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    body |= {"prompt": served.prompts[number], "return_token_ids": True, **fields}
    url = f"{served.services.url}/v1/completions"
    answer = httpx.post(url, json=body, timeout=120.0, trust_env=False).raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def token_ids(answer: dict[str, Any]) -> list[int]:
    found: list[int] = answer["choices"][0]["token_ids"]
    return found


def predict(served: Served, number: int) -> list[int]:
    """The text with some tokens altered, left out and put in."""
    source = random.Random(number)
    guess: list[int] = []
    for token in served.texts[number]:
        change = source.random()
        guess += [token] if change > 0.15 else [3 + token % 250] if change > 0.1 else []
        guess += [7] if change < 0.05 else []
    return guess


def test_alone(served: Served) -> None:
    text = served.texts[0]
    # Twice, so that a beginning is known: it is not shared, and nobody says that it was.
    for _ in range(2):
        plain = ask(served, 0, num_speculative_tokens=0)
        assert token_ids(plain) == text
        details = plain["usage"].get("prompt_tokens_details") or {}
        assert details.get("cached_tokens", 0) == 0
    for prediction in (text, predict(served, 0)):
        drafted = ask(served, 0, predicted_token_ids=prediction)
        assert token_ids(drafted) == text
        details = drafted["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > NUM_TOKENS / 3


def test_a_burst_with_preemptions(served: Served) -> None:
    def ask_one(number: int) -> dict[str, Any]:
        if number % 2:
            return ask(served, number, num_speculative_tokens=0)
        return ask(served, number, predicted_token_ids=predict(served, number))

    with ThreadPoolExecutor(BURST) as pool:
        answers = list(pool.map(ask_one, range(BURST)))
    assert [token_ids(answer) for answer in answers] == served.texts
    totals = read_totals(served.services.scheduler.metrics_url)
    assert totals["optimist_scheduler_preemptions_total"] > 0


def test_several_samples_of_one_prompt(served: Served) -> None:
    """The first of `n` sampled choices is what its seed alone gives."""
    fields = {"temperature": 1.0, "seed": 5}
    alone = ask(served, 1, **fields)
    together = ask(served, 1, n=4, **fields)
    assert together["choices"][0]["token_ids"] == token_ids(alone)
    assert len({str(choice["token_ids"]) for choice in together["choices"]}) == 4
