"""Which parts of vLLM the plugin builds on, and whether they are as it knows them."""

import ast
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources.abc import Traversable

SUPPORTED = "0.32", "0.33"
"""Minor versions of vLLM with which this version of the plugin was tried."""

FUNCTIONS = {
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
}  # fmt: skip
"""The parameters that functions begin with; files of one name are together."""

FIELDS = {
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
        "max_model_len", "num_spec_tokens", "requests", "structured_output_manager", "vllm_config",
    ],
    "v1/engine/__init__.py:EngineCoreOutput": [
        "finish_reason", "kv_transfer_params", "new_token_ids", "request_id",
    ],
    "v1/engine/__init__.py:EngineCoreOutputs": ["outputs"],
    "v1/engine/core.py:EngineCore": ["scheduler"],
    "v1/request.py:Request": [
        "max_tokens", "num_output_tokens", "num_tokens", "output_token_ids", "prompt_token_ids",
        "request_id", "resumable", "sampling_params", "spec_token_ids",
    ],
    "v1/sample/rejection_sampler.py:RejectionSampler": ["sampler"],
    "v1/spec_decode/metadata.py:SpecDecodeMetadata": ["max_spec_len"],
}  # fmt: skip
"""Fields, attributes and properties that classes have."""

_FUNCTION = ast.FunctionDef, ast.AsyncFunctionDef


def read_interface(package: Traversable) -> dict[str, list[str] | None]:
    """Returns what a source tree has of the names above, None for what is missing.

    Of functions these are all parameters, of classes the fields that the plugin needs, sorted.

    Args:
        package: The directory `vllm`; nothing of it is imported.
    """
    found: dict[str, list[str] | None] = {}
    for name in FUNCTIONS:
        function = _find(package, name)
        found[name] = _parameters(function) if isinstance(function, _FUNCTION) else None
    for name, fields in FIELDS.items():
        node = _find(package, name)
        found[name] = sorted(_names(node) & set(fields)) if node is not None else None
    return found


def find_faults(interface: Mapping[str, list[str] | None]) -> list[str]:
    """Returns what of an interface is not as the plugin needs it, in a few words each."""
    faults = []
    for name, found in interface.items():
        if found is None:
            faults.append(f"{name} is missing")
        elif name in FIELDS:
            faults += [f"{name} has no {each}" for each in FIELDS[name] if each not in found]
        elif found[: len(FUNCTIONS[name])] != FUNCTIONS[name]:
            faults.append(f"{name} takes ({', '.join(found)})")
    return faults


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
