"""Services of different versions in one system, as during a rolling upgrade."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from openai import BadRequestError, OpenAI

from optimist.scheduler.v1 import scheduler_pb2
from tests.integration.edit import ask, edits
from tests.stack import MODEL_FLAG, start
from tests.versions.contract import UNKNOWN_FIELDS, Change, newer, older
from tests.versions.translating_proxy import TranslatingProxy

CONNECT = "/optimist.scheduler.v1.SchedulerService/Connect"
# What only a later gateway asks for.
UNKNOWN_COMMAND = scheduler_pb2.ConnectRequest(command_id=2**40).SerializeToString()


@dataclass(frozen=True)
class Mixed:
    url: str
    is_older: bool
    """Whether the others are older."""
    proxies: dict[str, TranslatingProxy]
    """By the service behind them."""


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, str]]:
    """Services that schedulers take turns with, by name."""
    with ExitStack() as stack:
        addresses: dict[str, str] = {}
        for name, options in (("proposer", ()), ("worker", ("--dtype", "float64"))):
            addresses[name] = start(stack, name, *MODEL_FLAG, *options).address
        yield addresses


@pytest.fixture(params=["older", "newer"])
def mixed(request: pytest.FixtureRequest, peers: dict[str, str]) -> Iterator[Mixed]:
    """Every service takes those that it talks to for another version."""
    is_older = request.param == "older"
    change: Change = older() if is_older else newer
    first = {} if is_older else {CONNECT: UNKNOWN_COMMAND + UNKNOWN_FIELDS}
    proxies: dict[str, TranslatingProxy] = {}
    with ExitStack() as stack:

        def behind_proxy(name: str, address: str) -> str:
            proxies[name] = TranslatingProxy(address, change, first)
            stack.callback(proxies[name].stop)
            return proxies[name].address

        worker, proposer = (behind_proxy(name, peers[name]) for name in ("worker", "proposer"))
        scheduler = start(stack, "scheduler", "--workers", worker, "--proposers", proposer)
        schedulers = behind_proxy("scheduler", scheduler.address)
        gateway = start(stack, "gateway", *MODEL_FLAG, "--schedulers", schedulers)
        yield Mixed(f"http://{gateway.address}/v1", is_older, proxies)


def test_versions_work_together(mixed: Mixed) -> None:
    with OpenAI(base_url=mixed.url, api_key="none", max_retries=0) as client:
        for edit in edits(2, seed=3):
            plain, predicted = ask(client, edit, None), ask(client, edit, edit.before)
            assert plain.text == edit.after
            assert predicted.token_ids == plain.token_ids
            assert predicted.accepted > len(plain.token_ids) / 2
            sampled = [
                ask(client, edit, before, temperature=1.0, seed=5, max_tokens=40)
                for before in (None, edit.before)
            ]
            assert sampled[0].token_ids == sampled[1].token_ids
        # Nothing of another version lets a priority be ignored.
        with pytest.raises(BadRequestError, match="priority: ") as refused:
            client.completions.create(
                model="tiny-edit", prompt="def", max_tokens=3, extra_body={"priority": 1}
            )
        assert refused.value.param == (None if mixed.is_older else "priority")
    assert sum(proxy.num_changed for proxy in mixed.proxies.values()) > 0
