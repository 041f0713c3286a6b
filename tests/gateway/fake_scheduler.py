"""A scheduler over real gRPC that answers every request as a script says."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optimist.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from optimist_common.columns import floats_to_bytes, from_bytes, to_bytes
from optimist_common.drafts import DraftSource
from optimist_common.network.server import GrpcServer

EOS = 1
MAX_MODEL_LEN = 4096
Responses = asyncio.Queue[scheduler_pb2.ConnectResponse | None]


@dataclass(frozen=True)
class Step:
    """What the scheduler says in one step of a request."""

    token_ids: Sequence[int] = ()
    num_accepted_tokens: int = 0
    draft_source: DraftSource = DraftSource.PREDICTION
    """Where these came from."""
    positions: Sequence[int] | None = None
    """Where these stand in the predictions."""
    prompt_positions: Sequence[int] = ()
    """Where they stand in the prompt, counted from its end."""


@dataclass
class Script:
    """How every request goes: its steps, then its end."""

    steps: Sequence[Step] = ()
    reason: "scheduler_pb2.FinishReason.ValueType" = scheduler_pb2.FINISH_REASON_STOP
    message: str = ""
    rejected: int = 0
    num_drafted_tokens: int = 0
    hang: bool = False
    """Ends the request never, until it is aborted."""
    priority: int | None = None
    """Says, before anything else, that another stream changed the priority to this."""
    break_stream: bool = False
    """Ends the stream instead of the request."""
    forever: bool = False
    """Repeats the steps until the request is aborted."""
    pause_seconds: float = 0.0
    queue_us: int = 0
    retry_ms: int = 0
    raw: Callable[[int], scheduler_pb2.ConnectResponse] | None = None
    """Sends what this makes of the request's handle and nothing else."""


