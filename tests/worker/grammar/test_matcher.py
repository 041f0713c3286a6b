"""What a grammar can be followed to depends on the output alone, however long it is."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from optimist_worker.grammar import matcher as matcher_module
from optimist_worker.grammar.draft_tree import GrammarRow
from optimist_worker.grammar.matcher import Matcher, compile_grammar
from tests.chaos.load.grammar import COSTLY
from tests.stack import BUNDLED_MODEL

VOCAB_SIZE, END = 2048, 3
TOKENIZER = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
ORACLE = LLTokenizer(TOKENIZER.to_str(), eos_token=[END])
END_ONLY = np.zeros(VOCAB_SIZE // 8, np.uint8)
END_ONLY[END // 8] = 1 << END % 8

SENTENCE = "the quick brown fox jumps over the lazy dog, 12 times. "


def of_json(schema: dict[str, object]) -> str:
    return "start: %json " + json.dumps(schema)


def one(schema: dict[str, object]) -> dict[str, object]:
    """The schema of an object with one property."""
    return {"properties": {"x": schema}, "required": ["x"], "additionalProperties": False}


def text_of(number: int, end: str) -> str:
    return '{"x":"' + (SENTENCE * (1 + number // len(SENTENCE)))[:number] + end


# A grammar that counts to a number, and a text that is as long as that allows.
COUNTED: dict[str, Callable[[int], tuple[str, str]]] = {
    "pattern": lambda n: (
        of_json({"type": "string", "pattern": f"^[a-z0-9., ]{{2,{n}}}$"}),
        text_of(n, '"').removeprefix('{"x":'),
    ),
    "Lark": lambda n: (f'start: ("a" | "b"){{1,{n}}}', "ab" * (n // 2)),
}


def start(grammar: str, token_ids: list[int] | None = None) -> Matcher:
    return Matcher(ORACLE, grammar, compile_grammar(ORACLE, grammar), END_ONLY, token_ids or [])


def allowed(
    matcher: Matcher, drafts: list[int], parents: list[int] | None = None
) -> list[set[int]]:
    masks = np.zeros((1 + len(drafts), VOCAB_SIZE // 8), np.uint8)
    matcher.fill(GrammarRow(0, drafts, parents), masks)
    return [set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()) for mask in masks]


@pytest.mark.parametrize("kind", COUNTED)
def test_repetition_is_counted_up_to_thousands(kind: str) -> None:
    grammar, text = COUNTED[kind](20_000)
    token_ids = TOKENIZER.encode(text).ids
    matcher, others = start(grammar), start(grammar)
    # Masks, and drafts, are worked out in some places only, which makes it quick.
    for first in range(0, len(token_ids), 300):
        part = token_ids[first : first + 300]
        root, *masks = allowed(matcher, part[:6])
        assert root == allowed(others, [])[0]
        assert all(not mask or mask & set(part[1:]) for mask in masks[: len(part) - 1])
        assert part[0] in root
        matcher.commit(part)
        others.commit(part)
        assert (matcher.fault, others.fault) == (None, None)
    (end,) = allowed(matcher, [])
    assert END in end
    # Not one more.
    assert end == {END}
    # A request that is admitted again goes on with its output.
    assert allowed(start(grammar, token_ids), []) == [end]


HARD = {
    "strings": of_json(one({"type": "string", "minLength": 300, "maxLength": 400})),
    "a look back": r"start: /(.|\n)*a(.|\n){12}b/",
    "words and more": r"start: /([a-f]{1,3} ){12}((.|\n)*[a-m](.|\n){9}){3}/",
    "right recursion": 'start: word\nword: /[a-z]{1,3}/ " " word | ""',
    "ambiguity": COSTLY,
}
MOST = 250
"""Tokens of output."""


def follow(grammar: str, source: random.Random, tokens: list[int] | None) -> tuple[list[int], str]:
    """Follows a grammar as a model does that takes any token, until it ends or fails.

    Args:
        grammar: What is followed.
        source: What token is chosen, and what is drafted beside the right ones.
        tokens: What has been said without drafts; None: nothing is drafted.

    Returns:
        What was said, and why it went no further.
    """
    matcher, output = start(grammar), list[int]()
    while len(output) < MOST:
        drafts: list[int] = []
        parents: list[int] = []
        right = (tokens or [])[len(output) : len(output) + 4]
        for depth, token_id in enumerate(right):
            # Wrong ones first: they lead to states that nothing else leads to.
            drafts += [source.randrange(VOCAB_SIZE), source.choice(right), token_id]
            parents += [3 * depth - 1] * 3
        masks, node = allowed(matcher, drafts, parents), -1
        if not masks[0]:
            return output, matcher.fault or ""
        # A draft after which nothing is allowed is not accepted; its row comes without it.
        while node >= -1 and masks[1 + node] and len(output) < MOST:
            chosen = random.Random(len(output)).choice(sorted(masks[1 + node] - {END}) or [END])
            output.append(chosen)
            matcher.commit([chosen])
            if chosen == END:
                return output, "end"
            children = [n for n, parent in enumerate(parents) if parent == node]
            node = next((n for n in children[::-1] if drafts[n] == chosen), -2)
    return output, "length"


@pytest.mark.parametrize(
    ("kind", "most", "ending"),
    [
        ("strings", 100, "end"),
        ("a look back", 150, "length"),
        ("words and more", 100, "lexer error: too many states: 336 >= 336"),
        ("right recursion", 100, "length"),
        # Ten times as many items would take seconds for a mask.
        ("ambiguity", 100, "parser error: Too many items (limit 10000; mask); try avoiding"),
    ],
)
def test_a_limit_is_met_at_the_same_token_with_drafts(
    kind: str, most: int, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher_module, "MAX_LEXER_STATES", most)
    plain, reason = follow(HARD[kind], random.Random(), None)
    assert reason.startswith(ending)
    assert len(plain) > 10
    assert follow(HARD[kind], random.Random(0), plain) == (plain, reason)


def test_masks_after_states_were_dropped_are_those_of_a_matcher_that_keeps_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a string with everything that JSON escapes."""
    monkeypatch.setattr(matcher_module, "MAX_LEXER_STATES", 300)
    monkeypatch.setattr(matcher_module, "_STATES_PER_BYTE", 1)
    grammar = of_json(one({"type": "string", "maxLength": 900}))
    text = ('abc \\n "é日本🎉' * 60).replace('"', '\\"')[:700]
    token_ids = TOKENIZER.encode('{"x": "' + text).ids
    matcher, oracle = start(grammar), LLMatcher(ORACLE, LLMatcher.grammar_from_lark(grammar))
    kept = matcher._matcher
    for token_id in token_ids:
        mask = np.frombuffer(oracle.compute_bitmask(), np.uint8)
        expected = set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())
        assert allowed(matcher, [])[0] == expected
        assert token_id in expected
        matcher.commit([token_id])
        oracle.consume_token(token_id)
    assert matcher._matcher is not kept
