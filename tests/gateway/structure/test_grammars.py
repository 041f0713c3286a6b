"""Grammars are checked in a process that some of them end."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer as Backend

from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import (
    ChoiceContent,
    Function,
    JsonContent,
    LarkContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.core.schedulers import ModelDescription
from optimist_gateway.structure import verdicts as verdicts_module
from optimist_gateway.structure.grammars import Grammars
from optimist_gateway.structure.tool_format import HERMES
from optimist_gateway.structure.verdicts import Verdicts
from optimist_gateway.text.tokenizer import load_tokenizer
from optimist_worker.model.grammar import Masks, unpack_bitmask
from optimist_worker.model.matcher import GrammarRow
from tests.gateway.fake_scheduler import EOS, MAX_MODEL_LEN

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(backend: Backend) -> ModelDescription:
    return ModelDescription(backend.get_vocab_size(), MAX_MODEL_LEN, (EOS,))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grammars(model_directory: Path) -> AsyncIterator[Grammars]:
    """For all tests: its process takes long to start, and starts again where it was ended."""
    made = Grammars(str(model_directory), HERMES, {})
    yield made
    await made.stop()


def of_json(schema: dict[str, Any]) -> Structure:
    return Structure(JsonContent(schema, is_lenient=False))


LETTERS = Structure(RegexContent("[a-z]+"))


async def refusal(grammars: Grammars, structure: Structure, model: ModelDescription) -> FieldError:
    with pytest.raises(FieldError) as caught:
        await grammars.grammar(structure, model)
    return caught.value


async def test_a_good_grammar_is_checked_once(grammars: Grammars, model: ModelDescription) -> None:
    first = await grammars.grammar(of_json({"type": "object", "title": "A"}), model)
    assert first.startswith("start: %json ")
    await grammars.stop()
    # The process is gone, and the verdict is still known.
    assert await grammars.grammar(of_json({"type": "object", "title": "B"}), model) == first


def of_tools(*functions: Function, is_required: bool = False) -> Structure:
    return Structure(tools=ToolUse(functions, is_required, is_parallel=True))


def of_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


GOOD = Function("good", of_object(a={"type": "integer"}), is_strict=False, index=99)
LOOK_AHEAD = of_object(a={"type": "string", "pattern": "^(?!a)b$", "maxLength": 7}, b={})


async def test_a_strict_function_that_cannot_be_followed_is_named(
    grammars: Grammars, model: ModelDescription
) -> None:
    # A format counts for texts; of which kind `a` is, nothing says.
    unknown = of_object(a={"format": "x"})
    for schema, reason in ((unknown, "format: x"), (LOOK_AHEAD, "look-around")):
        structure = of_tools(GOOD, Function("f", schema, is_strict=True, index=7))
        error = await refusal(grammars, structure, model)
        assert error.path == ("tools", 7, "parameters")
        assert error.message.startswith("f: ")
        assert reason in error.message


async def test_only_what_cannot_be_followed_is_left_out(
    grammars: Grammars, model: ModelDescription
) -> None:
    source = await grammars.grammar(of_tools(GOOD, replace(GOOD, parameters=LOOK_AHEAD)), model)
    assert "(?!" not in source
    assert '"maxLength": 7' in source
    assert '"a": {"type": "integer"}' in source


def chain(number: int) -> str:
    rules = [f"R{index}: R{index + 1} R{index + 1}" for index in range(number)]
    return "\n".join(["start: R0", *rules, f'R{number}: "a"'])


def intersection() -> str:
    regexes = " & ".join(f"/([ab]*a[ab]{{{count}}}c)*/" for count in range(3, 60))
    return f"start: A\nA: {regexes}"


OPTIONAL: dict[str, Any] = {f"p{index}": {} for index in range(3000)}
CHOICES = [
    {"anyOf": [{"properties": {f"a{i}_{k}": {"type": "integer"}}} for k in range(8)]}
    for i in range(6)
]
BOMBS: dict[str, Structure] = {
    "terminals that double": Structure(LarkContent(chain(2000))),
    "an intersection": Structure(LarkContent(intersection())),
    "thousands of optional properties": of_json({"type": "object", "properties": OPTIONAL}),
    "a schema of many choices": of_json({"allOf": CHOICES}),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_harms_nobody(grammars: Grammars, model: ModelDescription, name: str) -> None:
    async with asyncio.timeout(60):
        error = await refusal(grammars, BOMBS[name], model)
        assert await grammars.grammar(LETTERS, model)
        # It is not tried again.
        await grammars.stop()
        assert (await refusal(grammars, BOMBS[name], model)).message == error.message
    assert error.path == ("structure",)


DEEP = {f"x{n}": {"type": "array", "items": {"$ref": f"#/$defs/x{n + 1}"}} for n in range(300)}
LONG_LIST = {"type": "array", "maxItems": 1_000_000, "items": {"type": "string"}}
QUICK: dict[str, Structure] = {
    "nested repetitions": Structure(RegexContent("((a{1,100}){1,100}){1,100}")),
    "a wide alternation": Structure(
        RegexContent("|".join(f"[ab]*a[ab]{{{n}}}" for n in range(5, 90)))
    ),
    "a large enumeration": of_json({"enum": [f"value {index}" for index in range(3000)]}),
    "a deep schema": of_json({"$ref": "#/$defs/x0", "$defs": DEEP | {"x300": {"type": "integer"}}}),
    "a count beyond all texts": of_json({"type": "string", "maxLength": 2**63 - 1}),
    "as many choices as a request may have": Structure(
        ChoiceContent([f"choice {number}" for number in range(4000)])
    ),
    "a recursive schema": of_json({"type": "array", "items": {"$ref": "#"}}),
    "long lists": of_json(LONG_LIST),
}


async def test_a_lenient_schema_that_is_too_complex_is_any_object(
    grammars: Grammars, model: ModelDescription
) -> None:
    schema = {"type": "object", "allOf": CHOICES}
    bomb = Function("bomb", schema, is_strict=False, index=0)
    source = await grammars.grammar(of_tools(bomb, GOOD), model)
    assert '"a": {"type": "integer"}' in source
    assert "a1_1" not in source
    form = await grammars.grammar(Structure(JsonContent(schema, is_lenient=True)), model)
    assert "a1_1" not in form
    assert '"type": "object"' in form


def tool(index: int) -> dict[str, Any]:
    """Returns a schema of about 2 KiB."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "description": "What is looked for, in a few words."},
        {"type": "integer", "minimum": 0, "maximum": 1000, "default": 10},
        {"type": "array", "items": {"type": "string", "enum": ["alpha", "beta", f"x{index}"]}},
        of_object(name={"type": "string"}, is_open={"type": "boolean"}),
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        {"type": "string", "pattern": "^[a-z]{1,20}$"},
    ]
    names = [f"field_{index}_{number}" for number in range(24)]
    properties = {name: kinds[number % 6] for number, name in enumerate(names)}
    return of_object(**properties) | {"required": names[:3]}


