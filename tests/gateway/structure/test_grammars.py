"""Grammars are checked in a process that some of them end; what is not strict is loosened."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer as Backend

from optimist_gateway.core.error import FieldError
from optimist_gateway.core.request import (
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


def of_tools(*functions: Function, is_required: bool = False) -> Structure:
    return Structure(tools=ToolUse(functions, is_required, is_parallel=True))


def of_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


async def refusal(grammars: Grammars, structure: Structure, model: ModelDescription) -> FieldError:
    with pytest.raises(FieldError) as caught:
        await grammars.grammar(structure, model)
    return caught.value


LETTERS = Structure(RegexContent("[a-z]+"))
GOOD = Function("good", of_object(a={"type": "integer"}), is_strict=False, index=99)


CHOICES = [
    {"anyOf": [{"properties": {f"a{i}_{k}": {"type": "integer"}}} for k in range(8)]}
    for i in range(6)
]
INTERSECTION = " & ".join(f"/([ab]*a[ab]{{{count}}}c)*/" for count in range(3, 60))


async def test_a_bomb_harms_nobody_and_is_not_tried_again(
    grammars: Grammars, model: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts_module, "_DOUBT_SECONDS", 600.0)
    for bomb in (
        of_json({"allOf": CHOICES}),
        Structure(LarkContent(f"start: A\nA: {INTERSECTION}")),
    ):
        error = await refusal(grammars, bomb, model)
        assert error.path == ("structure",)
        assert await grammars.grammar(LETTERS, model)
    assert "complex" in error.message
    # The process is gone, and its verdicts are still known.
    await grammars.stop()
    assert (await refusal(grammars, bomb, model)).message == error.message
    assert await grammars.grammar(LETTERS, model)
    assert grammars._verdicts._process is None


def tool(index: int) -> dict[str, Any]:
    """Returns a schema of about 2 KiB."""
    kinds: list[dict[str, Any]] = [
        {"type": "array", "items": {"type": "string", "enum": ["alpha", "beta", f"x{index}"]}},
        of_object(name={"type": "string"}, is_open={"type": "boolean"}),
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    ]
    return of_object(**{f"field_{index}_{number}": kinds[number % 3] for number in range(24)})


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


async def test_what_cannot_be_taken_back_or_fills_a_row_is_refused(
    grammars: Grammars, model: ModelDescription
) -> None:
    counted = Structure(LarkContent('start: a "!"\na[max_tokens=5]: /[a-z]+/'))
    assert "rollback not supported" in (await refusal(grammars, counted, model)).message
    wide = "|".join(f'"{chr(0x4E00 + number)}"' for number in range(10_400))
    error = await refusal(grammars, Structure(LarkContent(f"start: {wide}")), model)
    assert "max is 10000" in error.message


async def test_a_slow_moment_is_not_held_against_a_grammar(
    grammars: Grammars, model: ModelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grammars.stop()
    other = Structure(RegexContent("[a-y]+"))
    with monkeypatch.context() as slow:
        slow.setattr(verdicts_module, "_SECONDS", 1e-6)
        slow.setattr(verdicts_module, "_DOUBT_SECONDS", 0.0)
        assert "too complex" in (await refusal(grammars, other, model)).message
    await grammars.stop()
    assert await grammars.grammar(other, model)
