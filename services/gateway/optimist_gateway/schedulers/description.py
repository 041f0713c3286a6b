"""Descriptions of the model: read from schedulers, compared and joined."""

from collections.abc import Iterable
from dataclasses import replace

from optimist.scheduler.v1 import scheduler_pb2
from optimist_common.columns import from_bytes
from optimist_gateway.core.model_description import ModelDescription


def read_description(response: scheduler_pb2.DescribeResponse) -> ModelDescription:
    """Reads one scheduler's description; raises ValueError if it is none."""
    lengths = [response.max_model_len, response.kv_capacity_tokens]
    return ModelDescription(
        vocab_size=response.vocab_size,
        max_model_len=min(length for length in lengths if length > 0),
        eos_token_ids=tuple(from_bytes(response.eos_token_ids).tolist()),
        is_synthetic=response.is_synthetic,
        max_draft_tokens=(
            response.max_draft_tokens if response.HasField("max_draft_tokens") else None
        ),
        is_fcfs=response.policy == scheduler_pb2.SCHEDULING_POLICY_FCFS,
    )


def find_difference(one: ModelDescription, other: ModelDescription) -> str | None:
    """Returns in what two descriptions are not of the same model; None if they are of one."""
    for name in ("vocab_size", "eos_token_ids", "is_synthetic"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            return f"{name} is {theirs}, not {ours}"
    return None


def common_description(descriptions: Iterable[ModelDescription]) -> ModelDescription | None:
    """Returns what a request may rely on with several schedulers of one model; None without any.

    Its length and its drafts fit all of them. A priority needs one that honours it: only there does
    the request run.
    """
    known = list(descriptions)
    if not known:
        return None
    drafts = [one.max_draft_tokens for one in known if one.max_draft_tokens is not None]
    return replace(
        known[0],
        max_draft_tokens=min(drafts, default=None),
        max_model_len=min(one.max_model_len for one in known),
        is_fcfs=all(one.is_fcfs for one in known),
    )
