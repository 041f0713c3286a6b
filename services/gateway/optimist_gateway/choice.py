"""One answer to a request, as it arrives from the scheduler."""

import asyncio
from collections.abc import AsyncGenerator

from optimist_gateway.api.errors import ApiError, failure
from optimist_gateway.core.answer import Answer, Piece
from optimist_gateway.core.echo import Echo
from optimist_gateway.core.finish import FinishReason
from optimist_gateway.core.output import StepOutput
from optimist_gateway.core.speculation import Speculation
from optimist_gateway.core.usage import Usage
from optimist_gateway.observing.choice_times import FAILED, ChoiceTimes
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.scheduler.request_stream import RequestStream

# Telling of a longer prompt takes milliseconds, in which others would wait; a thread does it.
_INLINE_PROMPT_TOKENS = 256


class Choice:
    """A request of its own at the scheduler; read `pieces` once, then `close`."""

    def __init__(
        self,
        stream: RequestStream,
        answer: Answer,
        metrics: GatewayMetrics,
        started: float,
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
            name: What errors call it; empty if the client's request has but one choice.
            echo: The prompt, if the answer begins with it.
            is_prompt_only: Whether the answer ends there: its one token is not told.
        """
        self._stream = stream
        self._answer = answer
        self._times = ChoiceTimes(metrics, started)
        self._name = name
        self._echo = echo
        self._is_prompt_only = is_prompt_only

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
        """Ends the request at the scheduler if it still runs; `pieces` ends."""
        self._stream.close()
        self._times.end()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yields what each step adds, up to the piece with a finish reason.

        Raises:
            ApiError: The request failed at the scheduler.
            SchedulerUnavailableError: The stream to the scheduler broke.
            SlowReaderError: Too many outputs waited.
        """
        async for output in self._stream:
            self._note(output)
            if self._echo is not None and (echoed := await self._push_echo(self._echo, output)):
                yield echoed
            if not output.token_ids and output.finished is None:
                continue
            piece = self._push(output)
            if piece.finish_reason is FinishReason.STOP_STRING:
                finished = await self._stream.finish()
                self._answer.settle(finished)
                self._times.note_account(finished)
            if piece.finish_reason is not None:
                self._times.note_reason(piece.finish_reason.value)
            yield piece
            if piece.finish_reason is not None:
                return

    def _note(self, output: StepOutput) -> None:
        """Takes note of what a step says of times and ends; raises ApiError for a failure."""
        self._times.note_account(output.finished)
        if output.finished is not None and output.finished.reason.is_failure:
            self._times.note_reason(FAILED)
            raise failure(output.finished, self._name)
        if output.token_ids:
            self._times.note_tokens(len(output.token_ids))

    async def _push_echo(self, echo: Echo, output: StepOutput) -> Piece | None:
        """Returns the prompt once everything is there that is to be told of it."""
        try:
            echo.add(output.logprobs)
        except ValueError as error:
            raise self._not_understood(error) from None
        if echo.is_complete:
            self._echo = None
            if echo.num_tokens > _INLINE_PROMPT_TOKENS:
                return await asyncio.to_thread(echo.piece)
            return echo.piece()
        if output.token_ids or output.finished is not None:
            raise self._not_understood("the prompt came without log-probabilities")
        return None

    def _push(self, output: StepOutput) -> Piece:
        if self._is_prompt_only:
            self._answer.settle(output.finished)
            return Piece("", [], 0, 0, FinishReason.LENGTH)
        try:
            return self._answer.push(output)
        except ValueError as error:
            raise self._not_understood(error) from None

    def _not_understood(self, error: object) -> ApiError:
        self._times.note_reason(FAILED)
        return ApiError(500, f"the scheduler sent what is not understood: {error}", code="internal")
