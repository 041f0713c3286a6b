"""A model in one Python object: its services start and end with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from optimist_client import LLM, BatchError, SamplingParams
from tests.integration.edit import edits
from tests.stack import BUNDLED_MODEL, PATIENT, descendants, wait_for_end, wait_until

GREEDY = SamplingParams(temperature=0.0, max_tokens=96)
EDITS = edits(3, seed=11)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        # A certificate and keys are for a gateway that others reach.
        patch.setenv("OPTIMIST_GATEWAY_HTTPS_CERT", "missing.pem")
        patch.setenv("OPTIMIST_GATEWAY_API_KEYS", "mine")
        running = LLM(BUNDLED_MODEL)
    commands = descendants(os.getpid())
    (serve,) = (pid for pid in commands if "--end-with-stdin" in commands[pid])
    pids = [serve, *descendants(serve)]
    # The gateway has a process for its chat template.
    assert len(pids) == 6
    yield running
    running.close()
    wait_for_end(pids)
    running.close()
    with pytest.raises(RuntimeError, match="the LLM is closed"):
        running.generate("x")


def test_predictions_save_passes_and_change_no_text(llm: LLM) -> None:
    # Without drafts: those of the prompt alone may save as many passes.
    undrafted = replace(GREEDY, num_speculative_tokens=0)
    plain = llm.chat([edit.messages() for edit in EDITS], undrafted)
    params = [
        replace(GREEDY, prediction={"type": "content", "content": edit.before}) for edit in EDITS
    ]
    predicted = llm.chat([edit.messages() for edit in EDITS], params)
    assert [each.text for each in predicted] == [each.text for each in plain]
    assert len({each.text for each in plain}) == len(EDITS)
    for one, other in zip(plain, predicted, strict=True):
        assert other.outputs[0].finish_reason == one.outputs[0].finish_reason
        assert other.usage.accepted_prediction_tokens > 0
        assert other.usage.num_passes < one.usage.num_passes
    (single,) = llm.chat(EDITS[1].messages(), GREEDY)
    assert single.text == plain[1].text


def test_texts_and_tokens_are_continued_in_order(llm: LLM) -> None:
    prompts = [edit.before[:40] for edit in EDITS] * 4
    params = SamplingParams(temperature=0.0, max_tokens=8)
    together = llm.generate(prompts, params)
    alone = [llm.generate(prompt, params)[0].text for prompt in prompts[:3]]
    assert [each.text for each in together] == alone * 4
    tokens = together[0].answers[0].token_ids
    one, other = llm.generate([list(tokens), [5]], SamplingParams(max_tokens=2, n=2))
    assert one.usage.prompt_tokens == len(tokens)
    assert len(other.answers) == 2
    (again,) = llm.generate(tokens, replace(params, prediction=tokens))
    assert again.usage.prompt_tokens == len(tokens)


def test_wrong_requests_name_their_prompt(llm: LLM) -> None:
    wrong = SamplingParams(max_tokens=2, top_p=3.0)
    with pytest.raises(BatchError, match="INVALID_ARGUMENT: prompt 1: ") as caught:
        llm.generate(["a", "b"], [SamplingParams(max_tokens=2), wrong])
    assert caught.value.results[0] is not None
    assert caught.value.field == "sampling.top_p"
    with pytest.raises(ValueError, match="sampling_params: 1 for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(TypeError, match="'names'"):
        llm.chat([{"role": "user", "content": "x", "names": "y"}])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"no_such": 1}, "optimist serve: unrecognized arguments: --no-such=1"),
        ({"max_model_len": -1}, ".*optimist worker: --max-model-len: "),
    ],
)
def test_services_that_cannot_start_say_why(options: dict[str, str | float], reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"the services ended with exit code [12]: {reason}"):
        LLM(BUNDLED_MODEL, **options)


def test_ports_are_not_for_the_caller_to_choose() -> None:
    with pytest.raises(TypeError, match="LLM chooses port itself"):
        LLM(BUNDLED_MODEL, port=8000)


def test_services_end_with_a_process_that_is_killed() -> None:
    script = f"from optimist_client import LLM; LLM({str(BUNDLED_MODEL)!r})"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        # `optimist serve` and the services that it has started so far.
        wait_until(lambda: len(descendants(process.pid)) > 2, "services")
        pids = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
    wait_for_end(pids)
