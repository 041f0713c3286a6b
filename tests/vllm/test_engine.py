"""The engine over real gRPC; vLLM is what the tests make it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from optimist.common.v1 import sampling_pb2
from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import floats_from_bytes, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.network.channel import open_channel
from optimist_common.network.server import GrpcServer
from optimist_common.observing.metrics import DraftMetrics
from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_common.scheduler_service.servicer import SchedulerServicer
from optimist_vllm.accounts import DRAFT_SECONDS
from optimist_vllm.core.payload import PAYLOAD, Report
from optimist_vllm.engine.engine import Description, Engine
from optimist_vllm.engine.request import NewRequest
from tests.scheduler.client import Client, abort, add, get_stats, pause, resume, until

VOCAB_SIZE = 50
PROMPT = [3, 1, 4]
DESCRIPTION = Description(
    engine="vLLM 0",
    model="model",
    vocab_size=VOCAB_SIZE,
    max_model_len=64,
    kv_capacity_tokens=1024,
    num_blocks=64,
    eos_token_ids=[2],
    num_engines=1,
    has_priorities=False,
    max_draft_tokens=16,
    draft_source=DraftSource.PREDICTION,
)


class FakeLlm:
    """Notes what it is sent."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.sent: list[Any] = []
        self.may_pause = asyncio.Event()
        self.may_pause.set()

    def make(self, request: NewRequest) -> NewRequest:
        if len(request.token_ids) >= self.description.max_model_len:
            raise ValueError("The prompt is too long")
        return request

    async def add(self, request: NewRequest) -> None:
        self.sent.append(request)

    async def abort(self, request_ids: list[str]) -> None:
        self.sent.append(("abort", request_ids))

    async def pause(self, mode: PauseMode) -> None:
        self.sent.append(mode)
        await self.may_pause.wait()

    async def resume(self) -> None:
        self.sent.append("resume")


class Served:
    """An engine with a client of it."""

    def __init__(self, llm: FakeLlm, engine: Engine, stub: Any) -> None:
        self.llm, self.engine, self.stub = llm, engine, stub
        self.client = Client(stub)

    async def add(self, handle: int = 1, **values: Any) -> NewRequest:
        """Adds a request; returns it as vLLM gets it."""
        reply = await self.client.reply(add(handle, PROMPT, **values))
        assert reply.error == ""
        await until(lambda: bool(self.llm.sent) and isinstance(self.llm.sent[-1], NewRequest))
        request: NewRequest = self.llm.sent[-1]
        return request

    async def refused(self, **values: Any) -> str:
        """Adds a request that is refused; returns why."""
        handle = 100 + len(self.client.finished)
        reply = await self.client.reply(add(handle, PROMPT, **values))
        await self.client.read_until(lambda: handle in self.client.finished)
        assert self.client.finished[handle].reason == scheduler_pb2.FINISH_REASON_REFUSED
        assert self.client.finished[handle].message == reply.error
        return reply.error

    async def responses(self) -> Any:
        return await asyncio.wait_for(self.client._call.read(), 20)


@asynccontextmanager
async def serve(
    max_num_requests: int = 8, drafts: DraftMetrics | None = None, **changes: Any
) -> AsyncIterator[Served]:
    llm = FakeLlm(replace(DESCRIPTION, **changes))
    engine = Engine(llm, max_num_requests, drafts)
    server = GrpcServer("127.0.0.1", 0)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
        SchedulerServicer(engine), server.server
    )
    port = await server.start()
    running = asyncio.create_task(engine.run())
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield Served(llm, engine, scheduler_pb2_grpc.SchedulerServiceStub(channel))
    finally:
        assert not running.done(), running.result()
        running.cancel()
        await server.end_calls(0)


