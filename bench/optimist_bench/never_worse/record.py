"""Asks a model the workloads, and keeps the tokens of prompts and answers."""

from collections.abc import Sequence
from typing import Any

from optimist_bench.engines.workloads import Prompt, make_prompts
from optimist_bench.never_worse.texts import NUM_TEXTS, Text, Texts
from optimist_client import LLM, Message, Options
from optimist_common.model_files.tokenizer import load_tokenizer

MAX_TOKENS = 256
_NUM_QUESTIONS = 16


def make_rewrites(files: str, number: int = NUM_TEXTS) -> list[Prompt]:
    """Returns files to rewrite, with themselves as what the answers probably repeat."""
    return make_prompts("rewrite-predicted", files, number)


def make_questions(number: int = NUM_TEXTS) -> list[Prompt]:
    """Returns questions; one that comes again is sampled with another seed."""
    asked = make_prompts("chat", "", _NUM_QUESTIONS, _NUM_QUESTIONS)
    return [asked[each % len(asked)] for each in range(number)]


def make_options(number: int, *, is_sampled: bool) -> Options:
    """Returns how a request is answered: greedily, or by its own seed at temperature 1.

    A small model's greedy stories repeat themselves, so that even a wrong prediction comes true.
    """
    sampled: Options = {"temperature": 1.0, "seed": number} if is_sampled else {"temperature": 0.0}
    return {**sampled, "max_tokens": MAX_TOKENS}


def record(model: str, dtype: str, files: str) -> Texts:
    """Returns the requests with the model's answers.

    Raises:
        SetupError: There are fewer files, or no tokenizer.
        RuntimeError: The model could not be served.
    """
    rewrites, questions = make_rewrites(files), make_questions()
    tokenizer = load_tokenizer(model, "--model")
    with LLM(model, dtype=dtype) as served:
        rewritten = _ask(served, tokenizer, rewrites, rewrites, is_sampled=False)
        told = _ask(served, tokenizer, questions, rewrites, is_sampled=True)
    return Texts(f"{model}/tokenizer.json", rewritten, told)


def _ask(
    served: LLM,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    files: Sequence[Prompt],
    *,
    is_sampled: bool,
) -> list[Text]:
    results = served.chat(
        [[Message("user", prompt.text)] for prompt in prompts],
        [make_options(number, is_sampled=is_sampled) for number in range(len(prompts))],
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