@dataclass
class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Runs the next of `scripts`, or `script` after them; records every command."""

    vocab_size: int = 0
    script: Script = field(default_factory=Script)
    scripts: list[Script] = field(default_factory=list)
    adds: list[scheduler_pb2.Add] = field(default_factory=list)
    aborts: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    pauses: list[bool] = field(default_factory=list)
    """Pauses, and False for their ends."""
    port: int = 0
    max_model_len: int = MAX_MODEL_LEN
    policy: "scheduler_pb2.SchedulingPolicy.ValueType" = scheduler_pb2.SCHEDULING_POLICY_UNSPECIFIED
    max_draft_tokens: int | None = None
    engine: str = ""
    unsupported_fields: Sequence[str] = ()
    unsupported_after_output: Sequence[str] = ()
    hold_after: int | None = None
    """After so many responses a request hangs here; None: not."""
    stats: scheduler_pb2.Stats = field(default_factory=scheduler_pb2.Stats)
    _playing: set[asyncio.Task[None]] = field(default_factory=set)

    def next_script(self, _add: scheduler_pb2.Add) -> Script:
        """Returns how a request that has come goes."""
        return self.scripts.pop(0) if self.scripts else self.script

    async def reset(self) -> None:
        """Waits until no request runs; forgets what came, and what was to be said."""
        while any(not task.done() for task in self._playing):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        for recorded in (self._playing, self.adds, self.scripts, self.pauses):
            recorded.clear()
        self.script, self.aborts = Script(), asyncio.Queue()

    async def Describe(self, request: Any, context: Any) -> scheduler_pb2.DescribeResponse:  # noqa: N802
        return scheduler_pb2.DescribeResponse(
            model="test",
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            kv_capacity_tokens=2 * self.max_model_len,
            eos_token_ids=to_bytes([EOS]),
            policy=self.policy,
            max_draft_tokens=self.max_draft_tokens,
            engine=self.engine,
            unsupported_fields=self.unsupported_fields,
            unsupported_after_output=self.unsupported_after_output,
        )

    async def Connect(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[scheduler_pb2.ConnectResponse]:
        responses: Responses = asyncio.Queue()
        running: dict[int, asyncio.Task[None]] = {}
        played: dict[int, Script] = {}

        def reply(**fields: Any) -> None:
            answer = scheduler_pb2.Reply(**fields)
            responses.put_nowait(scheduler_pb2.ConnectResponse(replies=[answer]))

        async def read() -> None:
            async for command in request_iterator:
                if command.HasField("add"):
                    self.adds.append(command.add)
                    handle = command.add.handle
                    played[handle] = self.next_script(command.add)
                    play = self._play(command.add, played[handle], responses)
                    running[handle] = asyncio.create_task(play)
                    self._playing.add(running[handle])
                elif command.HasField("get_stats"):
                    reply(stats=self.stats)
                elif command.HasField("pause") or command.HasField("resume"):
                    self.pauses.append(command.HasField("pause"))
                    reply()
                else:
                    handle = command.abort.handle
                    running[handle].cancel()
                    self.aborts.put_nowait(handle)
                    if command.abort.wants_finished:
                        responses.put_nowait(_aborted(handle, played[handle]))

        reader = asyncio.create_task(read())
        try:
            while (response := await responses.get()) is not None:
                yield response
        finally:
            tasks = [reader, *running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, add: scheduler_pb2.Add, script: Script, responses: Responses) -> None:
        if script.raw is not None:
            responses.put_nowait(script.raw(add.handle))
            return
        first = _prompt_logprobs(add)
        if script.priority is not None:
            change = scheduler_pb2.SetPriority(handle=add.handle, priority=script.priority)
            first.insert(0, scheduler_pb2.ConnectResponse(priorities=[change]))
        steps = [_response(add, step) for step in _remaining(add, script.steps)]
        if not (script.hang or script.break_stream or script.forever):
            by_source = _by_source(script.steps)
            finished = scheduler_pb2.Finished(
                handle=add.handle,
                reason=script.reason,
                message=script.message,
                accepted_prediction_tokens=by_source[DraftSource.PREDICTION],
                rejected_prediction_tokens=script.rejected,
                num_passes=len(steps),
                num_drafted_tokens=script.num_drafted_tokens,
                num_tokens_by_source=to_bytes(by_source),
                queue_us=script.queue_us,
                retry_ms=script.retry_ms,
            )
            steps = steps or [scheduler_pb2.ConnectResponse()]
            steps[-1].finished.append(finished)
        shown = [*first, *steps][: self.hold_after]
        is_held = len(shown) < len(first) + len(steps)
        for response in shown if is_held else first:
            responses.put_nowait(response)
        while not is_held:
            for step in steps:
                responses.put_nowait(step)
                await asyncio.sleep(script.pause_seconds)
            if not script.forever:
                break
        if script.break_stream and not is_held:
            responses.put_nowait(None)


def _remaining(add: scheduler_pb2.Add, steps: Sequence[Step]) -> list[Step]:
    """Returns the steps after the output that the gateway has."""
    num_known = len(tokens(add.output_token_ids))
    remaining: list[Step] = []
    for step in steps:
        skipped = min(num_known, len(step.token_ids))
        num_known -= skipped
        if skipped < len(step.token_ids) or not step.token_ids:
            rest, num_accepted = (
                step.token_ids[skipped:],
                max(step.num_accepted_tokens - skipped, 0),
            )
            remaining.append(replace(step, token_ids=rest, num_accepted_tokens=num_accepted))
    return remaining


def _aborted(handle: int, script: Script) -> scheduler_pb2.ConnectResponse:
    response = scheduler_pb2.ConnectResponse()
    aborted, rejected = scheduler_pb2.FINISH_REASON_ABORTED, script.rejected
    response.finished.add(handle=handle, reason=aborted, rejected_prediction_tokens=rejected)
    return response


def _by_source(steps: Sequence[Step]) -> list[int]:
    counts = [0] * len(DraftSource)
    for step in steps:
        counts[step.draft_source] += step.num_accepted_tokens
        counts[DraftSource.TARGET] += len(step.token_ids) - step.num_accepted_tokens
    return counts


def _response(add: scheduler_pb2.Add, step: Step) -> scheduler_pb2.ConnectResponse:
    num_accepted = step.num_accepted_tokens
    source = step.draft_source if num_accepted else DraftSource.TARGET
    response = step_of(add.handle, step.token_ids, num_accepted, source)
    if add.sampling.HasField("num_logprobs"):
        logprobs = _logprobs(add.handle, step.token_ids, add.sampling.num_logprobs)
        response.logprobs.append(logprobs)
    if add.wants_prediction_positions and step.positions is not None:
        places = response.prediction_positions.add(handle=add.handle)
        places.positions = to_bytes(list(step.positions))
        places.prompt_positions = to_bytes(list(step.prompt_positions))
    return response


def step_of(
    handle: int, token_ids: Sequence[int], num_accepted: int = 0, source: int = DraftSource.TARGET
) -> scheduler_pb2.ConnectResponse:
    """Says what one request got in a step."""
    return scheduler_pb2.ConnectResponse(
        handles=to_bytes([handle]),
        num_tokens=to_bytes([len(token_ids)]),
        token_ids=to_bytes(list(token_ids)),
        num_accepted_tokens=to_bytes([num_accepted]),
        draft_sources=to_bytes([source]),
    )


def logprob(token: int) -> float:
    """How likely every token is, wherever it stands; exact in float32."""
    return -token / 64


def candidates(token: int, width: int) -> list[int]:
    """The likeliest tokens at the position of a token; every other time it is one of them."""
    first = token - 1 if token % 2 else token + 2
    return list(range(first, first + width))


def _logprobs(handle: int, token_ids: Sequence[int], width: int) -> scheduler_pb2.Logprobs:
    likeliest = [one for token in token_ids for one in candidates(token, width)]
    return scheduler_pb2.Logprobs(
        handle=handle,
        num_candidates=width,
        logprobs=floats_to_bytes([logprob(token) for token in token_ids]),
        candidate_token_ids=to_bytes(likeliest),
        candidate_logprobs=floats_to_bytes([logprob(token) for token in likeliest]),
    )


def _prompt_logprobs(add: scheduler_pb2.Add) -> list[scheduler_pb2.ConnectResponse]:
    """Returns those of the prompt in parts of three tokens, as a prompt is read in parts."""
    if not add.sampling.HasField("num_prompt_logprobs") or add.output_token_ids:
        return []
    token_ids = tokens(add.prompt_token_ids)
    responses = []
    for start in range(1, len(token_ids), 3):
        part = token_ids[start : start + 3]
        message = _logprobs(add.handle, part, add.sampling.num_prompt_logprobs)
        message.first_prompt_position, message.num_prompt_tokens = start, len(part)
        message.num_prompt_candidates, message.num_candidates = message.num_candidates, 0
        responses.append(scheduler_pb2.ConnectResponse(logprobs=[message]))
    return responses


async def start_scheduler(
    scheduler: FakeScheduler, port: int = 0, host: str = "127.0.0.1"
) -> tuple[GrpcServer, int]:
    """Serves on the loopback; returns the server and its port."""
    server = GrpcServer(host, port)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server.server)
    bound = await server.start()
    await server.set_serving(serving=True)
    return server, bound


def tokens(column: bytes) -> list[int]:
    """Decodes a column of a recorded command."""
    return [int(token) for token in from_bytes(column)]
