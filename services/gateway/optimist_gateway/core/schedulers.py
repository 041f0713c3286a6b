"""What schedulers say about their model, and which of them a request goes to.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998)
sends prompts that begin alike to one scheduler, whose prefix cache then holds their beginning, and
moves only the share of a scheduler that appears or vanishes. Bounded loads (Mirrokni, Thorup and
Zadimoghaddam, "Consistent hashing with bounded loads", 2018) pass over one that has clearly more to
do than others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from optimist_gateway.core.error import FieldError, Path

PRIORITY = "priority"
"""The field of a command that schedulers with the policy fcfs do not support."""


@dataclass(frozen=True)
class ModelDescription:
    """The model, and what it takes."""

    vocab_size: int
    max_model_len: int
    """Longest sequence that can run, prompt and output together, in tokens."""
    eos_token_ids: tuple[int, ...]
    max_draft_tokens: int | None = None
    """Most drafts of a request and pass; None if no scheduler says."""
    engine: str = ""
    """Name and version of the engine that runs the model; empty for workers of Optimist."""
    unsupported_fields: frozenset[str] = frozenset()
    """Fields of commands that no scheduler supports, such as `sampling.min_p`; `priority` if all
    run requests first come, first served."""
    unsupported_after_output: frozenset[str] = frozenset()
    """Fields that it does not support in a request that goes on after some output: there it goes
    to another scheduler."""

    def too_long(self, path: Path, size: str) -> FieldError:
        """Returns the error, which has the path, of a request of a size that does not fit."""
        fault = f"This model's maximum context length is {self.max_model_len} tokens. However, the "
        fault += f"request has {size}."
        return FieldError(path, fault, code="context_length_exceeded", is_sentence=True)

    def require_known(self, token_ids: Sequence[int], path: Path) -> None:
        """Raises FieldError, which has the path, if a token is not one of the model's."""
        size = self.vocab_size
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= size):
            unknown = next(token for token in token_ids if not 0 <= token < size)
            raise self.unknown_token(unknown, path)

    def unknown_token(self, token_id: int, path: Path, text: str = "") -> FieldError:
        """Returns the error, which has the path, of a token that is not one of the model's."""
        size = self.vocab_size
        return FieldError(path, f"{token_id}{text} is not a token of this model (0 to {size - 1})")

    def require_supported(self, fields: Iterable[str]) -> None:
        """Raises FieldError if no scheduler supports one of the fields that a command has."""
        for name in fields:
            if name in self.unsupported_fields:
                path = ("sampling", "logit_bias") if "logit_bias" in name else name.split(".")
                fault = f"is not supported by {self.engine}, which runs this model"
                if name == PRIORITY:
                    fault = "is not supported by the scheduler's policy fcfs; --policy priority "
                    fault += "honours it"
                raise FieldError(tuple(path), fault, code="unsupported_value")


def find_difference(one: ModelDescription, other: ModelDescription) -> str | None:
    """Returns in what two descriptions are not of the same model; None if they are of one."""
    for name in ("vocab_size", "eos_token_ids"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours != theirs:
            return f"{name} is {theirs}, not {ours}"
    return None


def common_description(descriptions: Iterable[ModelDescription]) -> ModelDescription | None:
    """Returns what a request may rely on with several schedulers of one model; None without any.

    Its length and its drafts fit all of them. A field needs one that supports it: only there does
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
        unsupported_fields=frozenset.intersection(*(one.unsupported_fields for one in known)),
    )


PREFIX_BLOCK_TOKENS = 64
MAX_PREFIX_TOKENS = 256
_TOKEN_BYTES = 4
# What another scheduler's cache saves is worth a wait for this many requests more.
LOAD_FACTOR = 1.5
LOAD_SLACK = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scheduler that a request could go to."""

    name: str
    """The same at all gateways."""
    load: int = 0
    """Requests there, running or waiting."""
    capacity: int = 0
    """Tokens that its KV memory holds; 0 if unknown."""
    is_sound: bool = True
    """Whether it works, as far as is known; others are taken only without such."""


def prefix_key(cache_salt: str, prompt: bytes) -> bytes | None:
    """Returns what prompts, int32 columns, have in common that begin alike; None of short ones.

    Tenants of different salts share no cache.
    """
    num_tokens = min(len(prompt) // _TOKEN_BYTES, MAX_PREFIX_TOKENS)
    num_tokens -= num_tokens % PREFIX_BLOCK_TOKENS
    if not num_tokens:
        return None
    salt = blake2b(cache_salt.encode(), digest_size=16).digest()
    return salt + prompt[: num_tokens * _TOKEN_BYTES]


def choose(candidates: Sequence[Candidate], prefix: bytes | None, request_id: str) -> int:
    """Returns the index of the scheduler for a request.

    There is at least one. The prefix is its `prefix_key`; without, the least loaded one is chosen.
    The id decides between those that are equally good.
    """
    indices = [index for index, one in enumerate(candidates) if one.is_sound]
    indices = indices or list(range(len(candidates)))
    if len(indices) == 1:
        return indices[0]
    largest = max(candidates[index].capacity for index in indices)
    loads = {index: _load(candidates[index], largest) for index in indices}
    key = blake2b(prefix or request_id.encode(), digest_size=16).digest()
    names = {index: candidates[index].name.encode() for index in indices}
    scores = {index: blake2b(names[index], key=key, digest_size=8).digest() for index in indices}
    least = min(loads.values())
    bound = least * LOAD_FACTOR + LOAD_SLACK if prefix else least
    return max((index for index in indices if loads[index] <= bound), key=scores.__getitem__)


def _load(candidate: Candidate, largest: int) -> float:
    """Returns the requests there, as many as they would be at a scheduler of the largest size."""
    if not candidate.capacity:
        return float(candidate.load)
    return candidate.load * largest / candidate.capacity
