"""Streamed text is the decoded whole, in whole characters."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from optimist_common.vocabulary import Vocabulary
from optimist_gateway.core.answer.detokenize import MAX_PENDING_TOKENS, Detokenizer, StopStrings

WORDS = ["\N{LOWER ONE EIGHTH BLOCK}def", "\N{LOWER ONE EIGHTH BLOCK}", "def", "a", "b", "(", ")"]
SPECIAL = ["<s>", "</s>", "<|ä €|>"]


def byte_alphabet() -> dict[int, str]:
    """How byte-level vocabularies write each byte: as itself if it can be seen."""
    alphabet = {byte: chr(byte) for byte in [*range(33, 127), *range(161, 173), *range(174, 256)]}
    others = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + index) for index, byte in enumerate(others)}


def byte_level() -> Backend:
    """A vocabulary of all single bytes, pieces of characters, words and special tokens."""
    alphabet = byte_alphabet()
    words = [" def", "日", "\N{GRINNING FACE}", " 東", "\ufffd", "é"]
    pieces = [word.encode() for word in words] + ["日".encode()[:2], "日".encode()[1:] + b"a"]
    tokens = [*alphabet.values(), *("".join(alphabet[b] for b in piece) for piece in pieces)]
    backend = Backend(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["  two spaces", "東京 タワー", AddedToken("\n\n\n", normalized=False)])
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return backend


def byte_fallback() -> Backend:
    """A vocabulary like sentencepiece's: words with a space mark, and bytes for the rest."""
    tokens = ["<unk>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    mark = WORDS[1]
    begin = [normalizers.Prepend(mark), normalizers.Replace(" ", mark)]
    backend.normalizer = normalizers.Sequence(begin)
    end = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*end, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return backend


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()


def token_id(backend: Backend, token: str) -> int:
    number = backend.token_to_id(token)
    assert number is not None
    return number


def detokenizer(backend: Backend, vocabulary: Vocabulary | None = None) -> Detokenizer:
    return Detokenizer(backend.decode, {token_id(backend, token) for token in SPECIAL}, vocabulary)


def stream(state: Detokenizer, token_ids: Sequence[int], widths: Sequence[int]) -> list[str]:
    starts = [*accumulate(widths, initial=0), None]
    pieces = [state.push(token_ids[start:end]) for start, end in pairwise(starts)]
    return [*pieces, state.flush()]


any_widths = st.lists(st.integers(0, 20), max_size=60)
any_tokens = st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=120)


@given(any_tokens, any_widths)
@settings(max_examples=100)
def test_byte_level_tokens_join_to_the_decoded_whole(
    token_ids: list[int], widths: list[int]
) -> None:
    pieces = stream(detokenizer(BYTE_LEVEL), token_ids, widths)
    assert "".join(pieces) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)


@given(any_tokens, st.lists(st.sampled_from([0, 1, 1, 1, 1, 2, 20]), max_size=120))
@settings(max_examples=100)
def test_texts_of_tokens_that_are_known_only_come_earlier(
    token_ids: list[int], widths: list[int]
) -> None:
    knowing = detokenizer(BYTE_LEVEL, Vocabulary(BYTE_LEVEL))
    known = accumulate(stream(knowing, token_ids, widths))
    unknown = accumulate(stream(detokenizer(BYTE_LEVEL), token_ids, widths))
    pairs = list(zip(known, unknown, strict=True))
    assert all(one.startswith(other) for one, other in pairs)
    assert pairs[-1][0] == pairs[-1][1]


@given(
    st.text(st.sampled_from("ab def()日東é\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\n")), any_widths
)
@settings(max_examples=100)
def test_byte_fallback_tokens_join_to_the_decoded_whole(text: str, widths: list[int]) -> None:
    token_ids = BYTE_FALLBACK.encode(text).ids
    pieces = stream(detokenizer(BYTE_FALLBACK), token_ids, widths)
    assert "".join(pieces) == BYTE_FALLBACK.decode(token_ids) == text


@given(st.text("ab日東é\N{GRINNING FACE}", min_size=1))
def test_each_character_comes_with_its_last_byte_and_never_in_halves(text: str) -> None:
    state = detokenizer(BYTE_LEVEL)
    alphabet = byte_alphabet()
    for character in text:
        *begin, last = [token_id(BYTE_LEVEL, alphabet[byte]) for byte in character.encode()]
        assert [state.push([token]) for token in begin] == [""] * len(begin)
        assert state.push([last]) == character
    assert state.flush() == ""


@pytest.mark.parametrize(("backend", "name"), [(BYTE_LEVEL, "æ"), (BYTE_FALLBACK, "<0xE6>")])
def test_bytes_that_are_no_text_cost_a_bounded_window(backend: Backend, name: str) -> None:
    token = token_id(backend, name)
    longest = 0

    def decode(token_ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return str(backend.decode(token_ids))

    state = Detokenizer(decode, set())
    pieces = [state.push([token]) for _ in range(500)]
    assert "".join([*pieces, state.flush()]) == "\ufffd" * 500
    assert longest <= 2 * MAX_PENDING_TOKENS


few_letters = st.text("ab", max_size=30)


def first_stop(text: str, stop: list[str]) -> tuple[int, int] | None:
    """Where the first completed stop string begins and ends; the longest of those ending there."""
    for end in range(len(text) + 1):
        starts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if starts:
            return min(starts), end
    return None


@given(few_letters, st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_text_ends_before_the_first_complete_stop_string(text: str, stop: list[str]) -> None:
    state = StopStrings(stop)
    shown = "".join(state.push(character) for character in text)
    expected = first_stop(text, stop)
    assert state.found == (expected is not None)
    if expected is None:
        # Only a possible beginning is held back.
        held = text[len(shown) :]
        assert held == "" or any(one.startswith(held) and one != held for one in stop)
    assert shown + state.flush() == (text if expected is None else text[: expected[0]])


def word_piece() -> Backend:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2, ",": 3}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


@pytest.mark.parametrize(
    ("backend", "before", "answer", "text"),
    [
        (BYTE_FALLBACK, ["a"], ["\N{LOWER ONE EIGHTH BLOCK}def", "b"], " defb"),
        (BYTE_FALLBACK, ["a"], ["def", "\N{LOWER ONE EIGHTH BLOCK}"], "def "),
        (BYTE_FALLBACK, ["<s>"], ["\N{LOWER ONE EIGHTH BLOCK}def"], " def"),
        (BYTE_FALLBACK, ["a"] * 9, ["<0xE6>", "<0x9D>", "<0xB1>"], "東"),
        (BYTE_FALLBACK, [], ["\N{LOWER ONE EIGHTH BLOCK}def"], "def"),
        (word_piece(), ["a"], ["##a", "a", ","], "a a,"),
        (word_piece(), ["a"], ["a"], " a"),
    ],
)
def test_an_answer_goes_on_where_its_prompt_ends(
    backend: Backend, before: list[str], answer: list[str], text: str
) -> None:
    first, following = ([token_id(backend, one) for one in part] for part in (before, answer))
    state = Detokenizer(partial(backend.decode, skip_special_tokens=False), (), None, first)
    assert "".join(stream(state, following, [1] * len(following))) == text
    whole = backend.decode([*first, *following], skip_special_tokens=False)
    assert whole == backend.decode(first, skip_special_tokens=False) + text
