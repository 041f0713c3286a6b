"""One answer to a request, as it arrives from the scheduler."""

from collections.abc import AsyncGenerator

from optimist_gateway.api.errors import failure
from optimist_gateway.choice_times import FAILED, ChoiceTimes
from optimist_gateway.core.answer import Answer, Piece
from optimist_gateway.core.finish import FinishReason
from optimist_gateway.core.output import StepOutput
from optimist_gateway.core.usage import Usage
from optimist_gateway.metrics import GatewayMetrics
from optimist_gateway.scheduler_client import RequestStream


class Choice:
    """A request of its own at the scheduler; read `pieces` once, then `close`."""

    def __init__(
        self,
        stream: RequestStream,
        answer: Answer,
        metrics: GatewayMetrics,
        started: float,
        name: str = "",
    ) -> None:
        """Takes the running request.

        Args:
            stream: Its outputs.
            answer: What becomes of them.
            metrics: Where its times are counted.
            started: When the client's request was parsed, by `time.perf_counter`.
            name: What errors call it; empty if the client's request has but one choice.
        """
        self._stream = stream
        self._answer = answer
        self._times = ChoiceTimes(metrics, started)
        self._name = name

    def usage(self) -> Usage:
        """Returns the account so far."""
        return self._answer.usage()

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

    def _push(self, output: StepOutput) -> Piece:
        self._times.note_account(output.finished)
        if output.finished is not None and output.finished.reason.is_failure:
            self._times.note_reason(FAILED)
            raise failure(output.finished, self._name)
        if output.token_ids:
            self._times.note_tokens(len(output.token_ids))
        return self._answer.push(output)
