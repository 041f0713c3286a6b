"""Masks after every draft are those of a matcher that was given the same tokens one by one.

Outputs follow their grammars, whoever drafts.
"""

import json
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from optimist_common.sampling import MAX_GRAMMAR_BYTES, SamplingParams
from optimist_worker.core.plan import PlannedRow
from optimist_worker.grammar import masks as grammar_module
from optimist_worker.grammar.draft_tree import GrammarRow
from optimist_worker.grammar.masks import (
    GrammarStep,
    Masks,
    unpack_bitmask,
)
from optimist_worker.grammar.matcher import compile_grammar
from optimist_worker.model.model import Model
from optimist_worker.runner.runner import Runner
from tests.stack import BUNDLED_MODEL as TINY_EDIT
from tests.worker.drafters.drafting import SHAPES, drafting_runner
from tests.worker.step import admit, begin, blocks_of, generate, go_on, plan_rows, run

VOCAB_SIZE = 2100
"""More than the tokenizer's 2048, as models pad it."""
EOS = [3, 0]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": "start: %json " + json.dumps(SCHEMA),
    "choice": 'start: "yes" | "no" | "yesterday"',
    "regex": "start: /[a-c]{2,9}(-[0-9]+)*/",
    "recursive": 'start: "(" start ")" | "x" | start "+" start',
    # As the gateway writes it for models that think.
    "thoughts": r"""start: (thoughts SPACE?)? answer
thoughts[lazy]: /<think>(.|\n)*/ "</think>"
SPACE: /[ \n\r\t]{1,8}/
answer: %lark {
start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}
}
""",
}
TEXTS = {
    "json": '{"name": "Ada", "size": 36, "tags": ["red", "blue"]}',
    "choice": "yesterday",
    "regex": "abcabc-12-7",
    "recursive": "((x)+x+(x))",
    "thoughts": '<think>\na {"a"</think>\n\n{"a": 12}',
}

TOKENIZER = Tokenizer.from_file(str(TINY_EDIT / "tokenizer.json"))
ORACLE = LLTokenizer(TOKENIZER.to_str(), n_vocab=VOCAB_SIZE, eos_token=EOS)


def masks_for(
    path: Path = TINY_EDIT, vocab_size: int = VOCAB_SIZE, eos: Sequence[int] = EOS
) -> Masks:
    """The grammars of a model of which no more is known."""
    device = torch.device("cpu")
    model: Any = SimpleNamespace(vocab_size=vocab_size, eos_token_ids=eos, device=device)
    return Masks(str(path), model)


GRAMMAR_SET = masks_for()


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


def fresh_mask(grammar: str, path: list[int]) -> set[int] | None:
    """Tokens allowed after a path, from a new matcher; None if the path is refused."""
    matcher = LLMatcher(ORACLE, LLMatcher.grammar_from_lark(grammar), log_level=0)
    for index, token_id in enumerate(path):
        if token_id in EOS and matcher.is_accepting():
            return set(EOS) if set(path[index:]) <= set(EOS) else None
        if matcher.is_stopped() or not matcher.consume_token(token_id):
            return None
    if matcher.is_stopped():
        return set(EOS)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def masks_of(row: GrammarRow) -> list[set[int]]:
    packed = GRAMMAR_SET.pack([row])
    allowed = unpack_bitmask(packed, VOCAB_SIZE)
    assert allowed.shape == (1 + len(row.token_ids), VOCAB_SIZE)
    return [set(torch.nonzero(mask).flatten().tolist()) for mask in allowed]


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[int], int, list[int], list[int]]:
    """A grammar, what has been said, how much of it at admission, and a tree (or chain) of drafts.

    What has been said may be the whole text and both end tokens.
    """
    kind = draw(st.sampled_from(sorted(GRAMMARS)))
    tokens = [*encode(TEXTS[kind]), EOS[0], EOS[1]]
    committed = draw(st.integers(0, len(tokens)))
    num_admitted = draw(st.integers(0, min(committed, len(tokens) - 2)))
    size = draw(st.integers(0, 14))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    if draw(st.booleans()):
        parents = list(range(-1, size - 1))
    depths: list[int] = []
    ids = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
        right = tokens[min(committed + depths[-1], len(tokens) - 1)]
        others = st.integers(0, VOCAB_SIZE - 1) | st.sampled_from(tokens)
        ids.append(draw(st.just(right) | others))
    return GRAMMARS[kind], tokens[:committed], num_admitted, ids, parents


