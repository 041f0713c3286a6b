"""Which parts of vLLM the plugin builds on, and whether they are as it knows them."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable

SUPPORTED = "0.32", "0.33"
"""Minor versions of vLLM with which this version of the plugin was tried."""


@dataclass(frozen=True)
class Interface:
    """What of vLLM a part of this distribution builds on; files of one name are together."""

    functions: Mapping[str, Sequence[str]]
    """The parameters that functions begin with; of keywords alone, with a `=`, in any order."""
    fields: Mapping[str, Sequence[str]]
    """Fields, attributes and properties that classes have."""


PLUGIN = Interface(
    functions={
        "engine/arg_utils.py:EngineArgs.create_engine_config": ["self"],
        "entrypoints/openai/chat_completion/protocol.py:ChatCompletionRequest.to_sampling_params": [
            "self"
        ],
        "entrypoints/openai/chat_completion/serving.py:OpenAIServingChat.create_chat_completion": [
            "self", "request", "raw_request",
        ],
        "entrypoints/openai/completion/protocol.py:CompletionRequest.to_sampling_params": ["self"],
        "entrypoints/openai/completion/serving.py:OpenAIServingCompletion.create_completion": [
            "self", "request", "raw_request",
        ],
        "entrypoints/openai/responses/protocol.py:ResponsesRequest.to_sampling_params": ["self"],
        "entrypoints/openai/responses/serving.py:OpenAIServingResponses.create_responses": [
            "self", "request", "raw_request",
        ],
        "entrypoints/serve/engine/serving.py:BaseServing.create_error_response": [
            "message", "err_type", "status_code", "param",
        ],
        "tokenizers/registry.py:cached_tokenizer_from_config": ["model_config"],
        "v1/core/sched/scheduler.py:Scheduler.add_request": ["self", "request"],
        "v1/core/sched/scheduler.py:Scheduler.schedule": ["self"],
        "v1/core/sched/scheduler.py:Scheduler.update_from_output": [
            "self", "scheduler_output", "model_runner_output",
        ],
        "v1/engine/core.py:EngineCore.post_step": ["self"],
        "v1/engine/output_processor.py:OutputProcessor.process_outputs": [
            "self", "engine_core_outputs",
        ],
        "v1/sample/rejection_sampler.py:RejectionSampler.forward": [
            "self", "metadata", "draft_probs", "logits", "sampling_metadata",
        ],
        "v1/sample/sampler.py:Sampler.forward": ["self", "logits", "sampling_metadata"],
        "v1/sample/rejection_sampler.py:expand_batch_to_tokens": [
            "x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to",
        ],
        "v1/structured_output/__init__.py:StructuredOutputManager.validate_tokens": [
            "self", "request", "spec_tokens",
        ],
    },
    fields={
        "engine/arg_utils.py:EngineArgs": [
            "pipeline_parallel_size", "scheduler_cls", "skip_tokenizer_init", "speculative_config",
        ],
        "entrypoints/serve/engine/protocol.py:CompletionTokenUsageInfo": [],
        "entrypoints/serve/engine/protocol.py:UsageInfo": ["completion_tokens_details"],
        "sampling_params.py:SamplingParams": ["extra_args", "min_tokens"],
        "v1/core/sched/output.py:SchedulerOutput": [
            "scheduled_spec_decode_tokens", "total_num_scheduled_tokens",
        ],
        "v1/core/sched/scheduler.py:Scheduler": [
            "max_model_len", "num_spec_tokens", "requests", "structured_output_manager",
            "vllm_config",
        ],
        "v1/engine/__init__.py:EngineCoreOutput": [
            "finish_reason", "kv_transfer_params", "new_token_ids", "request_id",
        ],
        "v1/engine/__init__.py:EngineCoreOutputs": ["outputs"],
        "v1/engine/core.py:EngineCore": ["scheduler"],
        "v1/request.py:Request": [
            "max_tokens", "num_output_tokens", "num_tokens", "output_token_ids", "prompt_token_ids",
            "request_id", "resumable", "sampling_params", "spec_token_ids",
            "structured_output_request", "use_structured_output",
        ],
        "v1/structured_output/request.py:StructuredOutputRequest": ["grammar", "is_grammar_ready"],
        "v1/sample/rejection_sampler.py:RejectionSampler": ["sampler"],
        "v1/spec_decode/metadata.py:SpecDecodeMetadata": ["max_spec_len"],
    },
)  # fmt: skip

ENGINE = Interface(
    functions={
        "engine/arg_utils.py:AsyncEngineArgs.add_cli_args": ["parser"],
        "engine/arg_utils.py:EngineArgs.from_cli_args": ["cls", "args"],
        "inputs/engine.py:tokens_input": ["prompt_token_ids", "prompt=", "cache_salt="],
        "v1/core/sched/scheduler.py:Scheduler.finish_requests": ["self"],
        "v1/core/sched/scheduler.py:Scheduler.shutdown": ["self"],
        "v1/engine/async_llm.py:AsyncLLM._run_output_handler": ["self"],
        "v1/engine/async_llm.py:AsyncLLM.from_vllm_config": [
            "cls", "vllm_config", "start_engine_loop", "usage_context", "stat_loggers",
        ],
        "v1/engine/async_llm.py:AsyncLLM.get_supported_tasks": ["self"],
        "v1/engine/async_llm.py:AsyncLLM.pause_generation": ["self", "mode=", "clear_cache="],
        "v1/engine/async_llm.py:AsyncLLM.resume_generation": ["self"],
        "v1/engine/async_llm.py:AsyncLLM.shutdown": ["self", "timeout"],
        "v1/engine/core_client.py:AsyncMPClient.abort_requests_async": ["self", "request_ids"],
        "v1/engine/core_client.py:AsyncMPClient.add_request_async": ["self", "request"],
        "v1/engine/input_processor.py:InputProcessor.process_inputs": [
            "self", "request_id", "prompt", "params", "supported_tasks",
        ],
        "v1/metrics/loggers.py:StatLoggerBase.__init__": ["self", "vllm_config", "engine_index"],
        "v1/metrics/loggers.py:StatLoggerBase.record": ["self", "scheduler_stats"],
    },
    fields={
        "config/scheduler.py:SchedulerConfig": ["scheduler_cls"],
        "sampling_params.py:SamplingParams": [
            "detokenize", "extra_args", "frequency_penalty", "ignore_eos", "logit_bias",
            "logprobs", "max_tokens", "min_p", "min_tokens", "output_kind", "presence_penalty",
            "prompt_logprobs", "repetition_penalty", "seed", "stop_token_ids",
            "structured_outputs", "temperature", "top_k", "top_p",
        ],
        "sampling_params.py:StructuredOutputsParams": ["grammar"],
        "v1/engine/__init__.py:EngineCoreEvent": ["timestamp", "type"],
        "v1/engine/__init__.py:EngineCoreOutput": [
            "events", "finish_reason", "kv_transfer_params", "new_logprobs",
            "new_prompt_logprobs_tensors", "new_token_ids", "prefill_stats", "request_id",
        ],
        "v1/engine/__init__.py:EngineCoreRequest": ["external_req_id", "request_id"],
        "v1/engine/async_llm.py:AsyncLLM": [
            "engine_core", "input_processor", "observability_config", "output_handler",
            "output_processor",
        ],
        "v1/engine/output_processor.py:OutputProcessorOutput": [
            "reqs_to_abort", "request_outputs",
        ],
        "v1/metrics/stats.py:BaseCacheStats": ["hits", "queries"],
        "v1/metrics/stats.py:PrefillStats": ["num_cached_tokens"],
        "v1/metrics/stats.py:SchedulerStats": [
            "kv_cache_usage", "num_running_reqs", "prefix_cache_stats", "spec_decoding_stats",
        ],
        "v1/outputs.py:LogprobsLists": ["logprob_token_ids", "logprobs"],
        "v1/outputs.py:LogprobsTensors": ["logprob_token_ids", "logprobs"],
        "v1/spec_decode/metrics.py:SpecDecodingStats": [
            "num_accepted_tokens", "num_accepted_tokens_per_pos", "num_draft_tokens", "num_drafts",
        ],
    },
)  # fmt: skip

_FUNCTION = ast.FunctionDef, ast.AsyncFunctionDef


def read_interface(interface: Interface, package: Traversable) -> dict[str, list[str] | None]:
    """Returns what a source tree has of an interface, None for what is missing.

    Of functions these are all parameters, of classes the fields that the plugin needs, sorted.

    Args:
        interface: What is needed.
        package: The directory `vllm`; nothing of it is imported.
    """
    found: dict[str, list[str] | None] = {}
    for name in interface.functions:
        function = _find(package, name)
        found[name] = _parameters(function) if isinstance(function, _FUNCTION) else None
    for name, fields in interface.fields.items():
        node = _find(package, name)
        found[name] = sorted(_names(node) & set(fields)) if node is not None else None
    return found


def find_faults(interface: Interface, source: Mapping[str, Sequence[str] | None]) -> list[str]:
    """Returns what of a source is not as an interface needs it, in a few words each."""
    faults = []
    for name, found in source.items():
        if found is None:
            faults.append(f"{name} is missing")
        elif name in interface.fields:
            lacks = [each for each in interface.fields[name] if each not in found]
            faults += [f"{name} has no {each}" for each in lacks]
        elif not _begins_with(found, interface.functions[name]):
            faults.append(f"{name} takes ({', '.join(found)})")
    return faults


def _begins_with(found: Sequence[str], wanted: Sequence[str]) -> bool:
    keywords = [each for each in wanted if each.endswith("=")]
    positional = [each for each in wanted if not each.endswith("=")]
    return list(found[: len(positional)]) == positional and set(keywords) <= set(found)


@lru_cache(maxsize=1)
def _parse(source: bytes) -> ast.Module:
    return ast.parse(source)


def _find(package: Traversable, name: str) -> ast.AST | None:
    path, _, qualified = name.partition(":")
    file = package.joinpath(path)
    if not file.is_file():
        return None
    node: ast.AST = _parse(file.read_bytes())
    for each in qualified.split("."):
        body = getattr(node, "body", [])
        named = [
            it for it in body if isinstance(it, (ast.ClassDef, *_FUNCTION)) and it.name == each
        ]
        if not named:
            return None
        node = named[-1]
    return node


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    return positional + [f"{each.arg}=" for each in arguments.kwonlyargs]


def _names(node: ast.AST) -> set[str]:
    """Returns the fields and properties that a class declares, and those it sets on itself."""
    names: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            names.add(each.attr)
        elif isinstance(each, ast.FunctionDef):
            names.add(each.name)
    return names
