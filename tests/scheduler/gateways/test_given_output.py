"""Requests that go on after output which their owner has already.

Stop tokens and lengths, which count from the prompt on, are in test_random_commands.py.
"""

from typing import Any

import pytest

from optimist_common.columns import from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from tests.scheduler.client import MODES, PATIENT, PROMPT, add, ask, truth, until
from tests.scheduler.conftest import Start
from tests.scheduler.fake_services import FakeProposerServicer
from tests.scheduler.situation import Situation

GIVEN = {1: 1, 2: 7, 3: 19}
"""How much of its output each request has."""
REST = {handle: truth(PROMPT)[number:] for handle, number in GIVEN.items()}


@pytest.mark.parametrize("mode", MODES)
async def test_only_what_comes_after_it_is_delivered_and_a_proposer_knows_it_from_the_start(
    start: Start, mode: str, proposer_port: int, proposer: FakeProposerServicer
) -> None:
    _, first = await start(proposer_port, **PATIENT, **MODES[mode])
    for predicted in ([], truth(PROMPT)):
        most: dict[str, Any] = {"predicted": predicted} if predicted else {"max_draft_tokens": 0}
        given = {handle: to_bytes(truth(PROMPT)[:number]) for handle, number in GIVEN.items()}
        commands = [add(each, PROMPT, output_token_ids=given[each], **most) for each in given]
        client = await ask(first.stub, *commands)
        assert client.tokens == REST
        for handle, end in client.finished.items():
            by_source = from_bytes(end.num_tokens_by_source).tolist()
            assert sum(by_source) == len(REST[handle])
            assert by_source[DraftSource.PREDICTION] == end.accepted_prediction_tokens
            assert end.num_passes + sum(by_source[1:]) == len(REST[handle])
            if predicted:
                # The first pass emits a token of its own.
                assert end.accepted_prediction_tokens >= max(len(REST[handle]) - 4, 0) // 2
            else:
                assert by_source[DraftSource.TARGET] == len(REST[handle])
    await until(lambda: sorted(proposer.closed) == ["r1", "r2", "r3"])
    assert proposer.num_gaps == 0


def test_the_account_reports_what_the_prefix_cache_held_of_the_prompt() -> None:
    situation = Situation(enable_prefix_caching=True, max_num_batched_tokens=32)
    prompt = [*range(10)]
    situation.add(1, prompt, 8)
    situation.drain()
    situation.add(2, prompt, 8)
    situation.add(3, prompt, 8, output_token_ids=situation.text(1)[:7])
    situation.add(4, [9, *prompt], 2)
    situation.drain()
    # Blocks of 4; output that is in the cache as well does not count.
    counts = [situation.finished(handle).num_cached_tokens for handle in (1, 2, 3, 4)]
    assert counts == [0, 8, 10, 0]
    situation.add(5, prompt, 8)
    assert situation.abort(5).num_cached_tokens == 0
