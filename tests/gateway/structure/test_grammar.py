"""Grammars of answers, also of those after thoughts, followed by llguidance."""

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
from optimist_gateway.core.answer.thinking import FORMATS as THOUGHTS
from optimist_gateway.core.answer.thinking import begin_thinking
from optimist_gateway.core.request import (
    ChoiceContent,
    Content,
    Function,
    JsonContent,
    LarkContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.structure.check_child import check_grammar
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.json_rule import MAX_WHITE_SPACE, allow_white_space
from optimist_gateway.structure.thinking_grammar import after_thinking
from optimist_gateway.structure.tool_format import HERMES, ToolFormat
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
        self._compiled: dict[str, LLMatcher] = {}

    def __call__(self, source: str, text: str) -> bool:
        if source not in self._compiled:
            assert check_grammar(source, self.tokenizer) == ""
            compiled = LLMatcher(self.tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
            self._compiled[source] = compiled
        matcher = self._compiled[source].deep_copy()
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
PREFIX: dict[str, Any] = {"type": "array", "prefixItems": [INTEGER], "items": False}
BOTH = OBJECT | {"allOf": [{"required": ["a"]}, {"properties": {"a": INTEGER}}]}
CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/tree"}}
TREE = OBJECT | {"properties": {"value": INTEGER, "children": CHILDREN}}
TREE |= {"required": ["value"], "additionalProperties": False}
RECURSIVE = {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}
LEAVES = [{"value": 2, "children": []}, {"value": 3}]
SCHEMAS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (OBJECT, [{}, {"a": [1]}], [1, []]),
    ({"enum": ["red", "green", 3]}, ["red", 3], ["blue", 4]),
    (INTEGER | {"minimum": 3, "maximum": 12}, [3, 12], [2, 13]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["d", ""]),
    ({"type": "string", "format": "date"}, ["2026-11-21"], ["2026-13-45", "x"]),
    (PREFIX, [[1]], [["a"], [1, 2]]),
    ({"anyOf": [INTEGER, {"type": "array"}]}, [1, [2]], ["a"]),
    (BOTH, [{"a": 1}], [{}, {"a": "x"}]),
    (OBJECT | {"patternProperties": {"^s_": {"type": "string"}}}, [{"s_a": "x"}], [{"s_a": 1}]),
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


NAMES = OBJECT | {"properties": {"name": INTEGER, "a\nb": INTEGER}}
OPEN: dict[str, dict[str, Any]] = {
    "declared": OBJECT | {"properties": {"name": INTEGER}},
    "required": OBJECT | {"properties": {"name": INTEGER}, "required": ["name"]},
    "joined": {"allOf": [{"properties": {"name": INTEGER}}, OBJECT | {"required": ["x"]}]},
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
    ("a\\\nb", ["a\nb"], ["anb"]),
    (r"\/\\", ["/\\"], ["\\"]),
    ('"[^"]*"', ['"x"'], ["x"]),
    (r"[^\S ]", ["\n"], [" "]),
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
    ("start: %json {", "json"),
    ("start: <[99999]>", "99999"),
    ('start: %json {"$ref": "https://example.org/x"}', "not present"),
    ("start: /" + "(" * 3000 + "a" + ")" * 3000 + "/", "invalid regex"),
    ('start: "' + "a" * MAX_GRAMMAR_BYTES + '"', str(MAX_GRAMMAR_BYTES)),
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


LARK = LarkContent('start: WORD ("," WORD)+ "}" last?\nWORD: /[a-z]{1,6}/\nlast: %json {}')
KINDS = {"plain": THOUGHTS[0], "added": THOUGHTS[0], "special": THOUGHTS[2]}
"""Formats of thoughts by what their tags are in the vocabulary."""


class Thinks:
    """Tells whether an answer that may begin with thoughts has a text; `(` and `)` are the tags."""

    def __init__(self, plain: Backend, kind: str) -> None:
        self.form = KINDS[kind]
        backend = Backend.from_str(plain.to_str())
        tags = [AddedToken(tag, normalized=False) for tag in self.form.tags]
        if kind != "plain":
            (backend.add_special_tokens if kind == "special" else backend.add_tokens)(tags)
        ids = {tag: backend.token_to_id(tag) for tag in self.form.tags}
        self.ids = {tag: one for tag, one in ids.items() if one is not None}
        self.follows = Follows(backend)

    def grammar(self, source: str, prompt: str = "") -> str:
        begun = begin_thinking(self.form, prompt.replace("(", self.form.opening))
        assert begun is not None
        return after_thinking(source, begun, self.ids)

    def __call__(self, source: str, text: str, prompt: str = "") -> bool:
        text = text.replace("(", self.form.opening).replace(")", self.form.closing)
        return self.follows(self.grammar(source, prompt), text)


@pytest.fixture(scope="module", params=KINDS)
def thinks(request: pytest.FixtureRequest, backend: Backend) -> Thinks:
    return Thinks(backend, request.param)


CONTENTS: list[tuple[Content, str, str]] = [
    (JsonContent(NUMBER, is_lenient=False), '{"a": 1}', '{"a": "x"}'),
    (RegexContent("[a-c]+/"), "abc/", "abd/"),
    (LARK, "a,b}{}", "a}"),
]


@pytest.mark.parametrize(("content", "good", "bad"), CONTENTS)
def test_a_form_begins_after_thoughts(
    thinks: Thinks, content: Content, good: str, bad: str
) -> None:
    source = of_content(content)
    for thoughts in ("(Well, {x} <tool_call>\n)", f"({good})\n", "( [ ) \n"):
        assert thinks(source, thoughts + good)
        assert thinks(source, thoughts.removeprefix("(") + good, "(\n")
        assert not thinks(source, thoughts + bad)
        assert not thinks(source, thoughts.removeprefix("(") + bad, "(\n")
    # The model need not think, but what it has begun ends.
    assert thinks(source, good)
    assert not thinks(source, good, "(\n")
    assert not thinks(source, "(" + good)
    # A model that begins with white space would have to think then.
    assert not thinks(source, "\n(a)" + good)
    assert not thinks(source, f"(a) X{good}")


@every_form
def test_calls_come_after_thoughts(thinks: Thinks, form: ToolFormat) -> None:
    call, wrong = written(form, GOOD), written(form, [("f", '{"a": "x"}')])
    thoughts = f"(I say {form.marker} or {wrong})\n\n"
    maybe, required = (of_tools(form, is_required=is_required) for is_required in (False, True))
    for source in (maybe, required):
        assert thinks(source, thoughts + call)
        assert thinks(source, thoughts.removeprefix("(") + call, "(\n")
        assert thinks(source, call)
        assert not thinks(source, thoughts + wrong)
    for text in ("Hello", "{", "", "Hello ((", "\n"):
        assert thinks(maybe, thoughts + "x" + text) == ("((" not in text or not thinks.ids)
        assert not thinks(required, thoughts + "x" + text)
    source = of_tools(form, ANY_OBJECT)
    assert thinks(source, thoughts + '{"x": 1}')
    assert thinks(source, thoughts + call)
    assert not thinks(source, thoughts + "Hello")


def test_a_tag_that_is_a_token_is_not_spelled(backend: Backend) -> None:
    """What reads the answer would take it for the end of thoughts."""
    thinks = Thinks(backend, "special")
    source = thinks.grammar(of_content(RegexContent("[a-c]+")), "(\n")
    matcher = LLMatcher(thinks.follows.tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
    spelled = backend.encode(f"So{thinks.form.closing} Hello").ids
    assert len(spelled) > matcher.try_consume_tokens(spelled) > 0
