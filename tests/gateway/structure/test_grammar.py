"""Grammars of answers, followed by llguidance; schemas are bounded before they become grammars."""

import json
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
    Structure,
    ToolUse,
)
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.json_schema import (
    MAX_DEPTH,
    MAX_WHITE_SPACE,
    allow_white_space,
    check_json,
)
from optimist_gateway.structure.tool_format import HERMES, ToolFormat
from optimist_gateway.structure.verdicts import check_grammar
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.fake_scheduler import EOS
from tests.gateway.structure.test_tool_calls import written

NUMBER: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
NUMBER |= {"required": ["a"], "additionalProperties": False}
FUNCTIONS = [
    Function("f", NUMBER, is_strict=True, index=0),
    Function("look-up", {"type": "object"}, is_strict=False, index=1),
]
GOOD = [("f", '{"a": 1}')]


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


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
@settings(max_examples=30, deadline=None)
def test_one_of_several_texts(follows: Follows, choices: list[str]) -> None:
    source = of_content(ChoiceContent(choices))
    assert all(follows(source, choice) for choice in choices)
    assert not follows(source, "".join(choices) + "!")


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


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_integers_of_json_may_be_bounded() -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "x", "d": -5}}
    check_json(value, range(-5, 2))
    check_json(nested(MAX_DEPTH - 2))
    with pytest.raises(ValueError, match="has an integer not in -4 to 1"):
        check_json(value, range(-4, 2))
    check_json([-(10**400)])
