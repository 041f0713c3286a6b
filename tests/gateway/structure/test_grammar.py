"""Grammars, followed by llguidance with a small vocabulary."""

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from optimist_common.sampling import MAX_GRAMMAR_BYTES
from optimist_gateway.core.request import (
    ChoiceContent,
    Content,
    Function,
    JsonContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.structure.check_child import check_grammar
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.json_rule import MAX_WHITE_SPACE, allow_white_space
from optimist_gateway.structure.tool_format import HERMES, LLAMA3, ToolFormat
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.fake_scheduler import EOS
from tests.gateway.structure.test_tool_calls import every_form, written

NUMBER: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
NUMBER |= {"required": ["a"], "additionalProperties": False}
FUNCTIONS = [
    Function("f", NUMBER, is_strict=True, index=0),
    Function("look-up", {"type": "object"}, is_strict=False, index=1),
]
ANY_OBJECT = JsonContent({"type": "object"}, is_lenient=False)
GOOD = [("f", '{"a": 1}')]
TWO = [*GOOD, ("look-up", '{"b": {"x": ["}"]}}')]


class Follows:
    """Tells whether a grammar has a text."""

    def __init__(self, backend: Backend) -> None:
        size = backend.get_vocab_size()
        self.tokenizer = LLTokenizer(backend.to_str(), n_vocab=size, eos_token=[EOS])
        self._backend = backend

    def __call__(self, source: str, text: str) -> bool:
        assert check_grammar(source, self.tokenizer) == ""
        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
        token_ids = self._backend.encode(text).ids
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.fixture(scope="module")
def follows(backend: Backend) -> Follows:
    return Follows(backend)


def of_content(content: Content) -> str:
    return grammar(Structure(content), HERMES, {})


def of_tools(
    form: ToolFormat,
    content: Content | None = None,
    *,
    is_required: bool = False,
    is_parallel: bool = True,
    markers: Mapping[str, int] | None = None,
) -> str:
    tools = ToolUse(FUNCTIONS, is_required, is_parallel)
    return grammar(Structure(content, tools), form, markers or {})


OBJECT: dict[str, Any] = {"type": "object"}
INTEGER: dict[str, Any] = {"type": "integer"}
BOOLEANS = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
PREFIX: dict[str, Any] = {"type": "array", "prefixItems": [INTEGER], "items": False}
BOTH = OBJECT | {"allOf": [{"required": ["a"]}, {"properties": {"a": INTEGER}}]}
CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
TREE = OBJECT | {"properties": {"value": INTEGER, "children": CHILDREN}}
TREE |= {"required": ["value"], "additionalProperties": False}
RECURSIVE = {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}
LEAVES = [{"value": 2, "children": []}, {"value": 3}]
SCHEMAS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({}, [1, "a", None, [{}]], []),
    (OBJECT, [{}, {"a": [1]}], [1, []]),
    (NUMBER, [{"a": 5}], [{}, {"a": "5"}, {"a": 1, "b": 2}]),
    ({"type": ["string", "null"]}, ["x", None], [1]),
    ({"enum": ["red", "green", 3]}, ["red", 3], ["blue", 4]),
    ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}]),
    (INTEGER | {"minimum": 3, "maximum": 12}, [3, 12], [2, 13]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["d", ""]),
    ({"type": "string", "format": "date"}, ["2026-11-21"], ["2026-13-45", "x"]),
    (BOOLEANS, [[], [True]], [[1], [True] * 3]),
    (PREFIX, [[1]], [["a"], [1, 2]]),
    ({"anyOf": [INTEGER, {"type": "array"}]}, [1, [2]], ["a"]),
    ({"oneOf": [INTEGER, {"type": "string"}]}, [1, "a"], [[], None]),
    (BOTH, [{"a": 1}], [{}, {"a": "x"}]),
    (OBJECT | {"additionalProperties": INTEGER}, [{"x": 1}], [{"x": "y"}]),
    (OBJECT | {"patternProperties": {"^s_": {"type": "string"}}}, [{"s_a": "x"}], [{"s_a": 1}]),
    (OBJECT | {"minProperties": 1}, [{"a": 1}], [{}]),
    (RECURSIVE, [{"value": 1, "children": LEAVES}], [{"value": 1, "children": [{"value": "x"}]}]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), SCHEMAS, ids=lambda one: str(one)[:40])