@settings(max_examples=60, deadline=None)
@given(cases())
def test_masks_are_those_of_a_fresh_matcher(
    case: tuple[str, list[int], int, list[int], list[int]],
) -> None:
    grammar, prefix, num_admitted, ids, parents = case
    GRAMMAR_SET.start(0, grammar, prefix[:num_admitted])
    GRAMMAR_SET.commit(0, prefix[num_admitted:])
    is_chain = parents == list(range(-1, len(ids) - 1))
    masks = masks_of(GrammarRow(0, ids, None if is_chain else parents))
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), ids[node]])
    assert masks[0] == fresh_mask(grammar, prefix)
    for node, path in enumerate(paths):
        expected = fresh_mask(grammar, prefix + path)
        if expected is not None:
            assert masks[1 + node] == expected
        elif fresh_mask(grammar, prefix + path[:-1]) is not None:
            # Refused by its parent's mask, so that it cannot be accepted.
            assert ids[node] not in masks[1 + parents[node]]
    # Nothing has moved.
    assert masks_of(GrammarRow(0, [])) == masks[:1]
    assert GRAMMAR_SET.fault(0) is None


def test_a_grammar_is_compiled_once_for_choices_and_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Mock(side_effect=compile_grammar)
    monkeypatch.setattr(grammar_module, "compile_grammar", compiled)
    grammars = masks_for()
    text = encode(TEXTS["regex"])
    for slot in range(3):
        grammars.start(slot, GRAMMARS["regex"])
        grammars.commit(slot, text[: slot + 1])
    grammars.close(0)
    grammars.start(3, GRAMMARS["regex"], text[:2])
    assert compiled.call_count == 1
    masks = [grammars.pack([GrammarRow(slot, [])]) for slot in (1, 2, 3)]
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    # The one that was used last is kept in any case.
    monkeypatch.setattr(grammar_module, "_MAX_KEPT", 1)
    for kind in ("json", "json", "regex", "regex", "json"):
        grammars.start(0, GRAMMARS[kind])
    assert compiled.call_count == 4


def test_token_that_breaks_the_grammar_leaves_nothing() -> None:
    GRAMMAR_SET.start(0, GRAMMARS["choice"])
    tokens = encode("maybe")
    GRAMMAR_SET.commit(0, tokens)
    assert "the output cannot be followed" in (GRAMMAR_SET.fault(0) or "")
    assert masks_of(GrammarRow(0, encode("yes")))[0] == set()
    with pytest.raises(ValueError, match="grammar: the output cannot be followed"):
        GRAMMAR_SET.start(0, GRAMMARS["choice"], tokens)


