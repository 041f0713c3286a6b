"""The same requests in every way of scheduling: token for token the same text."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI

from optimist_training.data.edits import Edit
from tests.integration.edit import ask, ask_together
from tests.stack import EXACT, MODEL_FLAG, Services, read_totals, start, start_services

# Each request fits, and so do the prompts of two: 7 blocks and more. An answer's end takes 12 and
# more, so of two that run together one is preempted before either has ended.
MEMORY = ("--num-kv-blocks", "18", "--max-num-batched-tokens", "128", *EXACT)
SPECULATION = ("--num-speculative-tokens", "8")
NO_SPECULATION = ("--num-speculative-tokens", "0")

# More of them are in the tests of the scheduler.
SCENARIOS = [
    ("--max-plans-in-flight", depth, "--enable-optimistic-scheduling", ahead, *more)
    for depth, ahead, more in (("1", "true", SPECULATION), ("3", "true", NO_SPECULATION))
] + [
    ("--num-pipeline-stages", "2", *SPECULATION),
    ("--policy", "priority", "--draft-width", "fixed", "--no-enable-prefix-caching", *SPECULATION),
]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with ExitStack() as stack:
        yield start_services(stack, [start(stack, "proposer", *MODEL_FLAG)], MEMORY)


def schedule(services: Services, *options: str) -> None:
    """Starts another scheduler, at the same address."""
    services.scheduler.restart(*options)
    services.gateway.wait_until_healthy()


def num_preemptions(services: Services) -> float:
    return read_totals(services.scheduler.metrics_url)["optimist_scheduler_preemptions_total"]


@pytest.fixture(scope="module")
def alone(services: Services, client: OpenAI, batch: list[Edit]) -> list[list[int]]:
    """What each request says without company, speculation or anything ahead."""
    plain = ("--max-plans-in-flight", "1", "--no-enable-optimistic-scheduling")
    schedule(services, *plain, *NO_SPECULATION)
    answers = [ask(client, edit, None).token_ids for edit in batch]
    assert num_preemptions(services) == 0
    return answers


@pytest.mark.parametrize("options", SCENARIOS, ids=lambda options: " ".join(options))
def test_every_scenario_says_the_same(
    alone: list[list[int]],
    services: Services,
    client: OpenAI,
    batch: list[Edit],
    options: tuple[str, ...],
) -> None:
    schedule(services, *options)
    answers = ask_together(client, batch)
    assert [answer.token_ids for answer in answers] == alone
    accepted = sum(answer.accepted for answer in answers)
    assert (accepted > 0) == (SPECULATION[1] in options)
    assert num_preemptions(services) > 0
