"""Formats of tool calls, found by chat templates, and the reader of calls of each format."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimist_gateway.structure.tool_calls import ContentDelta, Delta, ToolCallReader
from optimist_gateway.structure.tool_format import FORMATS, HERMES, ToolFormat, tool_format

NAMES = ("look_up", "look-up", "f")
Call = tuple[str, str]
Message = tuple[str, list[Call]]

texts = st.text(st.sampled_from('ab {}[]"\\:,\n<>/tool_call'), max_size=30)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(texts, values, max_size=3).map(json.dumps)),
    min_size=1,
    max_size=3,
)
forms = st.sampled_from(sorted(FORMATS.values(), key=lambda form: form.name))
spaces = st.sampled_from(["", " ", "\n", " \n  "])


def written(form: ToolFormat, calls: list[Call], space: str = "") -> str:
    """Writes calls as a model does."""
    quoted = [
        [*form.before_name, form.quote + name + form.quote, *form.after_name, arguments, *form.end]
        for name, arguments in calls
    ]
    between = space + "".join(part + space for part in form.separator or ())
    opening = "".join(part + space for part in form.opening)
    closing = "".join(space + part for part in form.closing)
    return opening + between.join(space.join(parts) for parts in quoted) + closing


def joined(deltas: list[Delta]) -> Message:
    content = ""
    calls: list[Call] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.name is not None:
            assert delta.index == len(calls)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return content, calls


def read(form: ToolFormat, *pieces: str) -> Message:
    reader = ToolCallReader(form, NAMES)
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    return joined(deltas + reader.finish())


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@settings(deadline=None)
@given(forms, calls, spaces, st.lists(st.integers(0, 10_000), max_size=12))
def test_cuts_change_no_calls(
    form: ToolFormat, made: list[Call], space: str, places: list[int]
) -> None:
    made = made if form.separator is not None else made[:1]
    assert read(form, *cut(written(form, made, space), places)) == ("", made)


@settings(deadline=None)
@given(forms, texts, calls, texts, st.lists(st.integers(0, 10_000), max_size=12))
def test_any_text_is_read_the_same_however_it_is_cut(
    form: ToolFormat, before: str, made: list[Call], after: str, places: list[int]
) -> None:
    for text in (before, before + written(form, made) + after, written(form, made)[:-3]):
        whole = read(form, text)
        assert read(form, *cut(text, places)) == whole
        assert read(form, *text) == whole


@settings(deadline=None)
@given(forms, st.lists(texts, max_size=6))
def test_text_without_calls_is_content_unchanged(form: ToolFormat, pieces: list[str]) -> None:
    # No name that is known is in it.
    assert read(form, *pieces) == ("".join(pieces), [])


@settings(deadline=None)
@given(texts, calls)
@example("<tool_call>", [("f", "{}")])
@example('<tool_call>{"name": "unknown", ', [("f", "{}")])
def test_text_before_calls_loses_its_last_white_space(before: str, made: list[Call]) -> None:
    assert read(HERMES, before + " \n" + written(HERMES, made)) == (before.rstrip(" \n"), made)


def test_a_call_is_no_reason_to_wait_for_ever() -> None:
    reader = ToolCallReader(HERMES, NAMES)
    deltas = [delta for _ in range(100) for delta in reader.push("<tool_call>" + " " * 100)]
    content, _ = joined(deltas)
    assert content.startswith("<tool_call>")
    assert len(content) > 10_000


QWEN = '{% if tools %}...<tool_call>\\n{"name": <function-name>, "arguments": ...}{% endif %}'
TEMPLATES = [
    ("", "json"),
    (QWEN, "hermes"),
    (QWEN + "<function=example>", "json"),
    ("{% if tools is not none %}[TOOL_CALLS] [{% endif %}", "mistral"),
    ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS]{% endif %}", "mistral_args"),
    ("{% if tools %}Environment: ipython{% endif %}", "llama3"),
]


@pytest.mark.parametrize(("template", "name"), TEMPLATES)
def test_a_template_has_a_format_unless_a_name_decides(template: str, name: str) -> None:
    assert tool_format("auto", template) is FORMATS[name]
    assert all(tool_format(other, template) is FORMATS[other] for other in FORMATS)
