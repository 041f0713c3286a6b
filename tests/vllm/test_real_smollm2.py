"""The plugin in real vLLM with a language model in bfloat16 (`make smollm2`, `make vllm-test`)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

from optimist_bench.engines.workloads import Prompt, make_prompts
from tests.stack import REPOSITORY
from tests.vllm.server import BIN, FLAG, Server

MODEL = REPOSITORY / "models" / "smollm2"

pytestmark = [
    pytest.mark.skipif(
        not (BIN / "vllm").exists() or not MODEL.is_dir(),
        reason="`make vllm-setup smollm2` was not run",
    ),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    server = Server(log, str(MODEL), "--dtype", "bfloat16", "--speculative-config", FLAG)
    try:
        yield OpenAI(base_url=f"{server.wait().url}/v1", api_key="none", max_retries=0)
    finally:
        server.stop()


def ask(client: OpenAI, prompt: Prompt, **options: Any) -> Any:
    # The client's overloads do not accept options that are put together.
    create: Any = client.chat.completions.create
    if prompt.prediction is not None:
        options["prediction"] = {"type": "content", "content": prompt.prediction}
    message = {"role": "user", "content": prompt.text}
    return create(model="model", messages=[message], max_tokens=48, temperature=0.0, **options)


def test_rewrites_are_predicted(client: OpenAI) -> None:
    prompts = make_prompts("rewrite-predicted", "", 6)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda prompt: ask(client, prompt), prompts))
    details = [each.usage.completion_tokens_details for each in answers]
    num_tokens = sum(each.usage.completion_tokens for each in answers)
    assert sum(each.accepted_prediction_tokens for each in details) > num_tokens / 4
    assert all(each.choices[0].message.content for each in answers)


def test_a_chat_with_a_useless_prediction_is_answered(client: OpenAI) -> None:
    question = make_prompts("chat", "", 1)[0].text
    answer = ask(client, Prompt(question, "def nothing() -> None: ...\n" * 20))
    assert len(answer.choices[0].message.content) > 50
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens < 10
