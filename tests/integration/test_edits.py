"""Edits through all four services, with the bundled model and the official client."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from tests.integration.edit import MODEL, ask, complete, edits, predict
from tests.stack import our_engine, wait_until

CODE = "def area(width, height):\n    return width * height\n" * 4
FOX = "The quick brown fox\njumps over the lazy dog.\n"


def test_a_perfect_prediction_takes_few_chunks(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    seen: list[int] = []
    predicted = ask(client, edit, plain.text, on_chunk=seen.append)
    assert predicted.token_ids == plain.token_ids
    # Every pass emits one token of the model's own.
    assert predicted.accepted > len(plain.token_ids) * 0.9
    assert predicted.rejected == 0
    assert len(seen) < len(plain.token_ids) / 4


@pytest.mark.parametrize("sent_ends", ["\n", "\r\n"])
def test_a_prediction_is_as_good_in_a_file_with_cr_lf(client: OpenAI, sent_ends: str) -> None:
    edit = edits(1)[0]
    edit = replace(edit, before=edit.before.replace("\n", "\r\n"))
    plain = ask(client, edit, None)
    assert "\r\n" in plain.text
    predicted = ask(client, edit, plain.text.replace("\r\n", sent_ends))
    assert predicted.token_ids == plain.token_ids
    assert predicted.accepted > len(plain.token_ids) * 0.9


@our_engine(reason="vLLM drafts a word or two of any text")
def test_a_prediction_that_is_useless_or_goes_wrong_changes_nothing(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    useless = ask(client, edit, FOX * 20)
    wrong = ask(client, edit, plain.text[: len(plain.text) // 2] + FOX * 20)
    assert wrong.token_ids == useless.token_ids == plain.token_ids
    # A line end or a full stop may come where one is drafted.
    assert useless.accepted < len(plain.token_ids) / 8
    assert wrong.accepted > 0
    assert wrong.rejected > 0


def test_an_answer_goes_on_where_the_last_message_ends(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    length = plain.text.index("\n", len(plain.text) // 2) + 1
    begun, rest = plain.text[:length], plain.text[length:]
    messages = [*edit.messages(), {"role": "assistant", "content": begun}]
    num_passes = []
    for prediction in (None, rest, edit.before):
        body = predict(prediction) if prediction is not None else {"num_speculative_tokens": 0}
        body |= {"continue_final_message": True, "return_token_ids": True}
        answer = complete(client, messages, extra_body=body)
        assert answer.choices[0].message.content == rest
        num_passes.append(answer.usage.num_passes)
    assert max(num_passes[1:]) < num_passes[0]


@our_engine(reason="vLLM keeps the distribution, not the sample")
def test_sampled_text_does_not_depend_on_the_prediction(client: OpenAI) -> None:
    edit = edits(1)[0]
    # The model is so sure of an edit that it takes both to leave it a choice.
    options = {"temperature": 2.0, "frequency_penalty": 2.0, "seed": 11, "max_tokens": 120}
    plain = ask(client, edit, None, **options)
    predicted = ask(client, edit, edit.before, **options)
    other_seed = ask(client, edit, edit.before, **options | {"seed": 12})
    assert predicted.token_ids == plain.token_ids
    assert other_seed.token_ids != plain.token_ids


def test_a_stop_string_ends_the_answer_and_its_account(client: OpenAI) -> None:
    edit = edits(1)[0]
    plain = ask(client, edit, None)
    stop = plain.text[40:46]
    # Wherever the first window begins to be of use, it runs into what is not said.
    wrong = plain.text[:30] + "not this\n" + edit.before
    stopped, predicted = (ask(client, edit, text, stop=[stop]) for text in (None, wrong))
    assert stopped.text == predicted.text == plain.text[: plain.text.index(stop)]
    assert predicted.token_ids == stopped.token_ids
    assert predicted.accepted > 0
    assert predicted.rejected > 0


def test_the_second_of_two_predictions_is_found_by_each_choice(client: OpenAI) -> None:
    """The first one is wrong."""
    edit = edits(2)[1]
    plain = ask(client, edit, None)
    body = predict(FOX * 5, edit.before)
    answer = complete(client, edit.messages(), n=3, extra_body=body)
    assert [choice.message.content for choice in answer.choices] == [plain.text] * 3
    assert answer.usage.completion_tokens == 3 * len(plain.token_ids)
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > answer.usage.completion_tokens / 2


def test_an_echo_has_the_log_probabilities_of_the_answer(client: OpenAI) -> None:
    """A text is as likely as a prompt as it was as an answer."""
    arguments: Any = {"model": MODEL, "temperature": 0, "echo": True, "logprobs": 2}
    send: Any = client.completions.create
    answer = send(prompt=CODE, max_tokens=8, **arguments).choices[0]
    again = send(prompt=answer.text, max_tokens=0, **arguments).choices[0]
    assert again.text == answer.text
    assert again.logprobs.tokens == answer.logprobs.tokens
    assert again.logprobs.text_offset == answer.logprobs.text_offset
    echoed, expected = again.logprobs.token_logprobs, answer.logprobs.token_logprobs
    assert echoed[1:] == pytest.approx(expected[1:], abs=0.01)


def test_a_prediction_saves_passes_and_changes_no_log_probability(client: OpenAI) -> None:
    messages = [{"role": "user", "content": f"Rename `width` to `breadth`.\n\n{CODE}"}]
    options = {"logprobs": True, "top_logprobs": 2}
    plain, predicted = (
        complete(client, messages, extra_body={"include_speculation": True, **extra}, **options)
        for extra in ({}, predict(CODE))
    )
    (one,), (other,) = plain.choices, predicted.choices
    assert other.message == one.message
    tokens, expected = other.logprobs.content, one.logprobs.content
    assert [each.token for each in tokens] == [each.token for each in expected]
    logprobs = [each.logprob for each in expected]
    assert [each.logprob for each in tokens] == pytest.approx(logprobs, abs=0.01)
    worth, without = (each.usage.model_extra["speculation"] for each in (predicted, plain))
    assert worth["num_passes"] == sum(worth["accepted_length_histogram"])
    assert worth["num_passes"] < without["num_passes"]
    assert 0 < worth["num_accepted_tokens"] <= worth["num_drafted_tokens"]


def test_a_request_is_logged_where_that_is_set(client: OpenAI, request_logs: Path) -> None:
    edit = edits(1)[0]
    answer = ask(client, edit, edit.before)
    path = request_logs / f"{answer.request_id}.jsonl"
    wait_until(
        lambda: path.exists() and "the request was closed" in path.read_text(), "the end of the log"
    )
    command = [sys.executable, "-m", "optimist_cli", "explain", str(path)]
    summary = json.loads(subprocess.check_output([*command, "--json"]))
    # A proposer does not learn what a request ends with.
    assert 0 < summary["output_tokens"] <= len(answer.token_ids)
    story = subprocess.check_output([*command, "--color", "never"], text=True)
    assert any(line in story for line in edit.before.splitlines())
    first, *steps, end = yaml.safe_load(subprocess.check_output([*command, "--yaml"]))
    (prediction,) = first["predictions"]
    assert "".join(line["text"] for line in prediction["lines"]) == edit.before
    completed = [line["text"] for step in steps for line in step["completed_lines"]]
    assert "".join(completed) + steps[-1]["line_prefix"] == "".join(
        text for step in steps for text in step["texts"]
    )
    assert any(step["proposal"] and step["proposal"]["token_ids"] for step in steps)
    assert all(step["microseconds"] >= 0 for step in steps)
    assert end == {"end": "the request was closed"}
