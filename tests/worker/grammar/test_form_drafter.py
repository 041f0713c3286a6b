"""What a grammar drafts is a tree that it allows, and changes no token of any output.

Keys and what is between values cost no passes once an answer of the same style was seen, and values
that the prompt has cost few.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from optimist_bench.forms.simulator import find_path
from optimist_bench.harness.kinds import derive_schema
from optimist_common.drafts import FORM
from optimist_common.sampling import SamplingParams
from optimist_worker.core.copies import Copies
from optimist_worker.core.form import Style
from optimist_worker.core.plan import StepResult, WindowUpdate
from optimist_worker.grammar.draft_tree import GrammarRow
from optimist_worker.grammar.matcher import Matcher, compile_grammar
from optimist_worker.runner.runner import Runner
from tests.stack import BUNDLED_MODEL
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.grammar.test_matcher import END, END_ONLY, ORACLE, TOKENIZER, of_json
from tests.worker.step import generate

STYLES: list[Callable[[object], str]] = [
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, ensure_ascii=False, indent=2),
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
]

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is not made smaller: that takes minutes of passes."""

words = st.text('ab"\\é,{ ', max_size=8)
leaves = (
    words.map(lambda word: ({"type": "string"}, word))
    | st.integers(-20, 4000).map(lambda number: ({"type": "integer"}, number))
    | st.booleans().map(lambda flag: ({"type": "boolean"}, flag))
    | st.sampled_from(["red", "green", "greenish"]).map(
        lambda one: ({"enum": ["red", "green", "greenish", None]}, one)
    )
)


def objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of objects, with a value of each."""

    def build(pairs: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
        schema = {
            "type": "object",
            "properties": {name: schema for name, (schema, _) in pairs.items()},
            "required": [name for number, name in enumerate(pairs) if number % 3 < 2],
            "additionalProperties": False,
        }
        return schema, {name: value for name, (_, value) in pairs.items()}

    names = st.sampled_from(["name", "size", "unit", "a", "is it"])
    return st.dictionaries(names, members, min_size=1, max_size=4).map(build)


def lists(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(members, st.integers(0, 3)).map(
        lambda pair: ({"type": "array", "items": pair[0][0]}, [pair[0][1]] * pair[1])
    )


answers = objects(st.recursive(leaves, lambda inner: objects(inner) | lists(inner), max_leaves=6))


def start(
    schema: dict[str, object], style: Style | None = None, prompt: list[int] | None = None
) -> Matcher:
    grammar = of_json(schema)
    compiled = compile_grammar(ORACLE, grammar)
    return Matcher(ORACLE, grammar, compiled, END_ONLY, (), style, prompt or [])


def root_mask(matcher: Matcher) -> bytes:
    masks = np.zeros((1, len(END_ONLY)), np.uint8)
    matcher.fill(GrammarRow(0, []), masks)
    return masks.tobytes()


def count_passes(matcher: Matcher, token_ids: list[int], limit: int = 32) -> int:
    """Says the tokens, with all that is drafted rightly in one pass."""
    said = passes = 0
    while said < len(token_ids):
        drafts = matcher.draft(GrammarRow(0, []), limit, 0.01)
        emitted = token_ids[said : said + 1 + len(find_path(drafts, token_ids[said:]))]
        matcher.commit(emitted)
        said += len(emitted)
        passes += 1
    return passes


@settings(max_examples=60, deadline=None, phases=QUICK)
@given(answers, st.data())
def test_drafts_are_a_tree_that_the_grammar_allows(answer: tuple[Any, Any], data: Any) -> None:
    schema, value = answer
    token_ids = TOKENIZER.encode(data.draw(st.sampled_from(STYLES))(value)).ids
    at, size = data.draw(st.integers(0, len(token_ids))), data.draw(st.integers(0, 6))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
    others = st.integers(0, 2047) | st.sampled_from([*token_ids, END])
    row = GrammarRow(0, [data.draw(others) for _ in parents], parents)
    limit, least = data.draw(st.integers(size, 40)), data.draw(st.sampled_from([0.0, 0.01, 0.3]))
    prompt = f"{data.draw(words)} {' '.join(map(str, value.values()))} {json.dumps(value)}"
    matcher = start(schema, None, TOKENIZER.encode(prompt).ids)
    matcher.commit(token_ids[:at])
    assert matcher.fault is None
    before = root_mask(matcher)
    drafts = matcher.draft(row, limit, least)
    assert root_mask(matcher) == before
    assert len(drafts) <= limit
    bases = [one.base for one in drafts]
    own = [base for base in bases if base >= 0]
    assert own == sorted(own)
    assert bases[: len(own)] == own
    masks = np.zeros((1 + len(drafts), len(END_ONLY)), np.uint8)
    tree = GrammarRow(0, [one.token_id for one in drafts], [one.parent for one in drafts])
    matcher.fill(tree, masks)
    for index, one in enumerate(drafts):
        assert one.parent < index
        if one.base >= 0:
            assert one.token_id == row.token_ids[one.base]
        assert masks[1 + one.parent][one.token_id // 8] >> one.token_id % 8 & 1
    added = [(one.parent, one.token_id) for one in drafts if one.base < 0]
    assert len(set(added)) == len(added)


@pytest.mark.parametrize("write", STYLES)
def test_keys_cost_no_passes(write: Callable[[object], str]) -> None:
    item = {"label": "one", "size": 1, "is_new": True, "kind": "small"}
    value = {"title": "list", "items": [item, item, item], "next": None}
    fields: dict[str, object] = {
        "label": {"type": "string"},
        "size": {"type": "integer"},
        "is_new": {"type": "boolean"},
        "kind": {"enum": ["small", "large"]},
    }
    shape = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "items": {"type": "array", "items": shape},
            "next": {"type": ["string", "null"]},
        },
        "required": ["title", "items", "next"],
        "additionalProperties": False,
    }
    token_ids = [*TOKENIZER.encode(write(value)).ids, END]
    first = start(schema)
    cold = count_passes(first, token_ids)
    warm = count_passes(start(schema, first.style), token_ids)
    assert cold < len(token_ids) / 2
    # What the values cost alone, which may be two tokens longer with what is between them.
    texts = [*[json.dumps(one) for one in item.values()] * 3, '"list"', "null"]
    assert warm <= sum(len(TOKENIZER.encode(text).ids) for text in texts)
    assert warm <= cold


@pytest.mark.parametrize("between", [" ", "\n"])
def test_values_that_the_prompt_has_cost_few_passes(between: str) -> None:
    prompt = (
        "The export loses the last row of each table, wrote Nadia Foster of 14 Orchard"
        f"{between}Row, Westbury. Paid 212.5."
    )
    value = {"name": "Nadia Foster", "street": "14 Orchard Row", "paid": 212.5}
    texts: dict[str, object] = {name: {"type": "string"} for name in value}
    schema: dict[str, object] = {
        "type": "object",
        "properties": texts | {"paid": {"type": "number"}},
        "required": list(value),
        "additionalProperties": False,
    }
    token_ids = [*TOKENIZER.encode(json.dumps(value)).ids, END]
    alone = count_passes(start(schema), token_ids)
    assert count_passes(start(schema, None, TOKENIZER.encode(prompt).ids), token_ids) <= alone / 2


def test_values_are_looked_for_in_the_last_message_of_the_prompt_first() -> None:
    others = "Stay brief. Use Metric Units. Never Answer In Verse. Ask First."
    system = [END, *TOKENIZER.encode(others).ids]
    user = TOKENIZER.encode("Nadia Foster, Westbury, and 12 others wrote.").ids
    after = [END, *TOKENIZER.encode("reply").ids]
    value = {"name": "Nadia Foster", "town": "Westbury"}
    token_ids = [*TOKENIZER.encode(json.dumps(value)).ids, END]
    schema = derive_schema([value], {})
    passes = count_passes(start(schema, None, [*system, END, *user, *after]), token_ids)
    assert passes < count_passes(start(schema, None, [*system, *user]), token_ids)


@settings(max_examples=100, deadline=None)
@given(st.text("ab 1,\nä", max_size=30), st.data())
def test_copies_go_on_as_the_prompt_does(text: str, data: Any) -> None:
    prompt = text.encode()
    at = data.draw(st.integers(0, len(prompt)))
    value = data.draw(st.binary(max_size=3) | st.just(prompt[at : at + 9]))
    is_number = data.draw(st.booleans())
    copies = Copies(prompt, Style())
    for _ in range(2):
        copies.begin(is_number=is_number)
        for byte in value:
            copies.write(byte)
        for place in copies.places:
            assert prompt[:place].endswith(value)
        for place, begins in [*((one, False) for one in copies.places), (at, True)]:
            pieces = copies.go_on(place, 0.9, begins=begins)
            assert prompt[place:].startswith(b"".join(piece.text for piece in pieces))
            chances = [0.9, *(piece.chance for piece in pieces)]
            assert chances == sorted(chances, reverse=True)
            assert all(piece.end_chance <= piece.chance for piece in pieces)
        assert not copies.is_copied or 0 < copies.end_chance < 1
        copies.end()
        starts = [start for start, _ in copies.starts(None, is_number=is_number)]
        assert starts == sorted(set(starts))


@pytest.mark.parametrize(("widths", "is_trusted"), [([1], True), ([1, 6, 3, 9, 2], False)])
def test_white_space_that_differs_each_time_is_trusted_no_more(
    widths: list[int], is_trusted: bool
) -> None:
    items: dict[str, object] = {"type": "array", "items": {"type": "integer"}}
    text = "[" + ",".join(" " * widths[i % len(widths)] + str(i) for i in range(25)) + "]"
    matcher = start(items)
    for token_id in TOKENIZER.encode(text).ids:
        matcher.draft(GrammarRow(0, []), 32, 0.0)
        matcher.commit([token_id])
    chance = matcher.style.guesses.value
    assert chance > 0.9 if is_trusted else chance < 0.7


def test_lines_of_inner_containers_are_indented_after_an_answer_has_ended() -> None:
    values = [{"a": {"b": each}} for each in ("x", "yz")]
    first, second = (json.dumps(value, indent=2) for value in values)
    schema = derive_schema(values, {})
    matcher = start(schema)
    matcher.commit(TOKENIZER.encode(first).ids)
    matcher = start(schema, matcher.style)
    token_ids = TOKENIZER.encode(second).ids
    ending = TOKENIZER.encode('"\n  }\n}').ids
    matcher.commit(token_ids[: -len(ending)])
    drafts = matcher.draft(GrammarRow(0, []), 32, 0.0)
    assert len(find_path(drafts, ending)) == len(ending)


@pytest.mark.parametrize("write", STYLES)
def test_the_first_answer_is_written_like_the_json_of_its_prompt(
    write: Callable[[object], str],
) -> None:
    example, value = {"item": {"size": [1, 2]}}, {"a": {"b": [True, False]}}
    prompt = TOKENIZER.encode(f"{{{{x: [Write it like {write(example)} please.").ids
    schema = derive_schema([value], {})
    token_ids = [*TOKENIZER.encode(write(value)).ids, END]
    passes = count_passes(start(schema, None, prompt), token_ids)
    assert passes < count_passes(start(schema), token_ids)


def test_the_style_of_prompts_is_not_followed_where_answers_have_another() -> None:
    value = {"a": {"b": [True, False]}}
    prompt = TOKENIZER.encode(json.dumps(value, indent=2)).ids
    schema = derive_schema([value], {})
    token_ids = [*TOKENIZER.encode(json.dumps(value)).ids, END]
    style, passes = None, list[int]()
    for _ in range(4):
        matcher = start(schema, style, prompt)
        passes.append(count_passes(matcher, token_ids))
        style = matcher.style
    assert passes[-1] < passes[0]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return drafting_runner(BUNDLED_MODEL, "ngram", SHAPES["chain"])


@settings(max_examples=12, deadline=None, phases=QUICK)
@given(answers, st.integers(0, 9), st.sampled_from([0.0, 0.7, 1.5]))
def test_outputs_are_the_same_with_and_without_drafts(
    runner: Runner, answer: tuple[Any, Any], seed: int, temperature: float
) -> None:
    schema, value = answer
    sampling = SamplingParams(temperature=temperature, seed=seed, grammar=of_json(schema))
    prompt = TOKENIZER.encode(json.dumps(value)).ids[:60]

    def expect(output: list[int]) -> WindowUpdate:
        # Half of it is wrong, and some of that forbidden.
        window = [*plain[len(output) : len(output) + 5], 7, 9]
        return WindowUpdate(0, len(output), window, [])

    plain = generate(runner, prompt, 40, sampling=sampling)
    assert generate(runner, prompt, 40, sampling=sampling, width=12) == plain
    assert generate(runner, prompt, 40, sampling=sampling, width=12, predict=expect) == plain


@pytest.mark.parametrize("reads_sizes", [True, False], ids=["exact sizes", "padded"])
def test_tokens_of_the_form_are_counted_by_themselves(reads_sizes: bool) -> None:
    runner = drafting_runner(BUNDLED_MODEL, "ngram", SHAPES["chain"], reads_sizes=reads_sizes)
    schema: dict[str, object] = {"const": {"a long key": "and a long value", "another key": 12}}
    results: list[StepResult] = []
    sampling = SamplingParams(grammar=of_json(schema))
    plain = generate(runner, [5, 6, 7], 20, sampling=sampling)
    drafted = generate(runner, [5, 6, 7], 20, sampling=sampling, width=12, note=results.append)
    assert drafted == plain
    assert len(results) < 8
    accepted = sum(int(one.num_form_accepted_tokens.sum()) for one in results)
    assert 0 < accepted <= sum(int(one.num_form_drafted_tokens.sum()) for one in results)
    assert FORM in {int(one.draft_sources[0]) for one in results}
