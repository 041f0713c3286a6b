"""The plugin in real vLLM, with the bundled model: texts are those of vLLM without it."""

import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimist_training.data.edits import Edit
from tests.integration.edit import complete, edits
from tests.stack import BUNDLED_MODEL, REPOSITORY, VLLM_VARIABLES
from tests.vllm.server import BIN, FLAG, Server

pytestmark = [
    pytest.mark.skipif(not (BIN / "vllm").exists(), reason="`make vllm-setup` was not run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

OPTIONS = ("--dtype", "float32", "--block-size", "32", "--max-num-batched-tokens", "256")
NUM_BLOCKS = 80
"""So few that requests at once preempt each other; one alone may have 64."""
SCHEMA: dict[str, Any] = {"type": "object", "required": ["a"], "additionalProperties": False}
SCHEMA |= {"properties": {"a": {"type": "string", "maxLength": 40}}}
OPTIONS_OF_ANSWERS: tuple[dict[str, Any], ...] = (
    {"stop": ["return"]},
    {"logprobs": True, "top_logprobs": 2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"extra_body": {"repetition_penalty": 1.3}},
    {"extra_body": {"structured_outputs": {"regex": "[a-z ]{5,60}"}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}},
    {"max_tokens": 7},
    {"extra_body": {"min_tokens": 200, "max_tokens": 220}},
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """vLLM alone, and with the plugin, in a small cache and with prompts in chunks."""
    logs, model = tmp_path_factory.mktemp("vllm"), str(BUNDLED_MODEL)
    small = ("--num-gpu-blocks-override", str(NUM_BLOCKS), "--enable-log-requests")
    flags = (*OPTIONS, *small, "--speculative-config", FLAG)
    with (
        closing(Server(logs / "plain.log", model, *OPTIONS)) as plain,
        closing(Server(logs / "served.log", model, *flags)) as served,
    ):
        yield plain, served


@pytest.fixture(scope="module")
def server(servers: tuple[Server, Server]) -> Server:
    return servers[1]


@pytest.fixture(scope="module")
def reference(servers: tuple[Server, Server]) -> Any:
    """A client of vLLM without the plugin."""
    return servers[0].wait()


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    """Of any type, as its overloads do not accept options that are put together."""
    return server.wait()


def predicted(text: str) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": text}}


def ask(client: Any, edit: Edit, **options: Any) -> Any:
    return complete(client, edit.messages(), **{"model": "model", "max_tokens": 400, **options})


def ask_together(
    client: Any, asked: Sequence[Edit], predictions: Sequence[str] = (), **options: Any
) -> list[Any]:
    """Asks for edits, eight at once, each with its prediction if there are any."""
    extra = list(map(predicted, predictions)) or [{}] * len(asked)
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda edit, each: ask(client, edit, **each, **options), asked, extra))


def text(answer: Any) -> str:
    content: str = answer.choices[0].message.content
    return content


def texts(answers: Sequence[Any]) -> list[str]:
    return [text(each) for each in answers]


def counts(usage: Any) -> tuple[int, int]:
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_edits_are_the_same_text_with_and_without_predictions(client: Any, reference: Any) -> None:
    asked = edits(120)
    plain = ask_together(reference, asked)
    answers = ask_together(client, asked, [edit.before for edit in asked])
    followed = ask_together(client, asked)
    assert texts(answers) == texts(followed) == texts(plain)
    num_tokens = sum(each.usage.completion_tokens for each in answers)
    num_accepted = sum(counts(each.usage)[0] for each in answers)
    assert num_accepted > num_tokens * 0.6
    assert all(each.usage.completion_tokens_details is None for each in followed)


@pytest.mark.parametrize("options", OPTIONS_OF_ANSWERS, ids="-".join)
def test_answers_are_those_of_vllm_without_the_plugin(
    client: Any, reference: Any, options: dict[str, Any]
) -> None:
    for edit in edits(4):
        plain = ask(reference, edit, **options)
        answer = ask(client, edit, **predicted(edit.before), **options)
        assert text(answer) == text(plain)
        assert answer.choices[0].finish_reason == plain.choices[0].finish_reason
        assert answer.usage.completion_tokens == plain.usage.completion_tokens
        if "logprobs" in options:
            choices = answer.choices[0], plain.choices[0]
            found, expected = ([each.logprob for each in one.logprobs.content] for one in choices)
            assert found == pytest.approx(expected, abs=1e-3)
        accepted, rejected = counts(answer.usage)
        assert accepted <= answer.usage.completion_tokens
        assert rejected >= 0


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 1.5, "top_p": 0.9},
        {"temperature": 2.0, "extra_body": {"top_k": 4}},
    ],
    ids=lambda sampling: "-".join(sampling),
)
def test_sampled_text_has_the_distribution_of_vllm_without_the_plugin(
    client: Any, reference: Any, sampling: dict[str, Any]
) -> None:
    # Few tokens after a prompt that the model knows little of, so that there are many answers.
    options: Any = {"model": "model", "prompt": "x", "max_tokens": 4, "n": 400, "seed": 1}
    options |= {"logprobs": 0, **sampling}
    extra = {**options.pop("extra_body", {})}
    plain = reference.completions.create(**options, extra_body=extra)
    common = Counter(each.text for each in plain.choices).most_common(1)[0][0]
    answer = client.completions.create(**options, extra_body={**extra, **predicted(common)})
    assert counts(answer.usage)[0] > 100
    for position in range(4):
        said = [[each.logprobs.tokens[position] for each in one.choices] for one in (plain, answer)]
        assert distance(*map(Counter[str], said)) < 3.5


