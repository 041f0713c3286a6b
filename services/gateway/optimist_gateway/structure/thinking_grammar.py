"""Grammars of answers that begin with thoughts."""

import json
import re
from collections.abc import Mapping

from optimist_gateway.core.answer.thinking import ThinkingReader

ANY_TEXT = r"(.|\n)*"
SPACE = r"[ \n\r\t]"
MAX_PART_SPACE = 8
"""Most white space between two parts of a tool call, or between thoughts and an answer."""
TEXT_RULE = f"TEXT: /{ANY_TEXT}/"
SPACE_RULE = f"SPACE: /{SPACE}{{1,{MAX_PART_SPACE}}}/"
"""How grammars of answers name any text, and white space."""


def literal(text: str) -> str:
    """Returns the regular expression of a text, as it may stand between slashes."""
    return re.escape(text).replace("/", r"\/")


def after_thinking(source: str, thinking: ThinkingReader, markers: Mapping[str, int]) -> str:
    """Returns a grammar of thoughts, if the model has any, and an answer of another grammar.

    Tags that are special tokens, of which the markers have the ids, are these tokens. Others are
    text: then thoughts are one lexeme, which ends with the first closing tag.
    """
    form, is_inside = thinking.form, thinking.is_inside
    opening, closing = map(literal, form.tags)
    begin_id, end_id = map(markers.get, form.tags)
    if begin_id is not None and end_id is not None:
        thoughts = f"thoughts: <[{begin_id}]>{'?' * is_inside} THOUGHT <[{end_id}]>"
    else:
        begin = "" if is_inside else opening
        thoughts = f"thoughts[lazy]: /{begin}{ANY_TEXT}/ {json.dumps(form.closing)}"
        if not is_inside:
            # Or they could be the text in which a call begins.
            source = source.replace(TEXT_RULE, f"{TEXT_RULE} & ~/{opening}{ANY_TEXT}/")
    rules = (
        f"start: {'thoughts SPACE?' if is_inside else '(thoughts SPACE?)?'} answer",
        thoughts,
        f"THOUGHT: /{ANY_TEXT}/ & ~/{ANY_TEXT}{closing}{ANY_TEXT}/",
        SPACE_RULE,
        f"answer: %lark {{\n{source}\n}}\n",
    )
    return "\n".join(rules)
