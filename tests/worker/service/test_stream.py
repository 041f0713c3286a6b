import asyncio
from collections.abc import AsyncIterator

import pytest

from optimist.worker.v1 import worker_pb2
from optimist_worker.service.plan_stream import MOST_PLANS, PlanStream


class Sender:
    """Sends plans as fast as they are read, and counts them."""

    def __init__(self, number: int, *, ends: bool = True) -> None:
        self.num_read, self._number, self._ends = 0, number, ends

    async def requests(self) -> AsyncIterator[worker_pb2.ExecuteRequest]:
        for sequence in range(self._number):
            self.num_read += 1
            yield worker_pb2.ExecuteRequest(sequence=sequence)
        if not self._ends:
            await asyncio.Event().wait()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def answer(sequence: int, repeat: int = 0) -> worker_pb2.ExecuteResponse:
    return worker_pb2.ExecuteResponse(sequence=sequence, repeat=repeat)


def take(stream: PlanStream) -> int:
    request = stream.take()
    assert isinstance(request, worker_pb2.ExecuteRequest)
    return request.sequence


async def test_few_plans_are_read_ahead_of_their_answers() -> None:
    sender = Sender(100)
    stream = PlanStream(sender.requests())
    await settle()
    assert sender.num_read == MOST_PLANS
    assert [take(stream) for _ in range(MOST_PLANS)] == list(range(MOST_PLANS))
    stream.sent(answer(0, repeat=1))
    await settle()
    assert sender.num_read == MOST_PLANS
    stream.sent(answer(0))
    await settle()
    assert sender.num_read == MOST_PLANS + 1
    stream.close()


async def test_a_closed_stream_gives_no_waiting_plan() -> None:
    stream = PlanStream(Sender(3).requests())
    await settle()
    stream.replace()
    assert stream.replaced
    assert stream.take() is None


async def test_a_step_counts_as_long_as_it_has_no_answer() -> None:
    stream = PlanStream(Sender(3, ends=False).requests())
    await settle()
    assert stream.seconds_at_work() == 0.0
    assert take(stream) == 0
    await asyncio.sleep(0.001)
    assert stream.seconds_at_work() > 0.0
    stream.close()
    # A device has the first plan and is to be given the second one after it.
    assert stream.take() is None
    await asyncio.sleep(0.001)
    assert stream.seconds_at_work() > 0.0
    stream.finish()
    assert stream.seconds_at_work() == 0.0


async def test_a_failure_to_read_is_not_lost() -> None:
    async def broken() -> AsyncIterator[worker_pb2.ExecuteRequest]:
        yield worker_pb2.ExecuteRequest(sequence=7)
        raise ConnectionError("gone")

    stream = PlanStream(broken())
    await settle()
    assert take(stream) == 7
    assert stream.take() is None
    with pytest.raises(ConnectionError, match="gone"):
        stream.raise_read_error()
