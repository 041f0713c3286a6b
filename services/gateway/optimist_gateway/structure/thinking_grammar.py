"""Grammars of answers that begin with thoughts."""

import json
import re
from collections.abc import Callable

from optimist_gateway.core.answer.thinking import ThinkingReader

MAX_SPACE = 8
"""Most white space between thoughts and an answer of a form."""
_TEXT = r"(.|\n)*"
TEXT_RULE = f"TEXT: /{_TEXT}/"
"""How grammars of answers name any text."""


def after_thinking(
    source: str, thinking: ThinkingReader, token_id: Callable[[str], int | None]
) -> str:
    """Returns a grammar of thoughts, if the model has any, and an answer of another grammar.

    Tags that are special tokens, of which `token_id` knows the ids, are these tokens. Others are
    text: then thoughts are one lexeme, which ends with the first closing tag.
    """
    form, is_inside = thinking.form, thinking.is_inside
    opening, closing = (re.escape(tag).replace("/", r"\/") for tag in form.tags)
    begin_id, end_id = map(token_id, form.tags)
    if begin_id is not None and end_id is not None:
        thoughts = f"thoughts: <[{begin_id}]>{'?' * is_inside} THOUGHT <[{end_id}]>"
    else:
        begin = "" if is_inside else opening
        thoughts = f"thoughts[lazy]: /{begin}{_TEXT}/ {json.dumps(form.closing)}"
        if not is_inside:
            # Or they could be the text in which a call begins.
            source = source.replace(TEXT_RULE, f"{TEXT_RULE} & ~/{opening}{_TEXT}/")
    rules = (
        f"start: {'thoughts SPACE?' if is_inside else '(thoughts SPACE?)?'} answer",
        thoughts,
        f"THOUGHT: /{_TEXT}/ & ~/{_TEXT}{closing}{_TEXT}/",
        rf"SPACE: /[ \n\r\t]{{1,{MAX_SPACE}}}/",
        f"answer: %lark {{\n{source}\n}}\n",
    )
    return "\n".join(rules)
