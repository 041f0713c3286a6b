"""Parameters of OpenAI's API that are known here and not supported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

# Parameters that are refused, but for values that ask for nothing beyond the default.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Parameters with other values that are supported; the rest is not supported whatever its value.
_BY_VALUE = frozenset({"best_of", "modalities", "response_format", "verbosity"})
# Parameters that change nothing about the answer.
_IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


@dataclass(frozen=True)
class KnownParameters:
    """Parameters of an endpoint that are known and not supported."""

    refused: Mapping[str, tuple[Any, ...]]
    """Those that are refused, with the values that ask for nothing beyond the default."""
    by_value: frozenset[str]
    """Which of them have other values that are supported."""
    ignored: frozenset[str]
    """Those that change nothing about the answer."""


OF_CHOICES = KnownParameters(_REFUSED, _BY_VALUE, _IGNORED)
"""Those of the endpoints that answer with choices."""


def drop_unsupported(
    body: Mapping[str, Any], known: KnownParameters = OF_CHOICES
) -> dict[str, Any]:
    """Returns the body without parameters that are ignored or ask for the default.

    Raises:
        PydanticCustomError: A parameter asks for something that is not supported; its type is
            OpenAI's error code and its context has `param`.
    """
    kept = {}
    for name, value in body.items():
        if name in known.ignored:
            continue
        if name not in known.refused:
            kept[name] = value
        elif value is not None and not _is_harmless(value, _harmless(name, body, known)):
            code = "unsupported_value" if name in known.by_value else "unsupported_parameter"
            what = "This value of" if name in known.by_value else "The parameter"
            raise PydanticCustomError(
                code, "{what} '{param}' is not supported.", {"what": what, "param": name}
            )
    return kept


def _harmless(name: str, body: Mapping[str, Any], known: KnownParameters) -> tuple[Any, ...]:
    """Returns the values of a parameter that ask for nothing; all of `n` answers are best of n."""
    return (body.get("n") or 1,) if name == "best_of" else known.refused[name]


def _is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    # Without the types, True would pass as 1 and 0 as False.
    return any(type(value) is type(one) and value == one for one in harmless)
