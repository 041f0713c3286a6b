"""The life of one request: admitted, tokenized, its choices added, read and ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.core.admission import Admission
from optimist_gateway.core.answer.answer import Answer, Echo
from optimist_gateway.core.answer.output import LogprobReader, Usage, add_usages
from optimist_gateway.core.answer.provenance import Provenance
from optimist_gateway.core.answer.spans import PredictionSpans, Prompt, PromptSpans, SentPrediction
from optimist_gateway.core.answer.thinking import ThinkingReader
from optimist_gateway.core.error import ApiError, naming
from optimist_gateway.core.request import Limits, Request, ToolUse
from optimist_gateway.generation.choice import Choice, TakePiece
from optimist_gateway.observing.metrics import GatewayMetrics
from optimist_gateway.observing.request_record import ChoiceTimes, RequestObserver, current_record
from optimist_gateway.schedulers.messages import prepare
from optimist_gateway.schedulers.pool import SchedulerPool
from optimist_gateway.schedulers.requests import SchedulerUnavailableError
from optimist_gateway.security.beside import beside
from optimist_gateway.security.keys import current_client
from optimist_gateway.structure.grammars import Grammars
from optimist_gateway.structure.tool_calls import MessageReader, ToolCallReader
from optimist_gateway.text.encode import RequestEncoder
from optimist_gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ServedModel:
    """One model, and all that is its own."""

    name: str
    """Its name in the API."""
    tokenizer: Tokenizer
    grammars: Grammars
    schedulers: SchedulerPool

    def unready_reason(self) -> str | None:
        """Returns why its requests cannot be served now, or None if they can: by one scheduler."""
        try:
            self.schedulers.description  # noqa: B018 (it raises)
        except SchedulerUnavailableError as error:
            return str(error)
        return "the engine hangs" if self.schedulers.is_hung else self.tokenizer.unready_reason

    async def run(self) -> None:
        """Starts its process and follows its schedulers; returns never."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.tokenizer.start())
            tasks.create_task(self.schedulers.run())

    async def stop(self) -> None:
        """Ends its processes."""
        await self.grammars.stop()
        await self.tokenizer.stop()


@dataclass(frozen=True)
class Service:
    """What all requests share."""

    models: dict[str, ServedModel]
    """By their names; the first is the default one."""
    admission: Admission
    metrics: GatewayMetrics
    limits: Limits
    observer: RequestObserver

    @property
    def default_model(self) -> ServedModel:
        """The model of requests that name none."""
        return next(iter(self.models.values()))

    @property
    def pools(self) -> list[SchedulerPool]:
        """The schedulers of each model."""
        return [model.schedulers for model in self.models.values()]

    def find_model(self, name: str | None, param: str = "model") -> ServedModel:
        """Returns the model of a name; raises ApiError, which names `param`, if there is none."""
        model = self.models.get(self.default_model.name if name is None else name)
        if model is None:
            served = ", ".join(f"`{one}`" for one in self.models)
            raise ApiError(
                404,
                f"The model `{str(name)[:100]}` does not exist; this server has {served}.",
                param=param,
                code="model_not_found",
            )
        return model


