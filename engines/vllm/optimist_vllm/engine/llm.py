"""vLLM's `AsyncLLM` without its own front: token ids in, the outputs of passes as they come."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from vllm import __version__
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessorOutput
from vllm.v1.metrics.loggers import StatLoggerBase

from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError, one_line
from optimist_common.model_files.end_tokens import read_end_tokens
from optimist_common.scheduler_service.pause_mode import PauseMode
from optimist_vllm import parent
from optimist_vllm.core.payload import PAYLOAD
from optimist_vllm.engine.engine import Description, Engine
from optimist_vllm.engine.logged_scheduler import use_logged_scheduler
from optimist_vllm.engine.request import NewRequest
from optimist_vllm.engine.settings import EngineSettings
from optimist_vllm.engine_args import MODEL, check_version
from optimist_vllm.interface import ENGINE
from optimist_vllm.proposer import SCHEDULER

logger = logging.getLogger(__name__)

_END_SECONDS = 2.0
"""How long vLLM's processes may take to end by themselves."""
_SOURCES = {
    "draft_model": DraftSource.DRAFT_MODEL,
    "eagle": DraftSource.EAGLE,
    "eagle3": DraftSource.EAGLE,
    "medusa": DraftSource.MEDUSA,
    "ngram": DraftSource.NGRAM,
    "ngram_gpu": DraftSource.NGRAM,
    "suffix": DraftSource.NGRAM,
}
"""Of vLLM's own drafters; others are like a draft model."""


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> Any:
        raise SetupError(f"vLLM's flags: {message}")


