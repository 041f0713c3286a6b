"""Requests that go on behind output which their owner has already."""

from typing import Any

import pytest

from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_scheduler.core.values import FinishReason
from tests.scheduler.client import MODES, PROMPT, add, ask, truth, until
from tests.scheduler.fake_services import FakeProposerServicer, serve_scheduler
from tests.scheduler.situation import Situation

NUM_GIVEN = [1, 7, 19]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_given", NUM_GIVEN)
async def test_only_what_comes_after_it_is_delivered(
    mode: str, num_given: int, worker_port: int
) -> None:
    given, rest = truth(PROMPT)[:num_given], truth(PROMPT)[num_given:]
    async with serve_scheduler(worker_port, [], **MODES[mode]) as (_, stub):
        client = await ask(stub, add(1, PROMPT, output_token_ids=to_bytes(given)))
    end = client.finished[1]
    assert client.tokens == {1: rest}
    by_source = from_bytes(end.num_tokens_by_source).tolist()
    assert (sum(by_source), by_source[DraftSource.TARGET]) == (len(rest), len(rest))
    assert end.num_passes == len(rest)


@pytest.mark.parametrize("num_given", NUM_GIVEN)
async def test_a_proposer_knows_it_from_the_start(
    num_given: int, worker_port: int, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    given, rest = truth(PROMPT)[:num_given], truth(PROMPT)[num_given:]
    async with serve_scheduler(worker_port, [proposer_port], proposer_wait_ms=2000) as (_, stub):
        client = await ask(
            stub, add(1, PROMPT, predicted=truth(PROMPT), output_token_ids=to_bytes(given))
        )
        await until(lambda: proposer.closed == ["r1"])
    end = client.finished[1]
    assert client.tokens == {1: rest}
    assert proposer.num_gaps == 0
    assert end.num_passes + end.accepted_prediction_tokens == len(rest)
    # The first pass emits a token of its own.
    assert end.accepted_prediction_tokens >= max(len(rest) - 4, 0) // 2


def test_stop_tokens_and_lengths_count_from_the_prompt() -> None:
    text = truth(PROMPT)
    stop = text[9]
    first = text.index(stop)
    values: dict[str, Any] = {"stop_token_ids": [stop], "output_token_ids": text[:5]}
    situation = Situation()
    assert first >= 5
    situation.add(1, PROMPT, 20, **values)
    situation.add(2, PROMPT, 20, min_tokens=20, **values)
    situation.drain()
    assert situation.text(1) == text[5 : first + 1]
    assert situation.finished(1).reason is FinishReason.STOP
    assert situation.text(2) == text[5:]


def test_of_the_prompt_no_log_probability_is_reported_again() -> None:
    wanted = SamplingParams(num_logprobs=1, num_prompt_logprobs=1)
    situation = Situation()
    situation.add(1, PROMPT, 8, sampling=wanted, output_token_ids=truth(PROMPT)[:3])
    reported = [
        each.logprobs
        for _ in range(5)
        for each in (situation.send(), situation.answer())[1].logprobs
    ]
    assert [(each.num_prompt_tokens, each.num_tokens) for each in reported] == [(0, 1)] * 5
    assert situation.finished(1).reason is FinishReason.LENGTH


def test_the_account_tells_what_the_prefix_cache_held_of_the_prompt() -> None:
    situation = Situation(enable_prefix_caching=True, max_num_batched_tokens=32)
    prompt = [*range(10)]
    situation.add(1, prompt, 8)
    situation.drain()
    situation.add(2, prompt, 8)
    situation.add(3, prompt, 8, output_token_ids=situation.text(1)[:7])
    situation.add(4, [9, *prompt], 2)
    situation.drain()
    # Blocks of 4; output that is in the cache as well does not count.
    assert [situation.finished(handle).num_cached_tokens for handle in (1, 2, 3, 4)] == [
        0,
        8,
        10,
        0,
    ]
    situation.add(5, prompt, 8)
    assert situation.abort(5).num_cached_tokens == 0