def distance(one: Counter[str], other: Counter[str]) -> float:
    """Returns how far two samples are apart: chi-square in standard deviations above its mean."""
    pairs = [(one[key], other[key]) for key in {*one, *other}]
    rare = [pair for pair in pairs if sum(pair) < 10]
    pairs = [pair for pair in pairs if sum(pair) >= 10]
    if rare:
        pairs.append((sum(pair[0] for pair in rare), sum(pair[1] for pair in rare)))
    degrees = max(len(pairs) - 1, 1)
    ratio = one.total() / other.total()
    chi_square: float = sum((a - b * ratio) ** 2 / (a + b * ratio**2) for a, b in pairs)
    return (chi_square - degrees) / math.sqrt(2 * degrees)


def test_many_at_once_in_a_small_cache(server: Server, client: Any, reference: Any) -> None:
    asked = edits(32, seed=11)
    options = [({}, *OPTIONS_OF_ANSWERS)[index % 9] for index in range(32)]
    pairs = zip(asked, options, strict=True)
    expected = [text(ask(reference, edit, **each)) for edit, each in pairs]

    def answer(index: int) -> str:
        predictions = "nothing of the sort\n" * 50, asked[index].before
        attached = predicted(predictions[index % 2]) if index % 3 else {}
        return text(ask(client, asked[index], **attached, **options[index]))

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(answer, range(32)))
    assert answers == expected
    assert server.metric("vllm:num_preemptions_total") > 0


def test_prompts_in_chunks(client: Any, reference: Any) -> None:
    """Some passes have a chunk of a prompt beside drafts of others."""
    pieces = [each.before for each in edits(48, seed=5)]
    files = ["\n".join(pieces[begin : begin + 8]) for begin in range(0, 48, 8)]
    asked = [replace(edit, before=file) for edit, file in zip(edits(6), files, strict=True)]
    plain = [ask(reference, edit, max_tokens=100) for edit in asked]
    assert all(each.usage.prompt_tokens > 3 * 256 for each in plain)
    answers = ask_together(client, asked, [edit.before for edit in asked], max_tokens=100)
    assert texts(answers) == texts(plain)
    assert sum(counts(each.usage)[0] for each in answers) > 300


def test_cached_beginnings(server: Server, client: Any, reference: Any) -> None:
    """Prompts of all lengths, so that of some a single token is not in the cache."""

    def go_on(client: Any, length: int, **extra: Any) -> str:
        options = {"model": "model", "max_tokens": 20, "temperature": 0.0, "extra_body": extra}
        prompt = list(range(300, 300 + length))
        return str(client.completions.create(prompt=prompt, **options).choices[0].text)

    hits = server.metric("vllm:prefix_cache_hits_total")
    lengths = [*range(30, 70)] * 2
    expected = [go_on(reference, length) for length in lengths]
    extra = predicted("x = 1\n")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda length: go_on(client, length, **extra), lengths))
    assert found == expected
    assert server.metric("vllm:prefix_cache_hits_total") > hits


def test_aborts_leave_the_others_alone(server: Server, client: Any, reference: Any) -> None:
    asked = edits(12, seed=3)
    expected = [text(ask(reference, edit)) for edit in asked]

    def answer(index: int) -> str | None:
        if index % 2:
            return text(ask(client, asked[index], **predicted(asked[index].before)))
        with ask(client, asked[index], **predicted(asked[index].before), stream=True) as stream:
            next(iter(stream))
        return None

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(answer, range(12)))
    assert answers[1::2] == expected[1::2]
    assert server.metric("vllm:num_requests_running") == 0


def test_llm_in_python() -> None:
    edit = next(each for each in edits(20) if each.kind == "repeat")
    script = REPOSITORY / "tests" / "vllm" / "scripts" / "llm.py"
    prompt = str(edit.messages()[0]["content"])
    command = [str(BIN / "python"), str(script), str(BUNDLED_MODEL), prompt, edit.after]
    printed = subprocess.check_output(command, env=os.environ | VLLM_VARIABLES, text=True)
    # vLLM prints there as well.
    (line,) = (line for line in printed.splitlines() if line.startswith("[["))
    (plain, _), (predicted_text, num_accepted) = json.loads(line)
    assert predicted_text == plain
    assert num_accepted > 20


def test_tensor_parallel(tmp_path: Path) -> None:
    # The bundled model has five heads, which are not to be parted.
    flags = ("--dtype", "float32", "--tensor-parallel-size", "2", "--speculative-config", FLAG)
    model = str(REPOSITORY / "models" / "tiny-edit-draft")
    with closing(Server(tmp_path / "log", model, *flags)) as server:
        client, asked = server.wait(), edits(8)
        plain = ask_together(client, asked, max_tokens=100)
        answers = ask_together(client, asked, texts(plain), max_tokens=100)
    assert texts(answers) == texts(plain)
    num_tokens = sum(each.usage.completion_tokens for each in answers)
    assert sum(counts(each.usage)[0] for each in answers) > num_tokens * 0.8


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of vLLM with the plugin and a language model in bfloat16."""
    model = REPOSITORY / "models" / "smollm2"
    if not model.is_dir():
        pytest.skip("`make smollm2` was not run")
    log = tmp_path_factory.mktemp("vllm") / "log"
    flags = ("--dtype", "bfloat16", "--speculative-config", FLAG)
    with closing(Server(log, str(model), *flags)) as server:
        yield server.wait()
