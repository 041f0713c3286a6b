"""How models write tool calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SPACE = r"[ \n\r\t]"
MAX_PART_SPACE = 8
"""Most white space between two parts of a tool call, or between thoughts and an answer."""


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """Literal parts of the calls in an answer; between any two of them there may be white space.

    An answer with calls is `opening call (separator call)* closing`, and a call is
    `before_name NAME after_name ARGUMENTS end`, where ARGUMENTS is a JSON object.
    """

    name: str
    opening: tuple[str, ...] = ()
    before_name: tuple[str, ...]
    quote: str = '"'
    """What is right before and after the name."""
    after_name: tuple[str, ...] = (",", '"arguments"', ":")
    end: tuple[str, ...] = ("}",)
    separator: tuple[str, ...] | None
    """None if there is one call at most."""
    closing: tuple[str, ...] = ()
    follows_text: bool = False
    """Whether text may precede the calls; then the first part marks where they begin."""
    in_template: bool = True
    """Whether the chat template describes the tools; else the system message does."""

    @property
    def marker(self) -> str:
        """The part with which calls begin."""
        return (self.opening + self.before_name)[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts."""
        between = self.separator or ()
        of_call = self.before_name + self.after_name + self.end
        return self.opening + of_call + between + self.closing


_JSON_NAME = ("{", '"name"', ":")

HERMES = ToolFormat(
    name="hermes",
    before_name=("<tool_call>", *_JSON_NAME),
    end=("}", "</tool_call>"),
    separator=(),
    follows_text=True,
)
LLAMA3 = ToolFormat(
    name="llama3", before_name=_JSON_NAME, after_name=(",", '"parameters"', ":"), separator=None
)
MISTRAL = ToolFormat(
    name="mistral",
    opening=("[TOOL_CALLS]", "["),
    before_name=_JSON_NAME,
    separator=(",",),
    closing=("]",),
    follows_text=True,
)
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    before_name=("[TOOL_CALLS]",),
    quote="",
    after_name=("[ARGS]",),
    end=(),
    separator=(),
    follows_text=True,
)
JSON = ToolFormat(
    name="json",
    opening=("{", '"tool_calls"', ":", "["),
    before_name=_JSON_NAME,
    separator=(",",),
    closing=("]", "}"),
    in_template=False,
)
FORMATS: Mapping[str, ToolFormat] = {
    form.name: form for form in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, JSON)
}
AUTO = "auto"
ToolCallFormat = Literal["auto", "hermes", "llama3", "mistral", "mistral_args", "json"]
"""What names a format."""


def tool_format(name: str, chat_template: str) -> ToolFormat:
    """Returns a format of `FORMATS` by name, or for `auto` the one that a chat template uses.

    Of a template that is not known here it is JSON, which the system message describes.
    """
    if name != AUTO:
        return FORMATS[name]
    if re.search(r"\btools\b", chat_template) is None:
        return JSON
    if "[TOOL_CALLS]" in chat_template:
        return MISTRAL_ARGS if "[ARGS]" in chat_template else MISTRAL
    if "<tool_call>" in chat_template:
        # Some models write XML between the same marks.
        is_xml = "<function=" in chat_template or "<arg_key>" in chat_template
        return JSON if is_xml else HERMES
    if "<|python_tag|>" in chat_template or "Environment: ipython" in chat_template:
        return LLAMA3
    return JSON
