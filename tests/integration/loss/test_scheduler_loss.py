"""A scheduler is lost in the middle of requests of every kind: their answers are what they were."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_client import AsyncClient, Client, Message, OptimistError
from optimist_common.network.endpoints import Peer
from optimist_gateway.schedulers.admin import SchedulerAdmin
from optimist_training.data.edits import unseen_edits
from tests.chaos.load.answer import Answer, difference
from tests.chaos.load.case import Case
from tests.stack import MODEL_FLAG, Service, free_port, read_metrics, start

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 17}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 30, "maxLength": 40}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "rename", "parameters": SCHEMA}}


def make_cases() -> list[Case]:
    """Requests that are at work together, with prompts of their own so that they are spread."""
    edits = iter(unseen_edits(20, seed=11))

    def chat(name: str, *, predicted: bool = False, **fields: Any) -> Case:
        edit = next(edits)
        body: dict[str, Any] = {"messages": edit.messages(), "temperature": 0, "max_tokens": 72}
        if predicted:
            body["prediction"] = {"type": "content", "content": edit.before}
        return Case(name, CHAT, body | fields)

    def completion(name: str, **fields: Any) -> Case:
        body = {"prompt": next(edits).before, "temperature": 0} | LONG | fields
        return Case(name, COMPLETIONS, body)

    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    cases = [
        completion("greedy"),
        completion("seeded", **SEEDED),
        completion("streamed", stream=True),
        completion("seeded_streamed", stream=True, n=2, **SEEDED),
        completion("echo_logprobs", echo=True, logprobs=2),
        completion("logprobs_streamed", stream=True, logprobs=1),
        completion("stop", stop=["~~", "return x"], stream=True),
        chat("predicted", predicted=True, stream=True),
        chat("choices", predicted=True, n=3, **SEEDED),
        chat("provenance", predicted=True, include_provenance=True),
        chat("schema", response_format=schema, **SEEDED),
        chat("schema_streamed", response_format=schema, stream=True),
        chat("tools", tools=[TOOL], tool_choice="required"),
    ]
    for case in cases:
        case.body.update(model="tiny-edit", return_token_ids=True)
        if case.is_streamed:
            case.body["stream_options"] = {"include_usage": True}
    return cases


class Fleet:
    """A gateway, and two schedulers with a worker each."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        with ThreadPoolExecutor() as pool:
            workers = list(
                pool.map(
                    lambda _: self.start("worker", *MODEL_FLAG, "--dtype", "float64"), range(2)
                )
            )
            self._options = [
                ("--workers", one.address, "--proposers", "", "--policy", "priority")
                for one in workers
            ]
            self._ports = [free_port() for _ in workers]
            self.schedulers = list(pool.map(self.start_scheduler, range(2)))
        self.grpc_address = f"127.0.0.1:{free_port()}"
        self.gateway = self.start(
            "gateway",
            *MODEL_FLAG,
            *("--schedulers", ",".join(one.address for one in self.schedulers)),
            *("--grpc-port", self.grpc_address.rpartition(":")[2]),
            *("--admin-keys", "root:admin-key"),
        )
        self.url = f"http://{self.gateway.address}"

    def start(self, name: str, *options: str, port: int = 0) -> Service:
        return start(self._stack, name, *options, port=port)

    def start_scheduler(self, index: int) -> Service:
        return self.start("scheduler", *self._options[index], port=self._ports[index])

    def restart(self, index: int) -> None:
        self.schedulers[index] = self.start_scheduler(index)

    async def make_whole(self) -> None:
        """Starts the schedulers again that were ended."""
        for index, scheduler in enumerate(self.schedulers):
            if not scheduler.is_running:
                await asyncio.to_thread(self.restart, index)
        await self.until_connected(2)

    def metric(self, name: str) -> float:
        return self._metrics()[f"optimist_gateway_{name}"]

    def num_requests(self, index: int) -> float:
        address = self.schedulers[index].address
        return self.metric(f'scheduler_requests{{scheduler="{address}"}}')

    def busiest(self) -> int:
        return max(range(2), key=self.num_requests)

    async def until_connected(self, number: int) -> None:
        async with asyncio.timeout(30):
            while self._num_connected() != number:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def _num_connected(self) -> float:
        metrics = self._metrics().items()
        return sum(value for name, value in metrics if "scheduler_connected{" in name)

    def _metrics(self) -> dict[str, float]:
        return read_metrics(f"{self.url}/metrics")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture(scope="module")
def undisturbed(fleet: Fleet) -> dict[str, Any]:
    return asyncio.run(ask_all(fleet))


async def ask_all(fleet: Fleet, harm: Callable[[], None] | None = None) -> dict[str, Any]:
    """Asks everything at once; `harm` is called when two streams are in the middle."""
    begun: set[str] = set()
    harmed = asyncio.Event()

    def note(name: str) -> None:
        begun.add(name)
        if len(begun) >= 2 and harm is not None and not harmed.is_set():
            harmed.set()
            harm()

    cases = make_cases()
    async with httpx.AsyncClient(
        base_url=fleet.url, trust_env=False, verify=False, timeout=120
    ) as http:
        answers = await asyncio.gather(
            generate(fleet.grpc_address), *(ask(http, case, note) for case in cases)
        )
    assert harm is None or harmed.is_set()
    return dict(zip(["grpc", *(case.name for case in cases)], answers, strict=True))


