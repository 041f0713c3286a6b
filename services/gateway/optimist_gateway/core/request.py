"""A request for answers, through whichever API it came, and what it is made of."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimist_common.sampling import SamplingParams
from optimist_gateway.core.error import FieldError, Names

MAX_PRIORITY = 2**30
MAX_PREDICTIONS = 16
MAX_REQUEST_ID_CHARACTERS = 128
# The odd increment of SplitMix64 (Steele, Lea and Flood, 2014), the golden ratio's share of 2**64.
_SEED_INCREMENT = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class JsonContent:
    """JSON that a schema describes."""

    schema: Mapping[str, Any]
    is_lenient: bool
    """Whether keywords that no grammar can follow are left out; else they are refused."""


@dataclass(frozen=True)
class RegexContent:
    """Text that a regular expression matches as a whole."""

    pattern: str


@dataclass(frozen=True)
class ChoiceContent:
    """One of several texts."""

    choices: Sequence[str]


@dataclass(frozen=True)
class LarkContent:
    """Text of a grammar in llguidance's Lark dialect."""

    source: str


Content = JsonContent | RegexContent | ChoiceContent | LarkContent


@dataclass(frozen=True)
class Function:
    """A function that the model may call."""

    name: str
    """Letters, digits, `_`, `-`, `.`, `:` and `/`."""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    is_strict: bool
    """Whether a schema that cannot be followed wholly is rejected."""
    index: int
    """Which of the request's tools it is."""
    description: str | None = None


@dataclass(frozen=True)
class ToolUse:
    """Which calls an answer may have."""

    functions: Sequence[Function]
    """Those that may be called."""
    is_required: bool
    """Whether the answer is a call."""
    is_parallel: bool
    """Whether there may be more than one call."""


@dataclass(frozen=True)
class Structure:
    """The form of an answer."""

    content: Content | None = None
    """Form of the text, if not any text will do."""
    tools: ToolUse | None = None

    @property
    def max_tokens(self) -> int | None:
        """Tokens that no answer can have more of, where that is known; each has a byte at least."""
        if self.tools is not None or not isinstance(self.content, ChoiceContent):
            return None
        return max(len(choice.encode()) for choice in self.content.choices)


@dataclass(frozen=True)
class ToolCall:
    """A call that the assistant made earlier."""

    id: str
    """May be empty, where a client gives none."""
    name: str
    arguments: Mapping[str, Any] | str
    """An object, or the text of one; a text that is none if the call was cut off."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `developer`, `user`, `assistant` or `tool`."""
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant's message."""
    tool_call_id: str | None = None
    """Of a tool's message: the call whose result it is; None for the next without one."""
    name: str | None = None
    """Of its author, if the client says; of a tool's message, the function."""
    reasoning: str = ""
    """Of an assistant's message: what the model thought before it."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request that the person who runs the gateway sets."""

    max_n: int
    """Answers to one prompt that are generated."""
    max_prompts: int
    """Prompts of a request."""
    max_choices: int
    """Answers to all its prompts."""
    max_prediction_bytes: int
    """All predictions of a request together, in bytes of UTF-8 text."""
    max_body_bytes: int
    """The body of a request, decompressed."""
    read_seconds: float
    """How long it may take to arrive."""
    keep_alive_seconds: float
    """Silence after which a stream gets a comment."""
    splits_reasoning: bool = True
    """Whether what a model thinks comes apart from what it answers."""


@dataclass(frozen=True)
class Conversation:
    """A prompt that a chat template makes of messages."""

    messages: Sequence[Message]
    tools: Sequence[Function] = ()
    """Functions that the prompt describes."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further values for the template by name, such as `enable_thinking`."""
    add_generation_prompt: bool = True
    """Whether the prompt goes up to where an answer begins."""
    continue_final_message: bool = False
    """Whether the answer continues the last message, which is the assistant's."""


TextOrTokens = str | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks for. Each API validates its own body and makes one of it."""

    model: str
    prompts: Sequence[Conversation | TextOrTokens]
    suffix: str = ""
    """What follows the answer to each prompt, if that is to be filled in between."""
    names: Callable[[], Names] = dict
    """Returns what the client calls the fields that errors are about."""
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=1.0))
    """Without grammar and log-probabilities; its ranges are checked by the API."""
    seed: int | None = None
    """In place of its seed; None for one by chance."""
    n: int = 1
    """Answers to each prompt."""
    max_tokens: int | None = None
    """Most tokens of an answer; None for the default, 0 for none after an echoed prompt."""
    default_max_tokens: int | None = None
    """None for as many as fit."""
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    structure: Structure | None = None
    """The form of the answer; None for any text."""
    predictions: Sequence[TextOrTokens] = ()
    """Expected answers, the most likely one first: all as texts or all as tokens."""
    num_speculative_tokens: int | None = None
    """Most drafts of a pass; None for the server's limit."""
    priority: int = 0
    cache_salt: str = ""
    num_logprobs: int | None = None
    """How many of the likeliest tokens are reported with each token; None for no logprobs."""
    skip_special_tokens: bool = True
    """Whether special tokens have no text."""
    echo: bool = False
    """Whether answers begin with the prompt."""
    include_provenance: bool = False
    include_speculation: bool = False
    return_token_ids: bool = False
    splits_reasoning: bool = False
    """Whether what the model thinks comes apart from what it answers."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    continuous_usage: bool = False
    """Whether each chunk has the usage so far, too."""

    @property
    def num_choices(self) -> int:
        """Answers in all: choice `prompt * n + number` is one to that prompt."""
        return len(self.prompts) * self.n

    def require_allowed(self, limits: Limits) -> None:
        """Raises FieldError if the request asks for more than the server allows."""
        # More choices than the limit would never be admitted.
        for path, number, limit, unit in (
            ("n", self.n, limits.max_n, ""),
            ("prompts", len(self.prompts), limits.max_prompts, " prompts"),
            ("prompts", self.num_choices, limits.max_choices, " answers to all prompts"),
        ):
            if number > limit:
                raise FieldError((path,), f"must be at most {limit}{unit} on this server")


def choice_seed(seed: int, index: int) -> int:
    """Returns the seed of choice `index`: that of the request for the first choice.

    The others differ from each other, and from all choices of requests with seeds close by. Seeds
    are int64.
    """
    return (seed + index * _SEED_INCREMENT + 2**63) % 2**64 - 2**63


def cache_salt(client: str, asked: str) -> str:
    """Returns the salt of a request, which may ask for one: equal ones share what is cached.

    A client with a key, which has a name, shares with itself alone, whatever salt it asks for, so
    that none can find out by its times what others have sent.
    """
    if not client:
        return asked
    return hashlib.sha256(f"{client}\0{asked}".encode()).hexdigest()
