"""One answer to a request, as it arrives from the scheduler."""

import asyncio
from collections.abc import Callable
from functools import partial

from optimist_gateway.core.answer.answer import Answer, Piece
from optimist_gateway.core.answer.echo import Echo
from optimist_gateway.core.answer.output import Finished, FinishReason, StepOutput
from optimist_gateway.core.answer.usage import Speculation, Usage
from optimist_gateway.core.error import ApiError
from optimist_gateway.observing.choice_times import FAILED, ChoiceTimes
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.schedulers.request_stream import RequestStream

# Telling of a longer prompt takes milliseconds, in which others would wait; a thread does it.
_INLINE_PROMPT_TOKENS = 256

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


class Choice:
    """A request of its own at the scheduler; `start` it once, then `close`."""

    __slots__ = (
        "_answer",
        "_echo",
        "_end",
        "_index",
        "_is_paused",
        "_is_prompt_only",
        "_name",
        "_stream",
        "_tell",
        "_telling",
        "_times",
    )

    def __init__(
        self,
        stream: RequestStream,
        answer: Answer,
        metrics: GatewayMetrics,
        started: float,
        index: int = 0,
        name: str = "",
        echo: Echo | None = None,
        *,
        is_prompt_only: bool = False,
    ) -> None:
        """Takes the running request.

        Args:
            stream: Its outputs.
            answer: What becomes of them.
            metrics: Where its times are counted.
            started: When the client's request was parsed, by `time.perf_counter`.
            index: Which of the client's request's choices it is.
            name: What errors call it; empty if the client's request has but one choice.
            echo: The prompt, if the answer begins with it.
            is_prompt_only: Whether the answer ends there: its one token is not told.
        """
        self._stream = stream
        self._answer = answer
        self._times = ChoiceTimes(metrics, started)
        self._index = index
        self._name = name
        self._echo = echo
        self._is_prompt_only = is_prompt_only
        self._telling: asyncio.Task[Piece] | None = None
        """Words a long prompt, while outputs wait."""
        self._is_paused = False
        self._tell: TakePiece = _nobody
        self._end: End = _nobody

    def start(self, tell: TakePiece, end: End) -> None:
        """Begins to tell pieces, up to the one with a finish reason.

        Args:
            tell: Called with each piece, in the moment in which its step arrives.
            end: Called once; with ApiError if the request failed at the scheduler, else with what
                `RequestStream` says.
        """
        self._tell, self._end = tell, end
        self._stream.read(self._take)

    def pause(self) -> None:
        """Lets outputs wait, in bounds."""
        self._is_paused = True
        self._stream.pause()

    def resume(self) -> None:
        """Goes on."""
        self._is_paused = False
        if self._telling is None:
            self._stream.resume()

    def usage(self) -> Usage:
        """Returns the account so far."""
        return self._answer.usage()

    def speculation(self) -> Speculation:
        """Returns what drafts were worth so far."""
        return self._answer.speculation()

    def mean_logprob(self) -> float:
        """Returns the log-probability per token so far; 0 if it is not told."""
        return self._answer.mean_logprob()

    def close(self) -> None:
        """Ends the request at the scheduler if it still runs; nothing is told any more."""
        self._tell = self._end = _nobody
        if self._telling is not None:
            self._telling.cancel()
        self._stream.close()
        self._times.end(self._answer.num_tokens)

    def _take(self, output: StepOutput | Exception) -> None:
        """Takes a step; whatever goes wrong with it ends this request and no other."""
        if isinstance(output, Exception):
            self._fail(output)
            return
        try:
            if output.finished is not None:
                self._note_end(output.finished)
            if output.token_ids:
                self._times.note_tokens(len(output.token_ids), output.received)
            if self._echo is not None:
                self._add_echo(self._echo, output)
            elif output.token_ids or output.finished is not None:
                self._add(output)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Ends the choice without the rest of its answer."""
        self._times.note_reason(FAILED)
        self._stream.close()
        self._end(error)

    def _note_end(self, finished: Finished) -> None:
        """Takes note of what the scheduler says at the end; raises ApiError for a failure."""
        self._times.note_account(finished)
        if finished.reason.is_failure:
            self._times.note_reason(FAILED)
            raise _failure(finished, self._name)

    def _add_echo(self, echo: Echo, output: StepOutput) -> None:
        """Tells the prompt once everything is there that is to be told of it."""
        try:
            echo.add(output.logprobs)
        except ValueError as error:
            raise self._not_understood(error) from None
        if not echo.is_complete:
            if output.token_ids or output.finished is not None:
                raise self._not_understood("the prompt came without log-probabilities")
            return
        self._echo = None
        if echo.num_tokens <= _INLINE_PROMPT_TOKENS:
            self._tell(self._index, echo.piece())
            if output.token_ids or output.finished is not None:
                self._add(output)
            return
        self._stream.pause()
        self._telling = asyncio.ensure_future(asyncio.to_thread(echo.piece))
        self._telling.add_done_callback(partial(self._tell_echo, output))

    def _tell_echo(self, output: StepOutput, telling: asyncio.Task[Piece]) -> None:
        if telling.cancelled():
            return
        self._telling = None
        try:
            self._tell(self._index, telling.result())
            if output.token_ids or output.finished is not None:
                self._add(output)
        except Exception as error:
            self._fail(error)
        if not self._is_paused:
            self._stream.resume()

    def _add(self, output: StepOutput) -> None:
        if self._is_prompt_only:
            self._answer.settle(output.finished)
            self._tell_last(Piece("", [], 0, 0, FinishReason.LENGTH))
            return
        try:
            piece = self._answer.push(output)
        except ValueError as error:
            raise self._not_understood(error) from None
        reason = piece.finish_reason
        if reason is None:
            self._tell(self._index, piece)
        elif reason is FinishReason.STOP_STRING:
            self._stream.finish().add_done_callback(partial(self._tell_stop, piece))
        else:
            self._tell_last(piece)

    def _tell_stop(self, piece: Piece, account: asyncio.Future[Finished | None]) -> None:
        """Tells the last piece with what the scheduler says of a request that the gateway ended."""
        finished = account.result()
        self._answer.settle(finished)
        self._times.note_account(finished)
        try:
            self._tell_last(piece)
        except Exception as error:
            self._fail(error)

    def _tell_last(self, piece: Piece) -> None:
        if piece.finish_reason is not None:
            self._times.note_reason(piece.finish_reason.value)
        self._tell(self._index, piece)
        self._end(None)

    def _not_understood(self, error: object) -> ApiError:
        self._times.note_reason(FAILED)
        return ApiError(500, f"the scheduler sent what is not understood: {error}", code="internal")


def _failure(finished: Finished, what: str) -> ApiError:
    """Returns the error for what the scheduler ended without a complete answer.

    Args:
        finished: The scheduler's account.
        what: Which of several choices failed; empty if the request has but one.
    """
    message = finished.message or f"the scheduler ended the request: {finished.reason.value}"
    status = _STATUS[finished.reason]
    return ApiError(status, f"{what}: {message}" if what else message, code=finished.reason.value)


def _nobody(*_: object) -> None:
    """Is told of what nobody wants to know."""