def output(
    request_id: str = "r1",
    token_ids: Sequence[int] = (),
    *,
    report: Sequence[Any] | None = None,
    reason: str | None = None,
    **fields: Any,
) -> Any:
    """Returns what a pass of vLLM brings a request."""
    values: dict[str, Any] = {
        "events": None,
        "prefill_stats": None,
        "new_logprobs": None,
        "new_prompt_logprobs_tensors": None,
    }
    return SimpleNamespace(
        request_id=request_id,
        new_token_ids=list(token_ids),
        kv_transfer_params=None if report is None else {PAYLOAD: list(report)},
        finish_reason=None if reason is None else SimpleNamespace(name=reason),
        **(values | fields),
    )


def event(name: str, timestamp: float) -> Any:
    return SimpleNamespace(type=SimpleNamespace(name=name), timestamp=timestamp)


async def test_a_request_reaches_vllm_and_its_passes_come_back_with_their_account() -> None:
    async with serve() as served:
        new = await served.add(
            predicted=[7, 8, 9, 10],
            num_predicted_tokens=to_bytes([3, 1]),
            max_draft_tokens=5,
            wants_prediction_positions=True,
            stop_token_ids=to_bytes([2, 2]),
            cache_salt="salt",
        )
        assert (new.request_id, new.token_ids, new.max_tokens) == ("r1", PROMPT, 20)
        assert (new.stop_token_ids, new.cache_salt) == ([2], "salt")
        predictions = [from_bytes(each).tolist() for each in new.payload.predictions]
        assert (predictions, new.payload.max_drafts) == ([[7, 8, 9], [10]], 5)
        events = [event("QUEUED", 1.0), event("SCHEDULED", 1.5), event("SCHEDULED", 9.0)]
        cached = SimpleNamespace(num_cached_tokens=2)
        first = output(token_ids=[6], report=Report(None, 0, 0, [], 0, 5))
        first.events, first.prefill_stats = events, cached
        served.engine.take_outputs([first, output("unknown", [1])])
        # Two predicted, one from the prompt's last token but one, and the model's own.
        positions = [0, 1, -3]
        second = output(token_ids=[7, 8, 1, 2], report=Report(None, 2, 1, positions, 6, 5))
        second.finish_reason = SimpleNamespace(name="STOP")
        served.engine.take_outputs([second])
        step = await served.responses()
        assert from_bytes(step.token_ids).tolist() == [6]
        assert from_bytes(step.draft_sources).tolist() == [DraftSource.TARGET]
        step = await served.responses()
        assert from_bytes(step.num_accepted_tokens).tolist() == [3]
        assert from_bytes(step.draft_sources).tolist() == [DraftSource.PREDICTION]
        (where,) = step.prediction_positions
        assert from_bytes(where.positions).tolist() == [0, 1, -1]
        assert from_bytes(where.prompt_positions).tolist() == [0, 0, 2]
        (finished,) = step.finished
        assert finished.reason == scheduler_pb2.FINISH_REASON_STOP
        assert (finished.accepted_prediction_tokens, finished.rejected_prediction_tokens) == (2, 1)
        assert (finished.num_passes, finished.num_drafted_tokens) == (2, 6)
        assert from_bytes(finished.num_tokens_by_source).tolist() == [2, 3]
        assert (finished.queue_us, finished.num_cached_tokens) == (500_000, 2)
        # The name is free again.
        await served.add(2, request_id="r1")


async def test_drafts_of_vllms_own_drafters_have_their_source() -> None:
    async with serve(draft_source=DraftSource.EAGLE) as served:
        await served.add(wants_prediction_positions=True)
        served.engine.take_outputs([output(token_ids=[5, 6, 7], reason="LENGTH")])
        step = await served.responses()
        assert from_bytes(step.draft_sources).tolist() == [DraftSource.EAGLE]
        assert from_bytes(step.prediction_positions[0].positions).tolist() == [-1, -1]
        by_source = from_bytes(step.finished[0].num_tokens_by_source).tolist()
        assert (by_source[DraftSource.TARGET], by_source[DraftSource.EAGLE]) == (1, 2)
        assert step.finished[0].reason == scheduler_pb2.FINISH_REASON_LENGTH


