"""An output as a log relative to its sources."""

import tracemalloc
from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_proposer.core.output_log import (
    MAX_BYTES_PER_TOKEN,
    CopySearch,
    encode_output,
    put_varint,
    zigzag,
)
from optimist_proposer.core.wrong_value import WrongValueError
from tests.proposer.text import as_text, decoded, texts, tokens

CODE = "".join(f"def function_{n}(value):\n    return value * {n}\n\n" for n in range(40))
SOURCES = Sources([tokens(CODE)])


def encode(sources: Sources, parts: list[str]) -> bytes:
    """Appends one step after the other."""
    data, position, hint = b"", 0, 0
    for part in parts:
        runs, hint = encode_output(sources, position, tokens(part), hint)
        data += runs
        position += len(part)
    return data


@given(st.lists(texts, max_size=3), texts, st.lists(texts, max_size=5))
def test_output_comes_back_however_it_was_divided(
    predictions: list[str], prompt: str, parts: list[str]
) -> None:
    sources = Sources([tokens(text) for text in predictions], tokens(prompt))
    data, output = encode(sources, parts), "".join(parts)
    assert as_text(decoded(sources, 0, data, len(output))) == output
    assert len(data) <= MAX_BYTES_PER_TOKEN * len(output)


@given(texts, texts, st.integers(-100, 100), st.integers(-100, 100))
def test_any_hint_serves(predicted: str, output: str, first: int, second: int) -> None:
    sources = Sources([tokens(predicted)])
    half = len(output) // 2
    data, _ = encode_output(sources, 0, tokens(output[:half]), first)
    more, _ = encode_output(sources, half, tokens(output[half:]), second)
    assert as_text(decoded(sources, 0, data + more, len(output))) == output
    assert as_text(decoded(sources, half, more, len(output) - half)) == output[half:]


def test_copying_takes_a_few_bytes_a_step() -> None:
    steps = [CODE[start : start + 20] for start in range(0, len(CODE), 20)]
    assert len(encode(SOURCES, steps)) <= 2 * len(steps)
    assert len(encode(SOURCES, [CODE])) <= 4


def test_copying_goes_on_behind_what_was_inserted_replaced_or_left_out() -> None:
    parts = [CODE[:100], "# new line\n", CODE[100:400], "!" * 10, CODE[410:600], CODE[700:]]
    assert len(encode(SOURCES, parts)) < 60
    # Where every step is a copy, each is as small as if nothing had been changed before it.
    steps = ["# new line\n", *(CODE[start : start + 20] for start in range(0, len(CODE), 20))]
    assert len(encode(SOURCES, steps)) <= 2 * len(steps) + 30


def test_bytes_are_those_that_a_replica_of_another_version_reads() -> None:
    sources = Sources([tokens("abcdef")])
    assert encode(sources, ["xy\u012c", "abcdef"]) == b"\x06xy\xac\x02\x0d\x05"


def test_what_is_in_no_source_takes_little_more_than_its_tokens() -> None:
    data, _ = encode_output(SOURCES, 0, array(INT32, [300_000] * 100), 0)
    assert len(data) == 302


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x05", "no index"),
        (b"\x05\xfe\xff\x7f", "outside"),
        (b"\x05\x01", "outside"),
        (b"\x04\x41", "lacks tokens"),
        (b"\x02\xff\xff\xff\xff\x0f", "lacks tokens"),
        (b"\x04\x41\x80", "within a number"),
        (b"\x80", "within a number"),
        (b"\x80" * 5 + b"\x01", "too many bytes"),
        (b"\x01\x00", "a run has 0 tokens"),
        (b"\x00", "a run has 0 tokens"),
        (b"\xfe\xff\xff\xff\x7f", "a run has 17179869183 tokens, of 2"),
        (b"\x07\x00", "a run has 3 tokens, of 2"),
        (b"\x03\x00\x05\x00", "a run has 2 tokens, of 1"),
        (b"\x03\x00", "stand for 1 tokens, not for 2"),
        (b"", "stand for 0 tokens, not for 2"),
    ],
)
def test_what_is_no_log_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(WrongValueError, match=message):
        decoded(SOURCES, 0, data, 2)


@given(st.binary(max_size=40), st.integers(-3, 300))
def test_any_bytes_are_so_many_tokens_or_an_error(data: bytes, num_tokens: int) -> None:
    with suppress(WrongValueError):
        token_ids = decoded(SOURCES, 0, data, num_tokens)
        assert len(token_ids) == num_tokens
        assert all(token_id >= 0 or token_id == SEPARATOR for token_id in token_ids)


def test_a_log_that_was_made_to_expand_takes_no_memory() -> None:
    whole = len(SOURCES.token_ids)
    runs = bytearray()
    for number in range(1000):
        put_varint(runs, 2 * whole + 1)
        put_varint(runs, zigzag(-number * whole))
    tracemalloc.start()
    try:
        with pytest.raises(WrongValueError, match=f"a run has {whole} tokens, of {whole - 1}"):
            decoded(SOURCES, 0, bytes(runs), 2 * whole - 1)
        # What the runs stand for is more than a hundred times as much.
        assert tracemalloc.get_traced_memory()[1] < 1000 * whole * 4 / 20
    finally:
        tracemalloc.stop()


def find(hint: int, text: str) -> tuple[int, int]:
    return CopySearch(tokens(CODE), hint).find(tokens(text), 0, 0)


def test_copy_is_looked_for_around_its_expected_place_first_behind_it() -> None:
    place = CODE.index("20(value)")
    assert find(100, CODE[place : place + 40]) == (place, 40)
    assert find(1800, CODE[place : place + 40]) == (place, 40)
    assert find(0, "function_") == (4, 9)
    assert find(40, "function_") == (CODE.index("function_", 40), 9)
