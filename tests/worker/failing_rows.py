"""Rows that fail in a real worker below the real scheduler, beside rows that do not."""

import random

import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes
from optimist_common.drafts import DraftSource
from optimist_common.sampling import SamplingParams
from optimist_common.sampling_message import write_sampling
from optimist_worker.runner.runner import Runner
from tests.scheduler.client import Client, add
from tests.scheduler.fake_services import serve_fleet
from tests.worker.step import generate

NUM_TOKENS = 24
FAILING = ("start: (", "%%%", 'start: "\\u0000" /[a-z/')
"""Grammars that no row can follow."""


async def check_failing_rows(alone: Runner, port: int, caplog: pytest.LogCaptureFixture) -> None:
    """Checks that healthy rows say what they say alone, with drafts, and failing rows fail.

    Args:
        alone: A runner of the same model.
        port: Of the worker, which has the drafter ngram.
        caplog: What the scheduler logs.
    """
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 250) for _ in range(rng.randrange(3, 30))] for _ in range(8)]
    truths = [generate(alone, prompt, NUM_TOKENS) for prompt in prompts]
    healthy, commands = {}, []
    for handle, (prompt, truth) in enumerate(zip(prompts, truths, strict=True)):
        predicted = truth if handle % 2 else [*truth[:5], 7, *truth[6:]]
        commands.append(add(handle, prompt, predicted=predicted, max_tokens=NUM_TOKENS))
        healthy[handle] = truth
    for index, grammar in enumerate(FAILING):
        sampling = write_sampling(SamplingParams(grammar=grammar))
        commands.insert(3 * index + 1, add(100 + index, prompts[index], sampling=sampling))
    async with serve_fleet([port], [], draft_width="fixed") as (fleet, stub):
        client = Client(stub)
        await client.ask(*commands)
        assert fleet.dispatcher.num_moved == 0
    assert client.tokens == healthy
    assert "lost the worker" not in caplog.text
    by_source = [0] * len(DraftSource)
    for handle, finished in client.finished.items():
        if handle >= 100:
            assert finished.reason == scheduler_pb2.FINISH_REASON_ERROR
            assert finished.message.startswith("grammar")
        else:
            assert finished.reason == scheduler_pb2.FINISH_REASON_LENGTH
            counts = from_bytes(finished.num_tokens_by_source).tolist()
            by_source = [one + other for one, other in zip(by_source, counts, strict=True)]
    # Positions of predictions are reported in these results.
    assert by_source[DraftSource.PREDICTION] > 8 * NUM_TOKENS // 2