async def test_a_request_goes_on_after_its_output() -> None:
    async with serve() as served:
        sampling = sampling_pb2.SamplingParams(num_prompt_logprobs=1)
        new = await served.add(
            output_token_ids=to_bytes([9, 8]), min_tokens=5, max_tokens=6, sampling=sampling
        )
        assert new.token_ids == [*PROMPT, 9, 8]
        assert (new.min_tokens, new.max_tokens, new.payload.num_delivered) == (3, 4, 2)
        penalized = sampling_pb2.SamplingParams(presence_penalty=0.5)
        error = await served.refused(output_token_ids=to_bytes([9]), sampling=penalized)
        assert "presence_penalty" in error
        description = await served.stub.Describe(scheduler_pb2.DescribeRequest())
        assert "sampling.presence_penalty" in description.unsupported_after_output
        # Only a seed that the client chose is used.
        assert (await served.add(2, sampling=sampling_pb2.SamplingParams(seed=7))).seed is None
        chosen = sampling_pb2.SamplingParams(seed=7, has_client_seed=True)
        assert (await served.add(3, sampling=chosen)).seed == 7


async def test_log_probabilities() -> None:
    async with serve() as served:
        sampling = sampling_pb2.SamplingParams(num_logprobs=1, num_prompt_logprobs=0)
        await served.add(sampling=sampling)
        # Another request of the batch wants two.
        ids, values = np.array([[5, 6, 7], [8, 9, 1]]), np.array([[-1.0, -2, -3], [-4, -5, -6]])
        prompt = SimpleNamespace(
            logprob_token_ids=np.array([[1, 5], [4, 6]]), logprobs=np.array([[-7.0, -8], [-9, -10]])
        )
        step = output(token_ids=[5, 8], report=Report(None, 0, 0, [-1], 1, 0), reason="STOP")
        step.new_logprobs = SimpleNamespace(logprob_token_ids=ids, logprobs=values)
        step.new_prompt_logprobs_tensors = prompt
        served.engine.take_outputs([step])
        (message,) = (await served.responses()).logprobs
        assert (message.first_prompt_position, message.num_prompt_tokens) == (1, 2)
        assert floats_from_bytes(message.logprobs).tolist() == [-7, -9, -1, -4]
        assert (message.num_prompt_candidates, message.num_candidates) == (0, 1)
        assert from_bytes(message.candidate_token_ids).tolist() == [6, 9]
        assert floats_from_bytes(message.candidate_logprobs).tolist() == [-2, -5]


BIAS = sampling_pb2.SamplingParams(
    logit_bias_token_ids=to_bytes([1]), logit_bias_values=b"\0\0\0\1"
)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens: must be at least 1"),
    ({"min_tokens": -1}, "min_tokens:"),
    ({"max_draft_tokens": -1}, "max_draft_tokens:"),
    ({"predicted": [VOCAB_SIZE] * 2, "num_predicted_tokens": to_bytes([3])}, "num_predicted"),
    ({"num_predicted_tokens": b"123"}, "num_predicted_tokens: 3 bytes are no int32 column"),
    ({"stop_token_ids": to_bytes([VOCAB_SIZE])}, "stop_token_ids: must be tokens of this"),
    ({"output_token_ids": to_bytes([-1])}, "output_token_ids: must be tokens of this"),
    ({"request_id": ""}, "request_id: must have 1 to"),
    ({"cache_salt": "s" * 300}, "cache_salt:"),
    ({"trace_parent": "s" * 300}, "trace_parent:"),
    ({"names": ["a"] * 5}, "names: must be at most 4"),
    ({"priority": 1}, "priority: has no effect"),
    ({"sampling": sampling_pb2.SamplingParams(top_p=2)}, "sampling.top_p must be in"),
    ({"sampling": sampling_pb2.SamplingParams(min_p=0.5)}, "sampling.min_p: is not supported"),
    ({"sampling": BIAS}, "sampling.logit_bias: is not supported"),
    ({"output_token_ids": to_bytes([1] * 80), "max_tokens": 99}, "The prompt is too long"),
]


