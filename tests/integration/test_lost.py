"""A worker or a scheduler is lost while requests of every kind run: the answers are right."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio

from optimist.scheduler.v1 import scheduler_pb2
from optimist_client import AsyncClient, Client, Message, OptimistError
from optimist_common.network.endpoints import Peer
from optimist_gateway.api.admin import ask_peers
from optimist_training.data.edits import unseen_edits
from tests.chaos.load import client as chaos
from tests.chaos.load.case import Case, make_cases
from tests.chaos.load.client import Outcome
from tests.chaos.load.load import Answers, ask_each, is_all_right, report_outcomes
from tests.chaos.services.fleet import Fleet, Shape, running_fleet
from tests.chaos.services.network import Network
from tests.command import promtool, run
from tests.stack import BUNDLED_MODEL, Process, free_port, read_metrics, read_totals

NUM_BLOCKS = 200
ADMIN_KEY = "admin-key"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
COMPLETIONS = "/v1/completions"
RESUMED = f'requests_resumed_total{{model="{BUNDLED_MODEL.name}"}}'

pytestmark = pytest.mark.asyncio(loop_scope="module")


def short_cases() -> list[Case]:
    """Requests of all kinds, which are at work together."""
    cases = make_cases(16, seed=11)
    for case in cases:
        case.body["max_tokens"] = min(case.body["max_tokens"], 72)
    return cases


class Lossy:
    """A gateway, a scheduler with two workers, and one with a worker."""

    def __init__(self, fleet: Fleet, grpc_address: str) -> None:
        self.members, self.grpc_address = fleet.members, grpc_address
        self.schedulers = fleet.named("scheduler")
        self.gateway = fleet.members["gateway-1"]
        self.url = f"http://{self.gateway.address}"
        self.http = httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=120)
        self.expected: Answers = {}
        """The answers when nothing is lost, and that by gRPC."""
        self.text = ""
        self._fleet = fleet

    def metric(self, name: str) -> float:
        """Returns a figure of the gateway."""
        return read_metrics(self.gateway.metrics_url)[f"optimist_gateway_{name}"]

    def num_requests(self, scheduler: Process) -> float:
        labels = f'model="{BUNDLED_MODEL.name}",scheduler="{scheduler.address}"'
        return self.metric(f"scheduler_requests{{{labels}}}")

    def total(self, name: str) -> float:
        """Returns a figure of the first scheduler."""
        return read_metrics(self.schedulers[0].metrics_url)[f"optimist_scheduler_{name}"]

    def of_workers(self, name: str) -> dict[str, float]:
        """Returns a figure of the first scheduler's workers, by their names."""
        addresses = {one: self.members[one].address for one in ("worker-1", "worker-2")}
        return {one: self.total(f'{name}{{worker="{addresses[one]}"}}') for one in addresses}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(holds):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def make_whole(self) -> None:
        """Starts what was ended, and waits until all of it is used."""
        for member in self.members.values():
            if not member.is_running:
                member.start()
        await self._fleet.until_healthy()
        await self.until(lambda: sum(self.of_workers("worker_connected").values()) == 2)
        name = "optimist_gateway_scheduler_connected"
        await self.until(lambda: read_totals(self.gateway.metrics_url).get(name) == 2)

    async def check_answers(self, harm: Callable[[], Awaitable[None]]) -> None:
        """Asks everything at once; `harm` begins when two streams are in the middle."""
        begun: set[str] = set()
        harmed: list[asyncio.Task[None]] = []

        def note(outcome: Outcome) -> None:
            if len(outcome.times) == 3:
                begun.add(outcome.case.name)
            if len(begun) == 2 and not harmed:
                harmed.append(asyncio.ensure_future(harm()))

        async with chaos.Client([self.url], 120, on_chunk=note) as client:
            answers = asyncio.gather(*map(client.ask, short_cases()))
            text, outcomes = await asyncio.gather(generate(self.grpc_address), answers)
        await harmed[0]
        counts = report_outcomes(outcomes, self.expected)
        assert counts["wrong_shown"] == counts["lost_shown"] == []
        assert is_all_right(counts)
        assert counts["refused_and_asked_again"] == counts["duplicates"] == 0
        assert text == self.text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lossy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lossy]:
    port = str(free_port())
    options = {
        "gateway": ("--grpc-port", port, "--admin-keys", f"root:{ADMIN_KEY}"),
        "scheduler": ("--policy", "priority"),
        "worker": ("--num-kv-blocks", str(NUM_BLOCKS)),
    }
    shape = Shape(num_gateways=1, num_workers=(2, 1), num_proposers=1, options=options)
    async with running_fleet(shape, Network(), tmp_path_factory.mktemp("fleet")) as fleet:
        running = Lossy(fleet, f"127.0.0.1:{port}")
        await running.make_whole()
        async with chaos.Client([running.url], 120) as client:
            running.expected = await ask_each(client, short_cases())
        running.text = await generate(running.grpc_address)
        async with running.http:
            yield running
        await running.make_whole()


async def generate(address: str) -> str:
    edit = unseen_edits(1, seed=12)[0]
    messages = [Message(one["role"], one["content"]) for one in edit.messages()]
    async with AsyncClient(address, timeout=120) as client:
        return (await client.generate(messages, temperature=0.0).result()).text


