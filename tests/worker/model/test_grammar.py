"""Masks after every draft are those of a matcher that was given the same tokens one by one."""

import json
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from optimist_worker.model.grammar import GrammarRow, GrammarSet, load_grammar_set, unpack_bitmask

TINY_EDIT = Path(__file__).parents[3] / "models" / "tiny-edit"
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
    "finite": 'start: "def f():"',
}
TEXTS = {
    "json": '{"name": "Ada", "size": 36, "tags": ["red", "blue"]}',
    "choice": "yesterday",
    "regex": "abcabc-12-7",
    "recursive": "((x)+x+(x))",
    "finite": "def f():",
}

TOKENIZER = Tokenizer.from_file(str(TINY_EDIT / "tokenizer.json"))
ORACLE = LLTokenizer(TOKENIZER.to_str(), n_vocab=VOCAB_SIZE, eos_token=EOS)
GRAMMAR_SET = GrammarSet(TOKENIZER, VOCAB_SIZE, EOS)


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
    packed = GRAMMAR_SET.allowed([row])
    allowed = unpack_bitmask(packed, VOCAB_SIZE)
    assert allowed.shape == (1 + len(row.token_ids), VOCAB_SIZE)
    return [set(torch.nonzero(mask).flatten().tolist()) for mask in allowed]


@pytest.mark.parametrize("kind", GRAMMARS)
def test_text_of_the_grammar_passes_and_is_followed_by_the_end(kind: str) -> None:
    tokens = encode(TEXTS[kind])
    GRAMMAR_SET.open(0, GRAMMARS[kind])
    for count in range(len(tokens) + 1):
        (mask,) = masks_of(GrammarRow(0, []))
        assert mask == fresh_mask(GRAMMARS[kind], tokens[:count])
        if count < len(tokens):
            assert tokens[count] in mask
            GRAMMAR_SET.commit(0, [tokens[count]])
    assert set(EOS) <= mask
    GRAMMAR_SET.commit(0, [EOS[0]])
    assert masks_of(GrammarRow(0, [EOS[0]])) == [set(EOS), set(EOS)]
    GRAMMAR_SET.commit(0, [EOS[1]])
    assert GRAMMAR_SET.fault(0) is None


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, list[int], list[int]]:
    """A grammar, how many tokens are committed, and a tree (or chain) of drafts."""
    kind = draw(st.sampled_from(sorted(GRAMMARS)))
    tokens = [*encode(TEXTS[kind]), EOS[0], EOS[1]]
    committed = draw(st.integers(0, len(tokens) - 2))
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
    return kind, committed, ids, parents


@settings(max_examples=150, deadline=None)
@given(cases())
def test_masks_are_those_of_a_fresh_matcher(case: tuple[str, int, list[int], list[int]]) -> None:
    kind, committed, ids, parents = case
    grammar, prefix = GRAMMARS[kind], encode(TEXTS[kind])[:committed]
    GRAMMAR_SET.open(0, grammar, prefix)
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


def test_rows_of_a_pass_are_one_after_the_other() -> None:
    GRAMMAR_SET.open(1, GRAMMARS["choice"])
    GRAMMAR_SET.open(2, GRAMMARS["finite"])
    rows = [GrammarRow(2, encode("def f")), GrammarRow(1, []), GrammarRow(2, [])]
    packed = GRAMMAR_SET.allowed(rows)
    assert packed.dtype == torch.int32
    assert torch.equal(packed, torch.cat([GRAMMAR_SET.allowed([row]) for row in rows]))


def test_request_goes_on_after_preemption() -> None:
    tokens = encode(TEXTS["json"])
    GRAMMAR_SET.open(0, GRAMMARS["json"])
    GRAMMAR_SET.commit(0, tokens[:9])
    before = masks_of(GrammarRow(0, tokens[9:]))
    GRAMMAR_SET.close(0)
    GRAMMAR_SET.open(0, GRAMMARS["json"], tokens[:9])
    assert masks_of(GrammarRow(0, tokens[9:])) == before
    refused = min(set(range(4, 2048)) - before[0])
    with pytest.raises(ValueError, match=f"grammar: token {refused} does not follow"):
        GRAMMAR_SET.open(0, GRAMMARS["json"], [*tokens[:9], refused])


