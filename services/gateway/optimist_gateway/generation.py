"""The life of one request: admitted, tokenized, its choices added, read and ended."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from optimist_gateway.admission import Admission
from optimist_gateway.api.errors import ApiError, scheduler_unavailable
from optimist_gateway.api.requests import GenerationBody
from optimist_gateway.choice import Choice
from optimist_gateway.core.answer import Answer, Piece
from optimist_gateway.core.prompt import Prompt
from optimist_gateway.core.usage import Usage, add_usages, merge_usages
from optimist_gateway.interleave import interleave
from optimist_gateway.limits import Limits
from optimist_gateway.metrics import GatewayMetrics
from optimist_gateway.preparation import prepare
from optimist_gateway.request_record import current_record
from optimist_gateway.scheduler_client import (
    ModelDescription,
    SchedulerClient,
    SchedulerUnavailableError,
    SlowReaderError,
)
from optimist_gateway.tokenizer import Tokenizer

EncodePrompts = Callable[[Tokenizer, ModelDescription], Awaitable[list[Prompt]]]
"""Returns the prompts of a request, as many as `GenerationBody.num_prompts` says."""


@dataclass(frozen=True)
class Service:
    """What all requests share."""

    model_name: str
    tokenizer: Tokenizer
    client: SchedulerClient
    admission: Admission
    metrics: GatewayMetrics
    limits: Limits


class Generation:
    """One request; read `pieces` once, to its end or until it is closed."""

    def __init__(
        self, service: Service, body: GenerationBody, encode_prompts: EncodePrompts, request_id: str
    ) -> None:
        self.request_id = request_id
        self.body = body
        self.num_choices = body.num_prompts() * body.num_candidates()
        """Answers that are generated: choice `prompt * num_candidates + candidate`."""
        self.left = False
        """Whether the client went away."""
        self.is_synthetic = False
        """Whether drafts are accepted by chance; known with the first piece."""
        self._service = service
        self._encode_prompts = encode_prompts
        self._choices: list[Choice] = []
        self._started = time.perf_counter()
        self._record = current_record()
        self._record.begin(request_id, body)

    def leave(self) -> None:
        """Ends the request because its client went away; `pieces` ends."""
        self.left = True
        self._close()

    def usage(self) -> Usage:
        """Returns the account of all choices so far; ValueError before the first piece."""
        usages = [choice.usage() for choice in self._choices]
        if self.body.num_prompts() == 1:
            return merge_usages(usages)
        size = self.body.num_candidates()
        starts = range(0, len(usages), size)
        return add_usages([merge_usages(usages[start : start + size]) for start in starts])

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yields what each step adds to a choice, with the choice's index.

        Every choice goes up to its piece with a finish reason.

        Raises:
            ApiError: The request is wrong, was not admitted, or a choice failed.
        """
        with self._service.admission.places(self.num_choices):
            try:
                await self._add()
                if self.left:
                    return
                sources = [choice.pieces() for choice in self._choices]
                async with aclosing(interleave(sources)) as arriving:
                    async for index, piece in arriving:
                        yield index, piece
            except SchedulerUnavailableError as error:
                raise scheduler_unavailable(str(error)) from None
            except SlowReaderError as error:
                raise ApiError(500, str(error), code="slow_reader") from None
            finally:
                self._end()

    async def _add(self) -> None:
        service = self._service
        model = service.client.description
        self.is_synthetic = model.is_synthetic
        prompts = await self._encode_prompts(service.tokenizer, model)
        adds = await prepare(
            self.body, prompts, service.tokenizer, model, service.limits, self.request_id
        )
        for index, add in enumerate(adds):
            prompt = prompts[index // self.body.num_candidates()]
            answer = Answer(
                num_prompt_tokens=len(prompt.token_ids),
                detokenizer=service.tokenizer.detokenizer(),
                stop=self.body.stop or [],
                min_tokens=add.min_tokens,
            )
            name = f"choice {index}" if self.num_choices > 1 else ""
            add.trace_parent = self._record.trace_parent
            stream = service.client.add(add)
            self._choices.append(Choice(stream, answer, service.metrics, self._started, name))

    def _close(self) -> None:
        for choice in self._choices:
            choice.close()

    def _end(self) -> None:
        if not self._choices:
            return
        self._close()
        usage = self._record.usage = self.usage()
        self._service.metrics.count_usage(usage)
        self._service.metrics.end_to_end.observe(time.perf_counter() - self._started)
