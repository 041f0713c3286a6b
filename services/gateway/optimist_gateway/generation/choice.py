"""One of the answers to a request, as it arrives from the scheduler."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from optimist_gateway.core.answer.answer import Answer, Echo, Piece
from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.core.error import ApiError
from optimist_gateway.observing.request_record import FAILED, ChoiceTimes
from optimist_gateway.schedulers.requests import ScheduledRequest

_STATUS = {
    FinishReason.REFUSED: 400,
    FinishReason.OVERLOADED: 429,
    FinishReason.ERROR: 500,
    # Whoever paused the scheduler let nothing finish.
    FinishReason.ABORTED: 503,
}

TakePiece = Callable[[int, Piece], None]
"""Is called with the index of a choice and what a step adds to it; the last piece has a reason."""
End = Callable[[Exception | None], None]
"""Is called when a choice is complete, or with why it will not be."""


def _nobody(*_: object) -> None:
    """Takes what nobody wants to know."""


@dataclass(slots=True, eq=False)
class Choice:
    """A request of its own at the scheduler, which runs; `start` it once, then `close`."""

    stream: ScheduledRequest
    """Its outputs."""
    answer: Answer
    """What becomes of them."""
    times: ChoiceTimes
    index: int
    """Which of the client's request's choices it is."""
    name: str
    """What errors call it; empty if the client's request has but one choice."""
    echo: Echo | None
    """The prompt, if the answer begins with it and it is still to come."""
    is_prompt_only: bool
    """Whether the answer ends there: its one token is not reported."""
    _echoing: asyncio.Task[None] | None = field(init=False, default=None)
    """Reports the prompt, while outputs wait."""
    _is_paused: bool = field(init=False, default=False)
    _report: TakePiece = field(init=False, default=_nobody)
    _end: End = field(init=False, default=_nobody)

    def start(self, report: TakePiece, end: End) -> None:
        """Begins to report pieces as their steps arrive, up to the one with a finish reason.

        `end` is called once; with ApiError if the request failed at the scheduler, else with what
        `ScheduledRequest` says.
        """
        self._report, self._end = report, end
        self.stream.read(self._take)

    def pause(self) -> None:
        """Lets outputs wait, in bounds."""
        self._is_paused = True
        self.stream.pause()

    def resume(self) -> None:
        """Goes on."""
        self._is_paused = False
        if self._echoing is None:
            self.stream.resume()

    def close(self) -> None:
        """Ends the request at the scheduler if it still runs; nothing is reported any more."""
        self._report = self._end = _nobody
        if self._echoing is not None:
            self._echoing.cancel()
        self.stream.close()
        self.times.end(self.answer.num_tokens)

    def _take(self, output: StepOutput | Exception) -> None:
        """Takes a step; whatever goes wrong with it ends this request and no other."""
        if isinstance(output, Exception):
            self._fail(output)
            return
        try:
            if output.finished is not None:
                self._note_end(output.finished)
            if output.token_ids:
                self.times.note_tokens(len(output.token_ids), output.received)
            if self.echo is not None:
                self._add_echo(self.echo, output)
            else:
                self._add(output)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Ends the choice without the rest of its answer."""
        self.times.reason = FAILED
        self.stream.close()
        self._end(error)

    def _note_end(self, finished: Finished) -> None:
        """Takes note of what the scheduler says at the end; raises ApiError for a failure."""
        self.times.note_account(finished)
        if finished.reason.is_failure:
            self.times.reason = FAILED
            raise _failure(finished, self.name)

    def _add_echo(self, echo: Echo, output: StepOutput) -> None:
        """Reports the prompt once everything is there that is to be reported of it."""
        try:
            echo.add(output.logprobs)
        except ValueError as error:
            raise self._not_understood(error) from None
        if not echo.is_complete:
            if output.token_ids or output.finished is not None:
                raise self._not_understood("the prompt came without log-probabilities")
            return
        self.echo = None
        self.stream.pause()
        self._echoing = asyncio.create_task(self._report_echo(echo, output))

    async def _report_echo(self, echo: Echo, output: StepOutput) -> None:
        """Reports the prompt, for all of which others are not to wait, and then goes on."""
        try:
            for piece in await asyncio.to_thread(echo.pieces):
                self._report(self.index, piece)
                await asyncio.sleep(0)
            self._echoing = None
            self._add(output)
        except Exception as error:
            self._fail(error)
        if not self._is_paused:
            self.stream.resume()

    def _add(self, output: StepOutput) -> None:
        if not output.token_ids and output.finished is None:
            return
        if self.is_prompt_only:
            self.answer.settle(output.finished)
            self._report_last(Piece("", [], 0, 0, FinishReason.LENGTH))
            return
        try:
            piece = self.answer.push(output)
        except ValueError as error:
            raise self._not_understood(error) from None
        reason = piece.finish_reason
        if reason is None:
            self._report(self.index, piece)
        elif reason is FinishReason.STOP_STRING:
            self.stream.finish().add_done_callback(partial(self._report_stop, piece))
        else:
            self._report_last(piece)

    def _report_stop(self, piece: Piece, account: asyncio.Future[Finished | None]) -> None:
        """Reports the last piece with the account of a request that the gateway ended."""
        finished = account.result()
        self.answer.settle(finished)
        self.times.note_account(finished)
        try:
            self._report_last(piece)
        except Exception as error:
            self._fail(error)

    def _report_last(self, piece: Piece) -> None:
        if piece.finish_reason is not None:
            self.times.reason = piece.finish_reason.value
        self._report(self.index, piece)
        self._end(None)

    def _not_understood(self, error: object) -> ApiError:
        self.times.reason = FAILED
        return ApiError(500, f"the scheduler sent what is not understood: {error}", code="internal")


def _failure(finished: Finished, what: str) -> ApiError:
    """Returns the error for what the scheduler ended without a complete answer."""
    message = finished.message or f"the scheduler ended the request: {finished.reason.value}"
    return ApiError(
        _STATUS[finished.reason],
        f"{what}: {message}" if what else message,
        code=finished.reason.value,
        retry_seconds=finished.retry_seconds,
    )