def test_json_by_a_schema(
    follows: Follows, schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    source = of_content(JsonContent(schema, is_lenient=False))
    for value in good:
        jsonschema.validate(value, schema)
        assert follows(source, json.dumps(value, ensure_ascii=False))
        assert follows(source, json.dumps(value, ensure_ascii=False, indent=2))
    for value in bad:
        assert not follows(source, json.dumps(value, ensure_ascii=False))


STRING = {"type": "string"}
NAMES = OBJECT | {"properties": {"name": INTEGER, "a\nb": INTEGER}}
OPEN: dict[str, dict[str, Any]] = {
    "declared": OBJECT | {"properties": {"name": INTEGER}},
    "required": OBJECT | {"properties": {"name": INTEGER}, "required": ["name"]},
    "of a kind": OBJECT | {"properties": {"name": INTEGER}, "additionalProperties": STRING},
    "of any type": {"properties": {"name": INTEGER}},
    "joined": {"allOf": [{"properties": {"name": INTEGER}}, OBJECT | {"required": ["x"]}]},
    "one of": {"anyOf": [OBJECT | {"properties": {"name": INTEGER}}, {"type": "null"}]},
    "referred to": {
        "$ref": "#/$defs/a",
        "$defs": {"a": OBJECT | {"properties": {"name": INTEGER}}},
    },
    "a pattern": OBJECT | {"properties": {"name": INTEGER}, "patternProperties": {"^n": INTEGER}},
    "control characters": NAMES,
}


@pytest.mark.parametrize("name", OPEN)
def test_no_other_key_is_a_declared_one_by_escapes(follows: Follows, name: str) -> None:
    schema = OPEN[name]
    for is_lenient in (True, False):
        source = of_content(JsonContent(schema, is_lenient=is_lenient))
        for key in ("x", "na", "names", "Name", "ünï", "東京", "\N{ROCKET}", "", 'q"\\/', "t\ta"):
            for value in ({"x": "a", key: "a"}, {"name": 5, "x": "a", key: "a"}):
                is_good = jsonschema.Draft202012Validator(schema).is_valid(value)
                assert is_good or name in ("a pattern", "required")
                assert follows(source, json.dumps(value, ensure_ascii=False)) is is_good, value
        in_two_ways = [r"a\u000ab", r"a\u000Ab"] if name == "control characters" else []
        for escaped in (r"\u006eame", r"nam\u0065", r"\u006Eame", r"n\u0061me", *in_two_ways):
            for start in ("", '"name": 5, '):
                assert not follows(source, f'{{{start}"x": "a", "{escaped}": "a"}}'), escaped
        assert not follows(source, '{"x": "a", "name": "a"}')


PATTERNS = [
    ("a/b", ["a/b"], ["a"]),
    (r"\d{3}-\d{4}", ["123-4567"], ["1-2"]),
    ("^(yes|no)$", ["yes", "no"], ["maybe", "yes "]),
    ("a\nb", ["a\nb"], ["a b"]),
    ("a\\\nb", ["a\nb"], ["anb"]),
    (r"\/\\", ["/\\"], ["\\"]),
    ('"[^"]*"', ['"x"'], ["x"]),
    ("(a+)+b", ["aaab"], ["aaa"]),
    (r"[^\S ]", ["\n"], [" "]),
    ("日+", ["日日"], ["本"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_text_by_a_regex(follows: Follows, pattern: str, good: list[str], bad: list[str]) -> None:
    source = of_content(RegexContent(pattern))
    for text in good:
        assert re.fullmatch(pattern, text)
        assert follows(source, text)
    assert not any(follows(source, text) for text in bad)


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
@settings(max_examples=30, deadline=None)
def test_one_of_several_texts(follows: Follows, choices: list[str]) -> None:
    source = of_content(ChoiceContent(choices))
    assert all(follows(source, choice) for choice in choices)
    assert not follows(source, "".join(choices) + "!")


@pytest.mark.parametrize("is_required", [True, False])
@every_form
def test_calls_have_arguments_by_schemas(
    follows: Follows, form: ToolFormat, is_required: bool
) -> None:
    source = of_tools(form, is_required=is_required)
    assert follows(source, written(form, GOOD))
    assert follows(source, written(form, GOOD, " "))
    assert follows(source, written(form, TWO)) == (form.separator is not None)
    assert not follows(source, written(form, [("f", '{"a": "x"}')]))
    assert not follows(source, written(form, [("f", '{"a": 1, "b": 2}')]))
    assert not follows(source, written(form, GOOD)[:-1])


@every_form
def test_text_is_let_through_unless_a_call_is_required(follows: Follows, form: ToolFormat) -> None:
    texts = ["Hello", '{"a": 1}', "{", 'x {"name": "f"', "<tool", '{"name": "Ann"}', "\n", "東"]
    for text in (*texts, "Well: " + written(form, GOOD)):
        assert follows(of_tools(form), text), text
        assert not follows(of_tools(form, is_required=True), text)


@every_form
def test_calls_that_must_not_be_parallel_or_beside_text(follows: Follows, form: ToolFormat) -> None:
    source = of_tools(form, is_parallel=False)
    assert follows(source, written(form, GOOD))
    assert not follows(source, written(form, TWO))
    source = of_tools(form, ANY_OBJECT)
    assert follows(source, '{"x": 3}')
    assert follows(source, written(form, GOOD))
    assert not follows(source, "Hello")


def test_markers_that_are_special_tokens(follows: Follows) -> None:
    source = of_tools(HERMES, markers={"<tool_call>": EOS, "</tool_call>": EOS})
    assert f"<[{EOS}]>" in source
    assert '"<tool_call>"' not in source
    assert follows(source, "<tool_call> is text here")
    assert follows(of_tools(LLAMA3), "<tool_call> is text here")


def test_markers_that_were_added_to_a_vocabulary(backend: Backend) -> None:
    """Those of Qwen are no special tokens, but for llguidance no text either."""
    added = Backend.from_str(backend.to_str())
    added.add_tokens(
        [AddedToken(part, normalized=False) for part in ("<tool_call>", "</tool_call>")]
    )
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=added), {})  # type: ignore[no-untyped-call]
    markers = tokenizer.markers
    assert [part for part in HERMES.parts if part in markers] == ["<tool_call>", "</tool_call>"]
    follows = Follows(added)
    for text in (written(HERMES, GOOD), "Well: " + written(HERMES, GOOD)):
        assert follows(of_tools(HERMES, markers=markers), text)
        assert not follows(of_tools(HERMES), text)


BAD_GRAMMARS = [
    ("start: /(?=a)b/", "look-around"),
    (r"start: /(a)\1/", "backreferences"),
    ("start: %json {", "json"),
    ("start: x", "x"),
    ('start: "a" & "b"', "&"),
    ("start: <[99999]>", "99999"),
    ('start: %json {"$ref": "https://example.org/x"}', "not present"),
    ("start: /" + "(" * 3000 + "a" + ")" * 3000 + "/", "invalid regex"),
    ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested"),
    ('start: "' + "a" * MAX_GRAMMAR_BYTES + '"', str(MAX_GRAMMAR_BYTES)),
    ("start: /a/\ufffd\ufffd", ""),
]


def test_white_space_of_json_is_bounded_until_it_is_allowed(follows: Follows) -> None:
    bounded = of_content(JsonContent({"type": "object"}, is_lenient=False))
    most, more = ("{" + " " * number + "}" for number in (MAX_WHITE_SPACE, MAX_WHITE_SPACE + 1))
    assert follows(bounded, most)
    assert not follows(bounded, more)
    assert follows(allow_white_space(bounded), more)


@pytest.mark.parametrize(("source", "reason"), BAD_GRAMMARS, ids=lambda text: text[:20])
def test_a_wrong_grammar_is_explained_in_a_line(follows: Follows, source: str, reason: str) -> None:
    verdict = check_grammar(source, follows.tokenizer)
    assert 0 < len(verdict) <= 300
    assert reason in verdict
    assert "\n" not in verdict
