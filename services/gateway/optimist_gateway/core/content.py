"""What form the text of an answer is to have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


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
    """Letters, digits, `_` and `-`."""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    is_strict: bool
    """Whether a schema that cannot be followed wholly is rejected."""
    index: int
    """Which of the request's tools it is."""
    description: str | None = None


@dataclass(frozen=True)
class ToolChoice:
    """Which functions the model may call this time, and whether it has to."""

    mode: Literal["none", "auto", "required"]
    names: Sequence[str] = ()
    """The functions; empty for all."""
    is_single: bool = False
    """Whether one call is wanted."""


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
