"""Requests with drafts from every source: token for token the same text, whatever others ask."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.chaos.load.client import Client, Ending
from tests.integration.edit import ask, ask_together
from tests.integration.matrix import random_requests
from tests.integration.matrix.sources import SOURCES
from tests.stack import EXACT, MODEL_FLAG, Services, start, start_services

# Of two requests that run together one is preempted before either has ended, see test_scenarios.
MEMORY = ("--num-kv-blocks", "18", "--max-num-batched-tokens", "128", *EXACT)

NUM_RANDOM_REQUESTS = 12


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with ExitStack() as stack:
        proposer = start(stack, "proposer", *MODEL_FLAG)
        # Without predictions, only the source in question drafts, whatever its time is worth.
        yield start_services(
            stack, [proposer], MEMORY, ("--follow", "predictions", "--draft-width", "fixed")
        )
        assert proposer.is_running


@pytest.fixture(scope="module")
def alone(services: Services, client: OpenAI, batch: list[Edit]) -> list[list[int]]:
    """What each request says without company and without a draft."""
    services.worker.restart(*SOURCES["none"])
    return [ask(client, edit, None).token_ids for edit in batch]


# What is a tree or a chain of another drafter is in the tests of the worker.
@pytest.fixture(
    scope="module",
    params=("ngram", "draft_model discarded", "quantised tree", "medusa tree", "eagle tree"),
)
def source(request: pytest.FixtureRequest, alone: object, services: Services) -> str:
    """A source, by its name, with which a worker drafts."""
    name: str = request.param
    services.worker.restart(*SOURCES[name])
    return name


def test_every_source_says_the_same(
    alone: list[list[int]], source: str, client: OpenAI, batch: list[Edit]
) -> None:
    answers = ask_together(client, batch)
    assert [answer.token_ids for answer in answers] == alone
    for number, answer in enumerate(answers):
        is_predicted = bool(number % 2)
        by_source = dict(answer.by_source)
        assert sum(by_source.values()) == len(answer.token_ids)
        assert (by_source.pop("prediction", 0) > 0) == is_predicted
        if is_predicted:
            # A proposer knows the request's own text too.
            by_source.pop("ngram", None)
        assert set(by_source) <= {"target", source.split()[0]}
    assert sum(answer.by_source.get(source.split()[0], 0) for answer in answers) > 0


@pytest.mark.parametrize("source", ["eagle tree"], indirect=True)
async def test_no_request_harms_another(
    alone: list[list[int]], source: str, services: Services, batch: list[Edit]
) -> None:
    requests = random_requests.make_requests(NUM_RANDOM_REQUESTS, seed=11)
    async with Client([services.url], 120) as client:
        others = asyncio.gather(*map(client.ask, requests))
        number = 0
        while not others.done() or number < 2 * len(batch):
            edit, expected = batch[number % len(batch)], alone[number % len(batch)]
            asked = random_requests.make_edit(edit, with_prediction=bool(number % 2))
            tokens = (await client.ask(asked)).answer.choices[0].token_ids
            assert tokens == expected[: random_requests.MAX_TOKENS]
            number += 1
        outcomes = await others
    assert all(service.is_running for service in services)
    random_requests.check_outcomes(outcomes)
    num_answered = sum(one.ending is Ending.ANSWERED for one in outcomes)
    assert num_answered >= NUM_RANDOM_REQUESTS // 10
    assert len(outcomes) - num_answered > NUM_RANDOM_REQUESTS // 5
