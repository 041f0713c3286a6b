"""The life of one request: admitted, tokenized, added, its steps turned into text, ended."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from optimist_gateway.admission import Admission
from optimist_gateway.api.errors import ApiError, failure, scheduler_unavailable
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.core.answer import Answer, Piece
from optimist_gateway.core.finish import FinishReason
from optimist_gateway.core.output import StepOutput
from optimist_gateway.core.usage import Usage
from optimist_gateway.metrics import GatewayMetrics
from optimist_gateway.preparation import prepare
from optimist_gateway.scheduler_client import (
    ModelDescription,
    RequestStream,
    SchedulerClient,
    SchedulerUnavailableError,
    SlowReaderError,
)
from optimist_gateway.tokenizer import Tokenizer

EncodePrompt = Callable[[Tokenizer, ModelDescription], Awaitable[list[int]]]


@dataclass(frozen=True)
class Service:
    """What all requests share."""

    model_name: str
    tokenizer: Tokenizer
    client: SchedulerClient
    admission: Admission
    metrics: GatewayMetrics


class Generation:
    """One request; read `pieces` once, to its end or until it is closed."""

    def __init__(
        self, service: Service, body: GenerationBody, encode_prompt: EncodePrompt, request_id: str
    ) -> None:
        self.request_id = request_id
        self.body = body
        self.left = False
        """Whether the client went away."""
        self.is_synthetic = False
        """Whether drafts are accepted by chance; known with the first piece."""
        self._service = service
        self._encode_prompt = encode_prompt
        self._stream: RequestStream | None = None
        self._answer: Answer | None = None
        self._started = time.perf_counter()
        self._last: float | None = None

    def leave(self) -> None:
        """Ends the request because its client went away; `pieces` ends."""
        self.left = True
        if self._stream is not None:
            self._stream.close()

    def usage(self) -> Usage:
        """Returns the account so far; raises RuntimeError before the first piece."""
        if self._answer is None:
            raise RuntimeError("usage before the first piece")
        return self._answer.usage()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yields what each step adds, up to the piece with a finish reason.

        Raises:
            ApiError: The request is wrong, was not admitted, or failed.
        """
        with self._service.admission:
            try:
                stream, answer = await self._add()
                if self.left:
                    return
                async for output in stream:
                    piece = self._push(answer, output)
                    if piece.finish_reason is FinishReason.STOP_STRING:
                        answer.settle(await stream.finish())
                    yield piece
                    if piece.finish_reason is not None:
                        return
            except SchedulerUnavailableError as error:
                raise scheduler_unavailable(str(error)) from None
            except SlowReaderError as error:
                raise ApiError(500, str(error), code="slow_reader") from None
            finally:
                self._end()

    async def _add(self) -> tuple[RequestStream, Answer]:
        service = self._service
        model = service.client.description
        self.is_synthetic = model.is_synthetic
        prompt_token_ids = await self._encode_prompt(service.tokenizer, model)
        add = await prepare(self.body, prompt_token_ids, service.tokenizer, model, self.request_id)
        answer = Answer(
            num_prompt_tokens=len(prompt_token_ids),
            detokenizer=service.tokenizer.detokenizer(),
            stop=self.body.stop or [],
            min_tokens=add.min_tokens,
        )
        self._stream, self._answer = service.client.add(add), answer
        return self._stream, answer

    def _push(self, answer: Answer, output: StepOutput) -> Piece:
        if output.finished is not None and output.finished.reason.is_failure:
            raise failure(output.finished)
        if output.token_ids:
            self._observe(len(output.token_ids))
        return answer.push(output)

    def _observe(self, num_tokens: int) -> None:
        now = time.perf_counter()
        metrics = self._service.metrics
        if self._last is None:
            metrics.time_to_first_token.observe(now - self._started)
        else:
            metrics.inter_token_latency.observe((now - self._last) / num_tokens)
        self._last = now

    def _end(self) -> None:
        if self._stream is None:
            return
        self._stream.close()
        self._service.metrics.count_usage(self.usage())
        self._service.metrics.end_to_end.observe(time.perf_counter() - self._started)