SMALL = of_object(
    path={"type": "string", "description": "Where it is."},
    options={"type": "object", "properties": {"depth": {"type": "integer"}}},
    kinds={"type": "array", "items": {"enum": ["file", "folder"]}},
)
CLOSED = of_object(path={"type": "string"}) | {"additionalProperties": False, "required": ["path"]}


# vllm-project/vllm#27921: many tools.
@pytest.mark.parametrize(
    ("number", "schema", "is_strict", "is_required"),
    [
        (20, SMALL, False, False),
        (128, SMALL, False, True),
        (128, CLOSED, True, False),
        (128, LOOK_AHEAD, False, False),
        (300, {"type": "object"}, False, False),
    ],
)
async def test_many_tools(
    grammars: Grammars,
    model: ModelDescription,
    number: int,
    schema: dict[str, Any],
    is_strict: bool,
    is_required: bool,
) -> None:
    functions = [Function(f"f{index}", schema, is_strict, index) for index in range(number)]
    structure = of_tools(*functions, replace(GOOD, index=number), is_required=is_required)
    source = await grammars.grammar(structure, model)
    assert all(f'"\\"f{index}\\""' in source for index in range(number))
    assert '"a": {"type": "integer"}' in source


async def test_of_tools_that_are_too_complex_together_the_largest_are_loosened(
    grammars: Grammars, model: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Verdicts.problem

    async def problem(self: Verdicts, grammar: str) -> str:
        # How long it takes depends on the machine.
        return "is too complex" if len(grammar) > 20_000 else await found(self, grammar)

    monkeypatch.setattr(Verdicts, "problem", problem)
    strict = Function("strict", tool(9), is_strict=True, index=9)
    functions = [replace(strict, parameters=tool(n), is_strict=False, index=n) for n in range(9)]
    source = await grammars.grammar(of_tools(*functions, GOOD, strict), model)
    assert '"a": {"type": "integer"}' in source
    followed = [n for n in range(10) if f"field_{n}_" in source]
    assert followed[-1] == 9
    assert 2 < len(followed) < 10
    many = [replace(strict, parameters=tool(n), index=n) for n in range(9)]
    assert (await refusal(grammars, of_tools(*many, GOOD), model)).path == ("tools",)


@pytest.mark.parametrize("name", QUICK)
async def test_what_looks_hard_is_taken(
    grammars: Grammars, model: ModelDescription, name: str
) -> None:
    assert await grammars.grammar(QUICK[name], model)


async def test_what_cannot_be_taken_back_or_fills_a_row_is_refused(
    grammars: Grammars, model: ModelDescription
) -> None:
    counted = Structure(LarkContent('start: a "!"\na[max_tokens=5]: /[a-z]+/'))
    assert "rollback not supported" in (await refusal(grammars, counted, model)).message
    wide = "|".join(f'"{chr(0x4E00 + number)}"' for number in range(10_400))
    error = await refusal(grammars, Structure(LarkContent(f"start: {wide}")), model)
    assert "max is 10000" in error.message


async def test_a_model_may_have_fewer_tokens_than_its_tokenizer(
    grammars: Grammars, model: ModelDescription
) -> None:
    fewer = replace(model, vocab_size=model.vocab_size - 11)
    assert await grammars.grammar(LETTERS, fewer)
    assert await grammars.grammar(LETTERS, model)


@pytest_asyncio.fixture(loop_scope="module")
async def own(model_directory: Path) -> AsyncIterator[Grammars]:
    """Of the test alone."""
    made = Grammars(str(model_directory), HERMES, {})
    yield made
    await made.stop()


async def test_verdicts_are_forgotten_in_the_end(
    own: Grammars, model: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts_module, "MAX_CHECKED", 20)
    for index in range(30):
        await own.grammar(Structure(RegexContent(f"a{{{index}}}")), model)
    assert len(own._verdicts._verdicts) == 20


async def test_a_slow_moment_is_not_held_against_a_grammar(
    own: Grammars, model: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(verdicts_module, "_SECONDS", 1e-6)
        slow.setattr(verdicts_module, "_DOUBT_SECONDS", 0.0)
        assert "too complex" in (await refusal(own, LETTERS, model)).message
    await own.stop()
    assert await own.grammar(LETTERS, model)


async def test_a_tokenizer_in_another_form_follows_grammars(
    tmp_path: Path, backend: Backend, model: ModelDescription
) -> None:
    """GPT-2's has two files."""
    backend.model.save(str(tmp_path))
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = load_tokenizer(str(tmp_path))
    text = "def main(argument):\n"
    expected = backend.encode(text, add_special_tokens=False).ids
    assert (await tokenizer.encode(text, add_special_tokens=False)).token_ids == expected
    grammars = Grammars(str(tmp_path), HERMES, {})
    assert await grammars.grammar(LETTERS, model)
    await grammars.stop()
    # The worker follows them by the same tokenizer.
    ends: Any = SimpleNamespace(vocab_size=model.vocab_size, eos_token_ids=[EOS])
    followed = Masks(str(tmp_path), ends)
    followed.start(0, 'start: "main"')
    (mask,) = unpack_bitmask(followed.pack([GrammarRow(0, [])]), model.vocab_size)
    assert {backend.id_to_token(one) for one in mask.nonzero()[:, 0].tolist()} <= {
        "m",
        "ma",
        "main",
    }


async def test_a_model_without_an_end_has_no_grammars(
    model_directory: Path, model: ModelDescription
) -> None:
    grammars = Grammars(str(model_directory), HERMES, {})
    endless = replace(model, eos_token_ids=())
    error = await refusal(grammars, LETTERS, endless)
    assert error.message == "this model cannot follow grammars: the model names no end token"
    await grammars.stop()