async def test_what_cannot_run_is_refused_by_its_field() -> None:
    async with serve() as served:
        for values, begin in REFUSED:
            assert (await served.refused(**values)).startswith(begin)
        # Nothing else is lost.
        await served.add()
        assert len(served.llm.sent) == 1


async def test_without_drafts_vllm_takes_what_it_refuses_with_them() -> None:
    async with serve(max_draft_tokens=0, has_priorities=True) as served:
        new = await served.add(sampling=sampling_pb2.SamplingParams(min_p=0.5), priority=-3)
        assert (new.sampling.min_p, new.priority) == (0.5, -3)
        description = await served.stub.Describe(scheduler_pb2.DescribeRequest())
        assert not description.unsupported_fields
        assert description.policy == scheduler_pb2.SCHEDULING_POLICY_PRIORITY
        assert (description.engine, description.max_draft_tokens) == ("vLLM 0", 0)


async def test_more_requests_than_may_wait_are_refused_as_too_many() -> None:
    async with serve(max_num_requests=1) as served:
        await served.add()
        reply = await served.client.reply(add(2, PROMPT))
        assert "try again later" in reply.error
        await served.client.read_until(lambda: 2 in served.client.finished)
        assert served.client.finished[2].reason == scheduler_pb2.FINISH_REASON_OVERLOADED
        reply = await served.client.reply(add(3, PROMPT, request_id="r1"))
        assert reply.error == "request_id: r1 is in use"
        again = add(1, PROMPT)
        again.command_id = 4
        assert (await served.client.reply(again)).error == "add.handle: 1 is in use"


async def test_drafts_are_counted_as_schedulers_count_them() -> None:
    drafts, seconds = DraftMetrics("test_engine"), DRAFT_SECONDS._value.get()
    async with serve(drafts=drafts) as served:
        await served.add(1)
        await served.add(2)
        for reports in (
            [Report(None, 0, 0, [], 0, 10**9), Report(None, 0, 0, [], 0, 0)],
            [Report(None, 2, 0, [0, 1], 3, 10**9), Report(None, 0, 0, [], 0, 0)],
            [Report(None, 2, 0, [], 7, 10**9), Report(None, 1, 0, [0], 1, 0)],
        ):
            served.engine.take_outputs(
                output(name, [5] * (len(report.positions) + 1), report=report)
                for name, report in zip(("r1", "r2"), reports, strict=True)
            )
    totals = drafts.totals
    assert (totals.num_rows, totals.num_drafted, totals.num_accepted) == (3, 8, 3)
    assert totals.num_accepted_at[:3] == [2, 1, 0]
    assert DRAFT_SECONDS._value.get() - seconds == 3


async def test_aborts_reach_vllm_and_may_ask_for_the_account() -> None:
    async with serve() as served:
        await served.add(1)
        await served.add(2)
        served.engine.take_outputs([output("r1", [5], report=Report(None, 0, 0, [], 0, 0))])
        await served.client.reply(abort(1, wants_finished=True))
        assert served.client.finished[1].reason == scheduler_pb2.FINISH_REASON_ABORTED
        assert served.client.finished[1].num_passes == 1
        await served.client.reply(abort(2))
        assert 2 not in served.client.finished
        await until(lambda: served.llm.sent[-2:] == [("abort", ["r1"]), ("abort", ["r2"])])
        # What vLLM had computed meanwhile goes nowhere.
        served.engine.take_outputs([output("r1", [5]), output("r2", [5])])
        assert (await served.client.reply(get_stats())).stats.num_running == 0
        assert served.client.tokens == {1: [5]}


