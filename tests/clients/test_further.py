"""Measuring clients, which live in an environment of their own (`make clients`)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.clients.installed import PYTHON as BIN
from tests.clients.installed import needs
from tests.command import run
from tests.integration.edit import MODEL
from tests.stack import BUNDLED_MODEL, Stack

HERE = Path(__file__).parent
OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

pytestmark = [needs(BIN / "guidellm"), pytest.mark.slow]


def test_guidellm_completes_a_short_load(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "benchmark.json"
    run(
        *(BIN / "guidellm", "run", "--disable-progress"),
        *("--backend", f"kind=openai_http,target={stack.url},model={MODEL}"),
        *("--profile", "kind=concurrent,streams=16", "--constraint", "kind=max_requests,count=64"),
        *("--tokenizer", f"kind=huggingface_auto,model={BUNDLED_MODEL}"),
        *("--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"),
        *("--output", f"kind=json,path={path}"),
        env=OFFLINE,
    )
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert [len(requests[kind]) for kind in ("successful", "errored", "incomplete")] == [64, 0, 0]
    assert {one["output_tokens"] for one in requests["successful"]} == {32}


def test_lm_eval_scores_as_transformers_does(stack: Stack, tmp_path: Path) -> None:
    model_args = (
        f"model={MODEL},base_url={stack.url}/v1/completions,num_concurrent=1,"
        f"tokenizer={BUNDLED_MODEL},tokenizer_backend=huggingface,tokenized_requests=True"
    )
    run(
        *(BIN / "lm_eval", "--model", "local-completions"),
        *("--model_args", model_args),
        *("--tasks", "optimist_lines", "--include_path", "."),
        *("--output_path", str(tmp_path), "--log_samples"),
        env=OFFLINE,
        cwd=HERE / "lm_eval",
    )
    (path,) = tmp_path.rglob("samples_*.jsonl")
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(samples) == 3
    tokenizer: Any = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    model.eval()
    for sample in samples:
        for number, responses in enumerate(sample["filtered_resps"]):
            asked = sample["arguments"][f"gen_args_{number}"]
            expected = _score(tokenizer, model, asked["arg_0"], asked["arg_1"])
            # The bundled model's logits are so large that float32, whoever computes it, is within
            # some units of float64 (`transformers` itself: 3 in 2,000).
            assert float(responses[0]) == pytest.approx(expected, rel=1e-2)


def _score(tokenizer: Any, model: Any, context: str, rest: str) -> float:
    """Returns the log-probability of a text behind another one, as lm-eval has it.

    White space at the end of the context counts among the rest.
    """
    num_before = len(tokenizer.encode(context.rstrip(), add_special_tokens=False))
    tokens = torch.tensor([tokenizer.encode(context + rest, add_special_tokens=False)])
    with torch.inference_mode():
        logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
    of_tokens = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
    return float(of_tokens[num_before - 1 :].sum())
