"""Texts of random tokens follow grammars, whatever the kind and the size of the tokenizer."""

import json
import random
import re
from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from optimist_common.grammar import find_problem, make_matcher, matching_tokenizer
from optimist_common.vocabulary import Vocabulary

END = 2
LETTERS = sorted(set('{"abe": "true", ab, 0123456789}') - {" "})
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
WORDS = [SPACE, f"{SPACE}the", f"{SPACE}{{", "ab", "true", f'{SPACE}"', '":']
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
FALLBACK = decoders.Sequence(
    [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


def numbered(*groups: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(chain(*groups))}


def byte_level() -> Tokenizer:
    words = ["\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}the", "ab", "true", '{"']
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(numbered(SPECIAL, alphabet, words), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentence_piece() -> Tokenizer:
    vocabulary = numbered(SPECIAL, BYTES, LETTERS, WORDS)
    merges = [("a", "b"), (SPACE, "{"), (SPACE, '"'), ('"', ":")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    spaces = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = FALLBACK
    return tokenizer


def unigram(has_bytes: bool) -> Tokenizer:
    pieces = [*SPECIAL, *(BYTES if has_bytes else []), *LETTERS, *WORDS]
    scores = [(piece, -len(SPECIAL) / len(piece)) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, 0, has_bytes))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = FALLBACK if has_bytes else decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    vocabulary = numbered(SPECIAL, LETTERS, [f"##{one}" for one in LETTERS], ["the", "##true"])
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def letters() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(numbered(SPECIAL, LETTERS, [" ", "ab"]), [("a", "b")]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "SentencePiece": sentence_piece,
    "Unigram with bytes": lambda: unigram(True),
    "Unigram": lambda: unigram(False),
    "WordPiece": word_piece,
    "letters": letters,
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["true", "ab"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def is_value(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"a", "b"} and value["a"] <= 99 and value["b"] in ("true", "ab")


GRAMMARS: dict[str, Callable[[str], object]] = {
    "start: " + r"/[ab]{3,5}( the)?/": re.compile(r"[ab]{3,5}( the)?").fullmatch,
    f"start: %json {json.dumps(SCHEMA | {'x-guidance': {'whitespace_flexible': False}})}": is_value,
}


def draw(tokenizer: Tokenizer, vocab_size: int, grammar: str, seed: int) -> list[int]:
    """Returns tokens that a grammar allows, each by chance, up to where it may end."""
    matching = matching_tokenizer(tokenizer.to_str(), vocab_size, [END])
    matcher = make_matcher(matching, grammar, 10_000)
    assert find_problem(matcher) == ""
    rng, token_ids = random.Random(seed), list[int]()
    while not matcher.is_stopped():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert max(allowed) < vocab_size
        if END in allowed:
            break
        token_ids.append(rng.choice(allowed))
        assert matcher.consume_token(token_ids[-1])
    return token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_texts_follow_the_grammar(kind: str) -> None:
    tokenizer = KINDS[kind]()
    vocabulary = Vocabulary(tokenizer)
    before = tokenizer.get_vocab()["a"]
    # A model may have fewer tokens than its tokenizer, and has often more.
    for more, seed in ((-1, 1), (0, 2), (20, 3), (20, 4)):
        for grammar, follows in GRAMMARS.items():
            token_ids = draw(tokenizer, tokenizer.get_vocab_size() + more, grammar, seed)
            text = b"".join(vocabulary[token][1] for token in token_ids).decode()
            assert follows(text), (grammar, text)
            # It is what the tokens add to a text.
            whole = tokenizer.decode([before, *token_ids], skip_special_tokens=False)
            assert whole == f"{tokenizer.decode([before])}{text}"


def test_tokens_that_mean_nothing_alone_are_refused() -> None:
    tokenizer = Tokenizer(models.BPE(numbered(SPECIAL, ["a</w>", "b", "b</w>"]), []))
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    with pytest.raises(ValueError, match="tokens depends on those around them"):
        matching_tokenizer(tokenizer.to_str(), 10, [END])


def test_where_one_text_may_follow_alone_tokens_have_just_that() -> None:
    """A tokenizer of its own would write a space before it."""
    tokenizer = unigram(False)
    vocabulary = Vocabulary(tokenizer)
    for grammar, text in (('start: "abetrue"', "abetrue"), ('start: " the" /0/', " the0")):
        token_ids = draw(tokenizer, tokenizer.get_vocab_size(), grammar, 0)
        assert "".join(vocabulary[token][0] for token in token_ids) == text