async def test_requests_of_a_stream_that_ends_are_aborted() -> None:
    async with serve() as served:
        await served.add(1)
        other = Client(served.stub)
        await other.reply(add(1, PROMPT, request_id="other"))
        served.client.close()
        await until(lambda: served.llm.sent[-1] == ("abort", ["r1"]))
        served.engine.take_outputs([output("other", [5], reason="ERROR")])
        await other.until_finished(1)
        assert other.finished[1].reason == scheduler_pb2.FINISH_REASON_ERROR
        assert other.finished[1].message == "vLLM ended the request with an error"


async def test_a_pause_is_answered_once_nothing_runs() -> None:
    async with serve() as served:
        client = served.client
        await served.add()
        served.llm.may_pause.clear()
        await client.send(pause(scheduler_pb2.PAUSE_MODE_WAIT, 500))
        await until(lambda: served.llm.sent[-1] is PauseMode.WAIT)
        assert 500 not in client.replies
        assert served.engine.seconds_at_work() < 1
        served.llm.may_pause.set()
        await client.read_until(lambda: 500 in client.replies)
        assert client.replies[500].error == ""
        assert (await client.reply(get_stats())).stats.is_paused
        assert (await client.reply(resume(600))).error == ""
        await until(lambda: served.llm.sent[-1] == "resume")
        # A resume ends a pause that is not answered yet.
        served.llm.may_pause.clear()
        await client.send(pause(scheduler_pb2.PAUSE_MODE_KEEP, 501))
        await until(lambda: served.llm.sent[-1] is PauseMode.KEEP)
        await client.reply(resume(601))
        assert client.replies[501].error.startswith("pause: was ended by a resume")
        assert not (await client.reply(get_stats(3001))).stats.is_paused
        assert "must be KEEP" in (await client.reply(pause(0, 502))).error


async def test_the_pause_of_a_stream_that_ends_is_taken_back() -> None:
    async with serve() as served:
        served.llm.may_pause.clear()
        other = Client(served.stub)
        await other.send(pause(scheduler_pb2.PAUSE_MODE_KEEP))
        await until(lambda: served.llm.sent[-1:] == [PauseMode.KEEP])
        other.close()
        await until(lambda: served.llm.sent[-1] == "resume")
        assert not (await served.client.reply(get_stats())).stats.is_paused


async def test_vllms_figures_are_added_up() -> None:
    drafts = SimpleNamespace(
        num_drafts=1, num_draft_tokens=4, num_accepted_tokens=3, num_accepted_tokens_per_pos=[1, 2]
    )
    stats = SimpleNamespace(
        num_running_reqs=1,
        kv_cache_usage=0.25,
        prefix_cache_stats=SimpleNamespace(queries=10, hits=4),
        spec_decoding_stats=drafts,
    )
    async with serve(num_engines=2) as served:
        await served.add(1)
        await served.add(2)
        for engine in (0, 0, 1):
            served.engine.take_stats(engine, stats)
        served.engine.take_stats(0, None)
        served.engine.take_outputs([output("r1", [5], events=[event("PREEMPTED", 1.0)])])
        figures = (await served.client.reply(get_stats())).stats
        assert (figures.num_running, figures.num_waiting) == (2, 0)
        assert (figures.num_blocks, figures.num_free_blocks) == (128, 128 - 32)
        assert (figures.num_plans, figures.num_prefix_queries, figures.num_prefix_hits) == (
            *(3, 30),
            12,
        )
        assert figures.num_preemptions == 1
        assert (figures.num_drafts, figures.num_drafted_tokens) == (3, 12)
        assert list(figures.num_accepted_at_positions) == [3, 6]
        assert figures.num_workers == 2


async def test_vllm_hangs_if_it_has_requests_and_no_pass_ends() -> None:
    async with serve() as served:
        assert served.engine.seconds_at_work() < 0.05
        await served.add()
        await asyncio.sleep(0.1)
        assert served.engine.seconds_at_work() >= 0.1
        served.engine.take_stats(0, None)
        assert served.engine.seconds_at_work() < 0.1
