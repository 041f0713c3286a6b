"""The streams of gateways; brings what was settled to them and to proposers."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.scheduler_service.stream import GatewayStream
from optimist_scheduler.core.base.values import (
    NO_OUTPUTS,
    Ended,
    Finished,
    ReportedLogprobs,
    ReportedPositions,
    StepOutputs,
)
from optimist_scheduler.observing.request_watch import RequestWatch
from optimist_scheduler.proposers.proposers import Proposers
from optimist_scheduler.workers.translate import (
    finished_message,
    finished_messages,
    outputs_message,
)

logger = logging.getLogger(__name__)

Part = TypeVar("Part", Ended, ReportedLogprobs, ReportedPositions)


class Delivery:
    """The gateways' streams, and outputs that were settled and not delivered yet.

    Outputs are held so that the next plan can be sent first.
    """

    def __init__(self, proposers: Proposers, watch: RequestWatch) -> None:
        self._proposers, self._watch = proposers, watch
        self._streams: dict[int, GatewayStream] = {}
        self._owners = itertools.count(1)
        self._held: list[StepOutputs] = []
        self.on_slow: Callable[[GatewayStream], None] = self.remove
        """Called with a stream that does not read what it is sent."""

    def open(self) -> GatewayStream:
        """Returns a stream with a number of its own."""
        stream = GatewayStream(next(self._owners))
        self._streams[stream.owner] = stream
        return stream

    @property
    def streams(self) -> list[GatewayStream]:
        """The streams of all gateways."""
        return list(self._streams.values())

    def remove(self, stream: GatewayStream) -> None:
        """Forgets a stream."""
        self._streams.pop(stream.owner, None)

    def break_off(self, reason: str) -> None:
        """Ends all streams after what they were sent: what gateways know holds no longer."""
        for stream in self._streams.values():
            stream.break_off(reason)

    def hold(self, outputs: StepOutputs) -> None:
        """Takes the outputs of one step, for the next `flush`."""
        self._held.append(outputs)

    def flush(self) -> None:
        """Sends all outputs that are held: each stream gets one response per step."""
        held, self._held = self._held, []
        for outputs in held:
            self._observe(outputs)
            try:
                self._watch.deliver(outputs)
                queue_us = self.note(outputs.ended)
                for owner, part in split_by_owner(outputs):
                    if (stream := self._streams.get(owner)) is not None:
                        self.send(stream, outputs_message(part, queue_us))
            except Exception:
                # Of whoever it was, tokens may be lost: gateways ask again with what they have.
                logger.exception("outputs cannot be delivered")
                self.break_off("outputs cannot be delivered")

    def _observe(self, outputs: StepOutputs) -> None:
        """Sends proposers what is new; an error costs these requests their drafts."""
        try:
            self._proposers.observe(outputs.observed)
        except Exception:
            logger.exception("no drafts from proposers any more: %s", outputs.observed_request_ids)
            for request_id in outputs.observed_request_ids:
                self._proposers.close(request_id)

    def end(self, ended: Sequence[Ended]) -> None:
        """Sends the ends of requests that no step has ended."""
        queue_us = self.note(ended)
        for owner, ends in _group_by_owner(ended).items():
            if (stream := self._streams.get(owner)) is not None:
                messages = finished_messages(ends, queue_us)
                self.send(stream, scheduler_pb2.ConnectResponse(finished=messages))

    def note(self, ended: Iterable[Ended]) -> dict[str, int]:
        """Takes note of ends without sending them; returns their `queue_us` by request id."""
        queue_us: dict[str, int] = {}
        for end in ended:
            queue_us[end.request_id] = self._watch.end(end)
            self._proposers.close(end.request_id)
            if (stream := self._streams.get(end.owner)) is not None:
                stream.remove(end.handle)
        return queue_us

    def reject(self, stream: GatewayStream, handle: int, finished: Finished) -> None:
        """Sends the end of a request that was not added."""
        message = finished_message(handle, finished)
        self.send(stream, scheduler_pb2.ConnectResponse(finished=[message]))

    def reply(self, stream: GatewayStream, reply: scheduler_pb2.Reply) -> None:
        """Answers a command."""
        self.send(stream, scheduler_pb2.ConnectResponse(replies=[reply]))

    def send(self, stream: GatewayStream, response: scheduler_pb2.ConnectResponse) -> None:
        """Sends a response to a stream, which is given up if too many wait already."""
        if not stream.send(response):
            self.on_slow(stream)


def split_by_owner(outputs: StepOutputs) -> Iterator[tuple[int, StepOutputs]]:
    """Splits tokens and ends of a step by owner; those of a single owner stay as they are."""
    if (only := _find_only_owner(outputs)) is not None:
        yield only, outputs
        return
    ended = _group_by_owner(outputs.ended)
    logprobs = _group_by_owner(outputs.logprobs)
    positions = _group_by_owner(outputs.positions)
    others = ended.keys() | logprobs.keys() | positions.keys()
    for owner in {*np.unique(outputs.owners).tolist(), *others}:
        rows = outputs.owners == owner
        yield (
            owner,
            replace(
                outputs,
                owners=outputs.owners[rows],
                handles=outputs.handles[rows],
                num_tokens=outputs.num_tokens[rows],
                token_ids=outputs.token_ids[np.repeat(rows, outputs.num_tokens)],
                num_accepted_tokens=outputs.num_accepted_tokens[rows],
                draft_sources=outputs.draft_sources[rows],
                num_form_tokens=outputs.num_form_tokens[rows],
                observed_rows=NO_OUTPUTS.observed_rows,
                observed_request_ids=[],
                earlier_token_ids={},
                ended=ended.get(owner, []),
                logprobs=logprobs.get(owner, ()),
                positions=positions.get(owner, ()),
            ),
        )


def _find_only_owner(outputs: StepOutputs) -> int | None:
    """Returns who gets all of a step, if that is one owner and gets tokens."""
    if len(outputs.owners) == 0:
        return None
    first = int(outputs.owners[0])
    if np.count_nonzero(outputs.owners != first):
        return None
    parts = (outputs.ended, outputs.logprobs, outputs.positions)
    return first if all(part.owner == first for each in parts for part in each) else None


def _group_by_owner(parts: Sequence[Part]) -> dict[int, list[Part]]:
    groups: dict[int, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.owner, []).append(part)
    return groups