def read_engine_args(settings: EngineSettings, flags: Sequence[str]) -> Any:
    """Returns vLLM's arguments.

    Raises:
        SetupError: A flag is wrong.
    """
    parser = AsyncEngineArgs.add_cli_args(_Parser(prog="vllm"))
    arguments = AsyncEngineArgs.from_cli_args(
        parser.parse_args(["--model", settings.model, *flags])
    )
    if arguments.speculative_config is None and settings.num_speculative_tokens:
        arguments.speculative_config = {
            "model": MODEL,
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
    # Without them each pass would still count for metrics that nobody asks for.
    arguments.disable_log_stats |= not settings.metrics_port
    # The gateway's grammars are in its dialect.
    arguments.structured_outputs_config.backend = "guidance"
    return arguments


class VllmLlm:
    """See `engine.Llm`. Requests do not pass vLLM's output processor: what passes bring goes out as
    it comes, with the positions of drafts, and nothing is put together or detokenized."""

    def __init__(self, settings: EngineSettings, flags: Sequence[str]) -> None:
        """Starts vLLM, which takes from seconds to minutes.

        Raises:
            SetupError: A flag is wrong, or vLLM cannot start with them.
        """
        self._engine: Engine | None = None
        arguments = read_engine_args(settings, flags)
        os.environ[parent.PARENT] = str(os.getpid())
        try:
            check_version(ENGINE)
            config = arguments.create_engine_config()
            is_ours = config.scheduler_config.scheduler_cls == SCHEDULER
            if settings.request_log:
                _log_requests(config, settings, is_ours=is_ours)
            self._llm = AsyncLLM.from_vllm_config(
                config, stat_loggers=[_logger_class(self._take_stats)]
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise SetupError(f"vLLM: {one_line(error)}") from None
        self._tasks: tuple[Any, ...] = ()
        self.description = _describe(settings.model, config, is_ours=is_ours)

    async def serve(self, engine: Engine) -> None:
        """Hands on what passes bring; returns never.

        Raises:
            RuntimeError: vLLM has ended.
        """
        self._engine = engine
        self._tasks = await self._llm.get_supported_tasks()
        self._llm.output_processor.process_outputs = self._take_outputs
        self._llm._run_output_handler()
        handler = self._llm.output_handler
        if handler is None:
            raise RuntimeError("vLLM has no handler of outputs")
        await handler
        raise RuntimeError("vLLM has ended; its log says why")

    def close(self) -> None:
        """Ends vLLM's processes."""
        self._llm.shutdown(timeout=_END_SECONDS)

    def make(self, request: NewRequest) -> Any:
        """Returns vLLM's form of a request; raises ValueError, its message for the client."""
        trace_headers = None
        if request.trace_parent and self._llm.observability_config.otlp_traces_endpoint:
            trace_headers = {"traceparent": request.trace_parent}
        made = self._llm.input_processor.process_inputs(
            request.request_id,
            tokens_input(list(request.token_ids), cache_salt=request.cache_salt or None),
            _sampling_params(request),
            supported_tasks=self._tasks,
            trace_headers=trace_headers,
            priority=request.priority,
        )
        made.external_req_id = made.request_id
        return made

    async def add(self, request: Any) -> None:
        """Sends such a request."""
        await self._llm.engine_core.add_request_async(request)

    async def abort(self, request_ids: list[str]) -> None:
        """Ends requests; those that have ended are ignored."""
        await self._llm.engine_core.abort_requests_async(request_ids)

    async def pause(self, mode: PauseMode) -> None:
        """Pauses; returns once nothing runs any more."""
        await self._llm.pause_generation(mode=mode.value, clear_cache=False)

    async def resume(self) -> None:
        """Goes on."""
        await self._llm.resume_generation()

    def _take_outputs(self, outputs: Any, *_args: Any, **_kwargs: Any) -> Any:
        if self._engine is not None:
            self._engine.take_outputs(outputs)
        return OutputProcessorOutput(request_outputs=[], reqs_to_abort=[])

    def _take_stats(self, engine_index: int, stats: Any) -> None:
        if self._engine is not None:
            self._engine.take_stats(engine_index, stats)


def _logger_class(take: Callable[[int, Any], None]) -> type[StatLoggerBase]:
    class Logger(StatLoggerBase):
        """Hands vLLM's figures on."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._engine_index = engine_index

        def record(self, scheduler_stats: Any, *_args: Any, **_kwargs: Any) -> None:
            take(self._engine_index, scheduler_stats)

        def log_engine_initialized(self) -> None:
            """Says nothing."""

    return Logger


def _log_requests(config: Any, settings: EngineSettings, *, is_ours: bool) -> None:
    if is_ours:
        use_logged_scheduler(config, settings)
    else:
        logger.warning("--request-log: vLLM has no drafts of ours, so that there is nothing to log")


def _describe(model: str, config: Any, *, is_ours: bool) -> Description:
    model_config, cache = config.model_config, config.cache_config
    speculative = config.speculative_config
    source, max_drafts = DraftSource.TARGET, 0
    if speculative is not None:
        max_drafts = speculative.num_speculative_tokens
        own = _SOURCES.get(speculative.method, DraftSource.DRAFT_MODEL)
        source = DraftSource.PREDICTION if is_ours else own
    return Description(
        engine=f"vLLM {__version__}",
        model=model,
        vocab_size=model_config.get_vocab_size(),
        max_model_len=model_config.max_model_len,
        kv_capacity_tokens=cache.num_gpu_blocks * cache.block_size,
        num_blocks=cache.num_gpu_blocks,
        eos_token_ids=read_end_tokens(
            model_config.model,
            "--model",
            model_config.get_vocab_size(),
            getattr(model_config.hf_text_config, "eos_token_id", None),
            model_config.tokenizer,
        ),
        num_engines=config.parallel_config.data_parallel_size,
        has_priorities=config.scheduler_config.policy == "priority",
        max_draft_tokens=max_drafts,
        draft_source=source,
    )


def _sampling_params(request: NewRequest) -> SamplingParams:
    sampling = request.sampling
    grammar = sampling.grammar
    # All of a prompt was reported before, where the request goes on.
    is_new = not request.payload.num_delivered
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=request.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias or None,
        structured_outputs=StructuredOutputsParams(grammar=grammar) if grammar else None,
        logprobs=sampling.num_logprobs,
        prompt_logprobs=sampling.num_prompt_logprobs if is_new else None,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=list(request.stop_token_ids),
        # The gateway names them among the stop tokens.
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={PAYLOAD: request.payload},
    )
