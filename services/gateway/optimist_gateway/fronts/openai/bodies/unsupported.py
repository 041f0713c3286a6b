"""Parameters of OpenAI's API that are known here and not supported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class KnownParameters:
    """Parameters of an endpoint that are known and not supported."""

    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Those that are refused, with the values that ask for nothing beyond the default."""
    by_value: frozenset[str] = frozenset()
    """Which of them have other values that are supported."""


OF_NONE = KnownParameters()

# vLLM's earlier names of `structured_outputs`.
_GUIDED: dict[str, tuple[Any, ...]] = {
    f"guided_{name}": () for name in ("choice", "decoding_backend", "grammar", "json", "regex")
}

OF_CHAT = KnownParameters(
    refused=_GUIDED
    | {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    by_value=frozenset({"modalities", "reasoning_effort", "verbosity"}),
)
"""Those of POST /v1/chat/completions."""

OF_COMPLETIONS = KnownParameters(refused=_GUIDED | {"suffix": ("",)})
"""Those of POST /v1/completions."""


def drop_unsupported(body: Mapping[str, Any], known: KnownParameters) -> dict[str, Any]:
    """Returns the body without parameters that ask for the default.

    Raises:
        PydanticCustomError: A parameter asks for something that is not supported; its type is
            OpenAI's error code and its context has `param`.
    """
    kept = {}
    for name, value in body.items():
        if name not in known.refused:
            kept[name] = value
        elif value is not None and not _is_harmless(value, known.refused[name]):
            code = "unsupported_value" if name in known.by_value else "unsupported_parameter"
            what = "This value of" if name in known.by_value else "The parameter"
            raise PydanticCustomError(
                code, "{what} '{param}' is not supported.", {"what": what, "param": name}
            )
    return kept


def _is_harmless(value: Any, harmless: tuple[Any, ...]) -> bool:
    # Without the types, True would pass as 1 and 0 as False.
    return any(type(value) is type(one) and value == one for one in harmless)
