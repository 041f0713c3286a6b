"""What a model thinks before it answers is separated, however the text is cut."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optimist_gateway.core.answer.answer import Answer
from optimist_gateway.core.answer.detokenize import Detokenizer
from optimist_gateway.core.answer.output import Usage
from optimist_gateway.core.answer.thinking import (
    FORMATS,
    ThinkingFormat,
    ThinkingReader,
    begin_thinking,
    thinking_format,
)
from tests.gateway.core.test_answer import END, decode, play

THINK = FORMATS[0]
TEXTS = st.lists(
    st.sampled_from([*"ab \n<", "<think>", "</think>", "<thi", "nk>", "</th", "<tool_call>", "東"]),
    max_size=12,
).map("".join)


def reader(prompt: str = "", form: ThinkingFormat = THINK) -> ThinkingReader:
    begun = begin_thinking(form, prompt)
    assert begun is not None
    return begun


def read(begun: ThinkingReader, *pieces: str) -> tuple[str, str]:
    """Returns thoughts and content."""
    *others, last = pieces or ("",)
    parts = [*map(begun.push, others), begun.push(last, is_last=True)]
    return "".join(thought for thought, _ in parts), "".join(content for _, content in parts)


@given(st.sampled_from(["", "<think>\n"]), TEXTS, st.lists(st.integers(0, 99), max_size=8))
@example("", "<think>a </think>\n\nb", [9, 12, 18])
@example("", "<think><think> <think>a</think>b", [7, 14])
@example("<think>\n", "<think>a</think>b", [7])
def test_cuts_change_nothing(prompt: str, text: str, places: list[int]) -> None:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    pieces = [text[start:end] for start, end in pairwise(ends)]
    whole = read(reader(prompt), text)
    assert read(reader(prompt), *pieces) == read(reader(prompt), *text) == whole
    # Nothing is lost but the tags and white space around thoughts.
    kept = whole[0] + whole[1]
    assert not {*text} - {*kept} - {*"<think>/ \n"}
    if not whole[0] and not prompt and "<think>" not in text:
        assert kept == text


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.opening)
def test_tags_of_every_family(form: ThinkingFormat) -> None:
    template = (
        f"{{% if thinks %}}{form.opening}{{% endif %}}{{{{ x.split('{form.closing}')[-1] }}}}"
    )
    assert thinking_format(template, []) is form
    found = thinking_format("{{ x }}", ["<s>", form.opening, form.closing])
    # Vocabularies have tags also of models that do not think.
    assert found == replace(form, is_usual=False)
    assert thinking_format("{{ x }}", [form.opening]) is None
    text = f"{form.opening}a{form.closing}{form.between}b"
    between = form.between.strip()
    assert read(reader("", form), *text) == ("a", between + "b")
    assert read(reader(form.opening, form), *text) == ("a", between + "b")


def usage_of(prompt: str, text: str, width: int, stop: tuple[str, ...] = ()) -> Usage:
    begun = begin_thinking(THINK, prompt)
    state = Answer(5, Detokenizer(decode, {END}), stop, 0, thinking=begun)  # type: ignore[arg-type]
    pieces = play(state, text, width)
    usage = state.usage()
    assert sum(len(piece.token_ids) for piece in pieces) == usage.completion_tokens
    counted = sum(piece.num_thinking_tokens for piece in pieces)
    # Of an opening tag, which the model writes, those before its last token are in earlier pieces.
    least = usage.reasoning_tokens - (0 if prompt else max(text.find(">"), 0))
    assert least <= counted <= usage.reasoning_tokens
    return usage


@given(st.sampled_from(["", "<think>\n"]), TEXTS, st.integers(1, 20), st.booleans())
def test_tokens_are_counted_up_to_the_closing_tag(
    prompt: str, text: str, width: int, has_stop: bool
) -> None:
    usage = usage_of(prompt, text, width, ("zzz",) if has_stop else ())
    shown = text.lstrip(" \n")
    is_opened = shown.startswith("<think>")
    if not is_opened and not prompt:
        assert usage.reasoning_tokens == 0
    elif "</think>" not in text:
        # All of it, and the token that ends it.
        assert usage.reasoning_tokens == len(text) + 1 == usage.completion_tokens
    else:
        assert usage.reasoning_tokens == text.index("</think>") + len("</think>")