class Generation:
    """One request; `running` once, its pieces go to whoever that is given."""

    def __init__(
        self, service: Service, request: Request, request_id: str, client_name: str | None = None
    ) -> None:
        """Takes a request, with the client's own name for it if it sent one.

        Raises ApiError if it asks for another model, or for more than the server allows.
        """
        self.model = service.find_model(request.model)
        with naming(request.names):
            request.require_allowed(service.limits)
        self.request_id = request_id
        self._request_names = sorted({request_id, client_name or request_id})
        self.request = request
        self.left = False
        """Whether the client went away."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once no more pieces come; `wait` says why."""
        self._error: Exception | None = None
        self._is_paused = self._has_failed = False
        self.thinking: ThinkingReader | None = None
        """What thoughts are read with, from where an answer begins; known with the first piece.
        None if there are none to tell apart."""
        self._choices: list[Choice] = []
        self._num_open = request.num_choices
        self._service = service
        self._client = current_client.get().name
        self._started = time.perf_counter()
        self._record = current_record()
        self._record.begin(request_id, request, client_name)

    def leave(self) -> None:
        """Ends the request because its client went away."""
        self.left = True
        self._close()

    def pause(self) -> None:
        """Lets what the scheduler says wait, in bounds: a choice that waits too long fails."""
        self._is_paused = True
        for choice in self._choices:
            choice.pause()

    def resume(self) -> None:
        """Goes on with what waits."""
        self._is_paused = False
        for choice in self._choices:
            # What one choice says may be too much again.
            if self._is_paused:
                break
            choice.resume()

    async def wait(self) -> None:
        """Returns when every choice is complete, or all are closed.

        Raises ApiError if one failed at the scheduler, lost it, or was paused for too long.
        """
        await self.ended
        if self._error is not None:
            raise self._error

    def usage(self) -> Usage:
        """Returns the account of all choices so far."""
        return add_usages([choice.answer.usage() for choice in self._choices], self.request.n)

    def message_reader(self) -> MessageReader:
        """Returns what reads the message that an answer is; not before the first piece."""
        tools, calls = self._tools, None
        if tools is not None:
            names = [function.name for function in tools.functions]
            calls = ToolCallReader(self.model.tokenizer.tool_format, names)
        return MessageReader(self.thinking and replace(self.thinking), calls)

    @property
    def size(self) -> int:
        """About how many values the whole answer has."""
        answers = [choice.answer for choice in self._choices]
        num_tokens = sum(one.num_tokens for one in answers)
        if self.request.echo:
            num_tokens += sum(one.num_prompt_tokens for one in answers)
        return num_tokens * (1 + 4 * (1 + (self.request.num_logprobs or 0)))

    @asynccontextmanager
    async def running(self, report: TakePiece) -> AsyncIterator[None]:
        """Begins the request; what is left of it ends with the block.

        `report` is called with a choice's index and what a step adds to it, in the moment in which
        the step arrives, up to the piece with a finish reason. Raises ApiError if the request is
        wrong, was not admitted, or a choice failed.
        """
        admission = self._service.admission
        admission.admit(self._client, self.request.num_choices)
        try:
            with naming(self.request.names):
                await self._add()
                if not self.left:
                    self._start(report)
                yield
        except ApiError:
            self._has_failed = True
            raise
        finally:
            self._end()
            admission.release(self._client, self.request.num_choices)

    async def _add(self) -> None:
        model, request = self.model, self.request
        description = model.schedulers.description
        encoder = RequestEncoder(request, model.tokenizer, description)
        prompts = await encoder.prompts()
        predictions = await encoder.predictions(self._service.limits.max_prediction_bytes)
        # Only a conversation has thoughts, and it is the only prompt.
        thinking = prompts[0].thinking
        if thinking is not None and (thinking.is_inside or thinking.form.is_usual):
            predictions = await encoder.after_thinking(predictions, thinking.form)
        if request.splits_reasoning and self._service.limits.splits_reasoning:
            self.thinking = thinking
        num_tokens = sum(len(one.token_ids) for one in prompts)
        num_tokens += sum(len(one.token_ids) for one in predictions)
        adds = await beside(
            partial(prepare, request, prompts, predictions, description, self.request_id),
            num_tokens,
        )
        if request.structure is not None:
            grammar = await model.grammars.grammar(request.structure, description, self.thinking)
            for add in adds:
                add.sampling.grammar = grammar
        for index, add in enumerate(adds):
            prompt = prompts[index // request.n]
            add.trace_parent = self._record.trace_parent
            add.names.extend(self._request_names)
            self._choices.append(self._choice(index, prompt, predictions, add))

    def _choice(
        self,
        index: int,
        prompt: Prompt,
        predictions: Sequence[SentPrediction],
        add: scheduler_pb2.Add,
    ) -> Choice:
        """Starts one of the answers."""
        request, tokenizer = self.request, self.model.tokenizer
        describe = None if request.num_logprobs is None else tokenizer.vocabulary.__getitem__
        echo = provenance = None
        if request.echo:
            shown = tokenizer.detokenizer(None)
            echo = Echo(prompt, shown, describe, request.include_provenance)
        offset = len(prompt.text) if request.echo else 0
        if request.include_provenance:
            spans = prompt.spans or PromptSpans(len(prompt.token_ids))
            provenance = Provenance(PredictionSpans(predictions), spans)
        answer = Answer(
            num_prompt_tokens=len(prompt.token_ids),
            detokenizer=tokenizer.detokenizer(self._shown_tokens(), prompt.token_ids),
            stop=request.stop,
            min_tokens=add.min_tokens,
            logprobs=describe and LogprobReader(describe, offset),
            provenance=provenance,
            has_prediction=bool(add.predicted_token_ids),
            thinking=self.thinking and replace(self.thinking),
        )
        return Choice(
            stream=self.model.schedulers.add(add),
            answer=answer,
            times=ChoiceTimes(self._service.metrics, self.model.name, self._started),
            index=index,
            name=f"choice {index}" if request.num_choices > 1 else "",
            echo=echo,
            is_prompt_only=request.max_tokens == 0,
        )

    @property
    def _tools(self) -> ToolUse | None:
        return self.request.structure.tools if self.request.structure is not None else None

    def _shown_tokens(self) -> Collection[str] | None:
        """Returns special tokens that are text: of calls and around thoughts; None for all."""
        if not self.request.skip_special_tokens:
            return None
        parts = self.model.tokenizer.tool_format.parts if self._tools is not None else ()
        tags = self.thinking.form.tags if self.thinking is not None else ()
        return *parts, *tags

    def _start(self, report: TakePiece) -> None:
        for choice in self._choices:
            choice.start(report, self._end_choice)
            if self._is_paused:
                choice.pause()

    def _end_choice(self, error: Exception | None) -> None:
        """Takes note that a choice is complete, or of the first failure, which ends all."""
        self._num_open -= 1
        self._error = self._error or error
        if (error is not None or not self._num_open) and not self.ended.done():
            self.ended.set_result(None)

    def _close(self) -> None:
        for choice in self._choices:
            choice.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _end(self) -> None:
        self._close()
        if not self._choices:
            return
        usage = self._record.usage = self.usage()
        if self._has_failed and not usage.completion_tokens:
            # It was refused: nobody is to pay for what was not served.
            return
        seconds = time.perf_counter() - self._started
        self._service.metrics.count_answer(self.model.name, usage, seconds)
        num_tokens = usage.prompt_tokens + usage.completion_tokens
        self._service.admission.charge(self._client, num_tokens)