def test_token_that_breaks_the_grammar_leaves_only_the_end() -> None:
    GRAMMAR_SET.open(0, GRAMMARS["choice"])
    GRAMMAR_SET.commit(0, encode("maybe"))
    assert "does not follow" in (GRAMMAR_SET.fault(0) or "")
    assert masks_of(GrammarRow(0, encode("yes")))[0] == set(EOS)
    GRAMMAR_SET.open(0, GRAMMARS["finite"])
    GRAMMAR_SET.commit(0, encode("def f(): pass"))
    assert "the grammar has ended" in (GRAMMAR_SET.fault(0) or "")


BAD = {
    "unclosed regex": ("start: /(abc/", "invalid regex"),
    "unknown name": ("start: other", "unknown name"),
    "no text": ("start: start", "matches no text"),
    "empty": ("", "(?i)empty"),
    "not Lark": ('{"grammars": []}', "grammar: "),
    "too large": ('start: "a"' + " " * 2**16, "at most 65536 bytes"),
    "deep rule": ("start: " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested"),
    "deep regex": ("start: /" + "(" * 20_000 + "a" + ")" * 20_000 + "/", "invalid regex"),
    "deep schema": (
        "start: %json " + '{"type":"array","items":' * 2500 + "{}" + "}" * 2500,
        "recursion limit",
    ),
    "schema of itself": ('start: %json {"$ref": "#"}', "matches no text"),
    "schema elsewhere": ('start: %json {"$ref": "http://localhost:9/a.json"}', "not present"),
    "file elsewhere": ("%import /etc/passwd.A\nstart: A", "grammar: "),
    "explosion": (
        "start: A\nA: /.*a.{8}/ & /.*b.{9}/ & /.*c.{10}/",
        "too many expressions|lexer",
    ),
    "what the library trips over": ('start: "x" lazy "y"\nlazy[lazy]: /.*/', "panic"),
    "half a character": ('start: "\ud800"', "not valid Unicode"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_grammars_are_refused_in_one_line(kind: str) -> None:
    grammar, words = BAD[kind]
    with pytest.raises(ValueError, match=words) as refusal:
        GRAMMAR_SET.open(0, grammar)
    message = str(refusal.value)
    assert message.startswith("grammar")
    assert "\n" not in message
    assert len(message) < 400
    GRAMMAR_SET.open(0, GRAMMARS["choice"])
    assert GRAMMAR_SET.fault(0) is None


HEAVY = {
    "counted": "start: /((a{1,100}){1,100}){1,100}b/",
    "ambiguous": 'start: s\ns: s s | "a" | "aa" | "aaa" | ""',
    "look back": "start: /(.*a.{20})|(.*b.{25})/",
    "many rules": "start: r0\n"
    + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(2000))
    + '\nr2000: "c"',
    "many words": "start: " + "|".join(f'"word{i}"' for i in range(4000)),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_heavy_grammars_are_followed_or_end_within_their_limits(kind: str) -> None:
    begin = time.process_time()
    GRAMMAR_SET.open(0, HEAVY[kind])
    rng = random.Random(3)
    for _ in range(60):
        masks = masks_of(GrammarRow(0, encode("aaaaaab")))
        assert masks[0]
        GRAMMAR_SET.commit(0, [rng.choice(sorted(masks[0]))])
        if GRAMMAR_SET.fault(0) is not None:
            assert masks_of(GrammarRow(0, [])) == [set(EOS)]
    # Far above what the limits give, far below a hang.
    assert time.process_time() - begin < 60


def test_models_without_a_tokenizer_or_an_end_have_no_grammars(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"grammar: the model .* has no tokenizer\.json"):
        load_grammar_set(str(tmp_path), VOCAB_SIZE, EOS)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"grammar: .* cannot be read"):
        load_grammar_set(str(tmp_path), VOCAB_SIZE, EOS)
    with pytest.raises(ValueError, match="grammar: the model names no end token"):
        load_grammar_set(str(TINY_EDIT), VOCAB_SIZE, [])
    with pytest.raises(ValueError, match="grammar: the tokenizer cannot be used"):
        load_grammar_set(str(TINY_EDIT), 100, EOS)


def test_models_of_the_hub_have_grammars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"^grammar: .*some/model"):
        load_grammar_set("some/model", VOCAB_SIZE, EOS)
    stored, commit = tmp_path / "models--some--model", "0" * 40
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(commit)
    (stored / "snapshots" / commit).mkdir(parents=True)
    shutil.copy(TINY_EDIT / "tokenizer.json", stored / "snapshots" / commit)
    grammars = load_grammar_set("some/model", VOCAB_SIZE, EOS)
    grammars.open(0, GRAMMARS["choice"])
    assert grammars.fault(0) is None