async def test_each_service_shows_its_release_and_keeps_to_the_conventions(lossy: Lossy) -> None:
    services = set()
    for url in filter(None, (member.metrics_url for member in lossy.members.values())):
        text = (await lossy.http.get(url)).text
        services |= set(re.findall(r'^optimist_build_info\{service="(\w+)",version=', text, re.M))
        await asyncio.to_thread(run, promtool(), "check", "metrics", stdin=text)
    assert services == {"gateway", "scheduler", "worker", "proposer"}


@pytest.mark.parametrize(
    ("role", "how"),
    [
        ("worker", signal.SIGSTOP),
        ("scheduler", signal.SIGTERM),
    ],
)
async def test_answers_are_the_same_though_one_is_lost(
    lossy: Lossy, role: str, how: signal.Signals
) -> None:
    await lossy.make_whole()
    num_losses, num_moved = map(lossy.total, ("worker_losses_total", "requests_moved_total"))
    num_resumed = lossy.metric(RESUMED)
    lost: list[Process] = []

    async def lose() -> None:
        if role == "scheduler":
            lost.append(max(lossy.schedulers, key=lossy.num_requests))
        else:
            running = lossy.of_workers("requests_running")
            lost.append(lossy.members[max(running, key=running.__getitem__)])
        if how is signal.SIGTERM:
            await asyncio.to_thread(lost[0].stop)
        else:
            lost[0].signal(signal.SIGSTOP)

    try:
        await lossy.check_answers(lose)
    finally:
        if how is signal.SIGSTOP:
            lost[0].signal(signal.SIGCONT)
    if role == "scheduler":
        assert lossy.metric(RESUMED) > num_resumed
    else:
        assert lossy.total("worker_losses_total") - num_losses == 1
        assert lossy.total("requests_moved_total") - num_moved >= 2
    assert lossy.metric("requests_in_flight") == 0
    # What stood still is used again.
    await lossy.make_whole()
    await lossy.until(
        lambda: set(lossy.of_workers("kv_cache_free_blocks").values()) == {NUM_BLOCKS}
    )
    for name in ("requests_running", "requests_waiting"):
        assert set(lossy.of_workers(name).values()) == {0}


async def test_schedulers_end_what_a_gateway_left(lossy: Lossy) -> None:
    await lossy.make_whole()
    peers = [Peer(one.address, "127.0.0.1") for one in lossy.schedulers]

    async def command(**fields: object) -> list[scheduler_pb2.Stats]:
        request = scheduler_pb2.ConnectRequest(**fields)  # type: ignore[arg-type]
        replies = await ask_peers([(peer, None) for peer in peers], request, 10)
        return [reply.stats for reply in replies.values() if not isinstance(reply, Exception)]

    async def count() -> int:
        stats = await command(get_stats=scheduler_pb2.GetStats())
        return sum(one.num_running + one.num_waiting for one in stats)

    async def until_there_are(number: int) -> None:
        async with asyncio.timeout(60):
            while await count() != number:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    await command(pause=scheduler_pb2.Pause(mode=scheduler_pb2.PAUSE_MODE_KEEP))
    body = {"model": "tiny-edit", "prompt": "def", "max_tokens": 3}
    asked = asyncio.create_task(lossy.http.post(COMPLETIONS, json=body))
    await until_there_are(1)
    lossy.gateway.signal(signal.SIGSTOP)
    try:
        await until_there_are(0)
    finally:
        lossy.gateway.signal(signal.SIGCONT)
    # Its requests come back with it.
    await until_there_are(1)
    await command(resume=scheduler_pb2.Resume())
    assert (await asked).status_code == 200


async def test_priorities_of_requests_in_progress_are_changed(lossy: Lossy) -> None:
    await lossy.make_whole()
    body = {"model": "tiny-edit", "prompt": "def", "max_tokens": 3, "n": 3, "priority": 5}
    named = {"x-request-id": "team-a/7"}
    http = lossy.http
    async with AsyncClient(lossy.grpc_address, api_key=ADMIN_KEY, timeout=120) as client:
        await http.post("/admin/pause", headers=ADMIN)
        asked = asyncio.create_task(http.post(COMPLETIONS, json=body, headers=named))
        stream = client.generate("def", max_tokens=3, priority=-5)
        request_id = await stream.request_id()
        await lossy.until(lambda: sum(map(lossy.num_requests, lossy.schedulers)) == 4)
        assert await client.set_priority(request_id, 1) == 1
        changed = await http.post("/admin/priority?request_id=team-a/7&priority=-1", headers=ADMIN)
        assert changed.json() == {"request_id": "team-a/7", "priority": -1, "num_choices": 3}
        with Client(lossy.grpc_address, api_key=ADMIN_KEY, timeout=120) as plain:
            assert await asyncio.to_thread(plain.set_priority, "team-a/7", 2) == 3
            with pytest.raises(OptimistError, match="NOT_FOUND"):
                await asyncio.to_thread(plain.set_priority, "team-a", 2)
        await http.post("/admin/resume", headers=ADMIN)
        assert (await asked).status_code == 200
        assert (await stream.result()).request_id == request_id
        with pytest.raises(OptimistError, match="NOT_FOUND"):
            await client.set_priority(request_id, 1)