async def ask(http: httpx.AsyncClient, case: Case, note: Callable[[str], None]) -> Answer:
    answer = Answer()
    if not case.is_streamed:
        response = await http.post(case.path, json=case.body)
        assert response.status_code == 200, (case.name, response.text)
        body = response.json()
        answer.take(body)
        for part in body["choices"]:
            if "provenance" in case.name:
                text = "".join(one["text"] for one in part["provenance"])
                assert text == part["message"]["content"]
            if calls := (part.get("message") or {}).get("tool_calls"):
                answer.choices[part["index"]].text = json.dumps(
                    [call["function"] for call in calls]
                )
        return answer
    async with http.stream("POST", case.path, json=case.body) as response:
        assert response.status_code == 200, case.name
        num_chunks = 0
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, (case.name, chunk)
                num_chunks += answer.take(chunk)
                if num_chunks == 3:
                    note(case.name)
    return answer


async def generate(address: str) -> str:
    edit = unseen_edits(1, seed=12)[0]
    messages = [Message(one["role"], one["content"]) for one in edit.messages()]
    async with AsyncClient(address, timeout=120) as client:
        return (await client.generate(messages, temperature=0.0).result()).text


def check(got: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, answer in got.items():
        if name == "grpc":
            assert answer == expected[name]
        else:
            assert not (what := difference(answer, expected[name])), f"{name}: {what}"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
async def test_answers_are_the_same_though_a_scheduler_is_lost(
    fleet: Fleet, undisturbed: dict[str, Any], number: signal.Signals
) -> None:
    await fleet.make_whole()
    num_resumed = fleet.metric("resumed_requests_total")
    harmed: list[Service] = []

    def harm() -> None:
        harmed.append(fleet.schedulers[fleet.busiest()])
        harmed[0].signal(number)

    try:
        check(await ask_all(fleet, harm), undisturbed)
    finally:
        for scheduler in harmed:
            scheduler.signal(signal.SIGCONT)
    assert fleet.metric("resumed_requests_total") > num_resumed
    assert fleet.metric("requests_running") == 0
    if number is signal.SIGSTOP:
        # It is used again.
        await fleet.until_connected(2)
    else:
        harmed[0].wait()


async def test_schedulers_end_what_a_gateway_left(fleet: Fleet) -> None:
    await fleet.make_whole()
    admin = SchedulerAdmin(lambda: [Peer(one.address, "127.0.0.1") for one in fleet.schedulers])

    async def command(**fields: Any) -> list[scheduler_pb2.Stats]:
        replies = await admin.ask(scheduler_pb2.ConnectRequest(**fields), 10)
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
    async with httpx.AsyncClient(
        base_url=fleet.url, trust_env=False, verify=False, timeout=120
    ) as http:
        asked = asyncio.create_task(http.post(COMPLETIONS, json=body))
        await until_there_are(1)
        fleet.gateway.signal(signal.SIGSTOP)
        try:
            await until_there_are(0)
        finally:
            fleet.gateway.signal(signal.SIGCONT)
        # Its requests come back with it.
        await until_there_are(1)
        await command(resume=scheduler_pb2.Resume())
        assert (await asked).status_code == 200


async def test_priorities_of_requests_in_progress_are_changed(fleet: Fleet) -> None:
    await fleet.make_whole()
    admin = {"authorization": "Bearer admin-key"}
    body = {"model": "tiny-edit", "prompt": "def", "max_tokens": 3, "n": 3, "priority": 5}
    named = {"x-request-id": "team-a/7"}
    async with (
        httpx.AsyncClient(base_url=fleet.url, trust_env=False, verify=False, timeout=120) as http,
        AsyncClient(fleet.grpc_address, api_key="admin-key", timeout=120) as client,
    ):
        await http.post("/admin/pause", headers=admin)
        asked = asyncio.create_task(http.post(COMPLETIONS, json=body, headers=named))
        stream = client.generate("def", max_tokens=3, priority=-5)
        request_id = await stream.request_id()
        async with asyncio.timeout(60):
            while fleet.num_requests(0) + fleet.num_requests(1) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await client.set_priority(request_id, 1) == 1
        changed = await http.post("/admin/priority?request_id=team-a/7&priority=-1", headers=admin)
        assert changed.json() == {"request_id": "team-a/7", "priority": -1, "num_choices": 3}
        with Client(fleet.grpc_address, api_key="admin-key", timeout=120) as plain:
            assert await asyncio.to_thread(plain.set_priority, "team-a/7", 2) == 3
            with pytest.raises(OptimistError, match="NOT_FOUND"):
                await asyncio.to_thread(plain.set_priority, "team-a", 2)
        await http.post("/admin/resume", headers=admin)
        assert (await asked).status_code == 200
        assert (await stream.result()).request_id == request_id
        with pytest.raises(OptimistError, match="NOT_FOUND"):
            await client.set_priority(request_id, 1)


async def test_requests_wait_for_the_only_scheduler(
    fleet: Fleet, undisturbed: dict[str, Any]
) -> None:
    running = [index for index, one in enumerate(fleet.schedulers) if one.is_running]
    for index in running[1:]:
        fleet.schedulers[index].kill()
    await fleet.until_connected(1)
    restarts: list[asyncio.Task[None]] = []

    def harm() -> None:
        fleet.schedulers[running[0]].kill()
        restarts.append(asyncio.create_task(asyncio.to_thread(fleet.restart, running[0])))

    check(await ask_all(fleet, harm), undisturbed)
    await restarts[0]
    assert fleet.metric("requests_without_scheduler") == 0
