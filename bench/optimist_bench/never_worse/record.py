"""Asks a model the workloads, and keeps the tokens of prompts and answers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from optimist_bench.engines.workloads import Prompt, make_prompts
from optimist_bench.never_worse.texts import NUM_TEXTS, Text, Texts
from optimist_client import LLM, Message, Options
from optimist_common.model_files.tokenizer import load_tokenizer

MAX_TOKENS = 256
_NUM_QUESTIONS = 16


def make_rewrites(files: str) -> list[Prompt]:
    """Returns files to rewrite, with themselves as what the answers probably repeat."""
    return make_prompts("rewrite-predicted", files, NUM_TEXTS)


def make_questions() -> list[Prompt]:
    """Returns questions, each to be sampled by a seed of its own.

    A small model's greedy stories repeat themselves, so that even a wrong prediction comes true.
    """
    asked = make_prompts("chat", "", _NUM_QUESTIONS, _NUM_QUESTIONS)
    return [replace(asked[seed % len(asked)], seed=seed) for seed in range(NUM_TEXTS)]


def record(model: str, dtype: str, files: str) -> Texts:
    """Returns the requests with the model's answers.

    Raises:
        SetupError: There are fewer files, or no tokenizer.
        RuntimeError: The model could not be served.
    """
    rewrites, questions = make_rewrites(files), make_questions()
    tokenizer = load_tokenizer(model, "--model")
    with LLM(model, dtype=dtype) as served:
        rewritten = _ask(served, tokenizer, rewrites, rewrites)
        answered = _ask(served, tokenizer, questions, rewrites)
    return Texts(f"{model}/tokenizer.json", rewritten, answered)


def _ask(
    served: LLM, tokenizer: Any, prompts: Sequence[Prompt], files: Sequence[Prompt]
) -> list[Text]:
    results = served.chat(
        [[Message("user", prompt.text)] for prompt in prompts], [_options(each) for each in prompts]
    )
    return [
        Text(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt.text}],
                add_generation_prompt=True,
                return_dict=False,
            ),
            file.prediction or "",
            list(result.answers[0].token_ids),
        )
        for prompt, file, result in zip(prompts, files, results, strict=True)
    ]


def _options(prompt: Prompt) -> Options:
    if prompt.seed is None:
        return {"temperature": 0.0, "max_tokens": MAX_TOKENS}
    return {"temperature": 1.0, "seed": prompt.seed, "max_tokens": MAX_TOKENS}