BAD = {
    "unclosed regex": ("start: /(abc/", "invalid regex"),
    "no text": ("start: start", "matches no text"),
    "too large": ('start: "a"' + " " * MAX_GRAMMAR_BYTES, f"at most {MAX_GRAMMAR_BYTES} bytes"),
    "deep regex": ("start: /" + "(" * 20_000 + "a" + ")" * 20_000 + "/", "invalid regex"),
    "deep schema": ("start: %json " + '{"not":' * 2500 + "{}" + "}" * 2500, "recursion limit"),
    "file elsewhere": ("%import /etc/passwd.A\nstart: A", "grammar: "),
    "explosion": ("start: A\nA: /.*a.{8}/ & /.*b.{9}/ & /.*c.{10}/", "too many expressions|lexer"),
    "what the library trips over": ('start: "x" lazy "y"\nlazy[lazy]: /.*/', "panic"),
    "half a character": ('start: "\ud800"', "not valid Unicode"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_grammars_are_refused_in_one_line(kind: str) -> None:
    grammar, words = BAD[kind]
    with pytest.raises(ValueError, match=words) as refusal:
        GRAMMAR_SET.start(0, grammar)
    message = str(refusal.value)
    assert message.startswith("grammar")
    assert "\n" not in message
    assert len(message) < 400
    GRAMMAR_SET.start(0, GRAMMARS["choice"])
    assert GRAMMAR_SET.fault(0) is None


HEAVY = {
    "ambiguous": 'start: s\ns: s s | "a" | "aa" | "aaa" | ""',
    "many rules": "start: r0\n"
    + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(2000))
    + '\nr2000: "c"',
}


@pytest.mark.parametrize("kind", HEAVY)
def test_heavy_grammars_are_followed_or_end_within_their_limits(kind: str) -> None:
    begin = time.process_time()
    GRAMMAR_SET.start(0, HEAVY[kind])
    rng = random.Random(3)
    for _ in range(30):
        masks = masks_of(GrammarRow(0, encode("aaaaaab")))
        if GRAMMAR_SET.fault(0) is not None:
            assert masks[0] == set()
            break
        GRAMMAR_SET.commit(0, [rng.choice(sorted(masks[0]))])
    # Far above what the limits give, far below a hang.
    assert time.process_time() - begin < 60


def test_models_without_a_sound_tokenizer_or_an_end_have_no_grammars(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^grammar: cannot load the tokenizer of "):
        masks_for(tmp_path).start(0, GRAMMARS["choice"])
    with pytest.raises(ValueError, match="grammar: the model names no end token"):
        masks_for(eos=[]).start(0, GRAMMARS["choice"])


def test_tokens_that_the_model_does_not_have_are_not_allowed() -> None:
    grammars = masks_for(vocab_size=1000)
    grammars.start(0, GRAMMARS["regex"])
    token_ids = [token_id for token_id in encode("abcab-1") if token_id < 1000]
    masks = unpack_bitmask(grammars.pack([GrammarRow(0, token_ids)]), 1000)
    assert masks.shape == (1 + len(token_ids), 1000)
    expected = fresh_mask(GRAMMARS["regex"], [])
    assert expected is not None
    assert set(masks[0].nonzero()[:, 0].tolist()) == {one for one in expected if one < 1000}


PATTERN = r'\{"name": "(width|breadth)", "lines": \[([0-9]{1,3}, ){2}[0-9]{1,3}\]\}'
GRAMMAR = f"start: /{PATTERN}/"


@pytest.fixture(scope="module")
def runner() -> Runner:
    return drafting_runner(TINY_EDIT, "draft_model", SHAPES["dynamic"])


def output_of(runner: Runner, prompt: list[int], sampling: SamplingParams, width: int) -> list[int]:
    """Generates until the end token."""
    output = generate(runner, prompt, 1, sampling=sampling)
    for _ in range(80):
        if output[-1] in runner.engine.model.eos_token_ids:
            return output
        row = go_on(runner, width)
        assert row.error is None, row.error
        output += row.token_ids
    return output


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_outputs_follow_the_grammar_with_and_without_drafts(
    runner: Runner, temperature: float
) -> None:
    prompt = encode("def f(width): return width")
    sampling = SamplingParams(temperature=temperature, seed=1, grammar=GRAMMAR)
    plain = output_of(runner, prompt, sampling, 0)
    assert re.fullmatch(PATTERN, TOKENIZER.decode(plain[:-1]))
    drafted = output_of(runner, prompt, sampling, 10)
    assert drafted[: len(plain)] == plain


def test_a_wrong_grammar_fails_its_request_alone(runner: Runner) -> None:
    sampling = SamplingParams(grammar="start: nothing")
    rows = [PlannedRow(slot, 3, 0, blocks_of(slot)) for slot in (0, 1)]
    runner.release_all()
    admissions = [admit(0, [5, 6, 7], sampling), admit(1, [5, 6, 7])]
    wrong, right = run(runner, plan_rows(0, rows, admissions=admissions))
    assert wrong.error is not None
    assert wrong.error.startswith("grammar: ")
    assert right.error is None
    assert len(right.token_ids) == 1


def test_masks_are_worked_out_during_the_pass_and_only_for_who_has_a_grammar(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they follow from is copied before the pass: a copy after it would wait for it."""
    order: list[str] = []

    def note(owner: type, name: str) -> None:
        ordinary = getattr(owner, name)

        def noting(*some: Any, **named: Any) -> Any:
            order.append(name)
            return ordinary(*some, **named)

        monkeypatch.setattr(owner, name, noting)

    note(GrammarStep, "__init__")
    note(Model, "forward")
    note(GrammarStep, "find_rows")
    runner.release_all()
    rows = [PlannedRow(slot, 3, 0, blocks_of(slot)) for slot in (0, 1)]
    admissions = [admit(0, [5, 6, 7], SamplingParams(grammar=GRAMMAR)), admit(1, [5, 6, 7])]
    run(runner, plan_rows(0, rows, admissions=admissions))
    assert order == ["__init__", "forward", "find_rows"]
    row = go_on(runner, 4, slot=1)
    assert (row.error, len(row.token_ids) > 0) == (None, True)
    assert set(order[3:]) == {"forward"}


def test_a_model_without_a_tokenizer_refuses_grammars(llama: Runner, llama_path: Path) -> None:
    row = begin(llama, [5, 6, 7], sampling=SamplingParams(grammar=GRAMMAR))
    assert row.error == f"grammar: {llama_path}: there is no tokenizer.json"
