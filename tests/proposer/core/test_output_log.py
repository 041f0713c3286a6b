"""An output as a log relative to its sources."""

from array import array
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_proposer.core.output_log import (
    CopySearch,
    decode_output,
    encode_output,
    put_varint,
    read_varints,
    unzigzag,
    zigzag,
)
from tests.proposer.text import as_text, texts, tokens

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
    assert as_text(decode_output(sources, 0, encode(sources, parts))) == "".join(parts)


@given(texts, texts, st.integers(-100, 100), st.integers(-100, 100))
def test_any_hint_serves(predicted: str, output: str, first: int, second: int) -> None:
    sources = Sources([tokens(predicted)])
    half = len(output) // 2
    data, _ = encode_output(sources, 0, tokens(output[:half]), first)
    more, _ = encode_output(sources, half, tokens(output[half:]), second)
    assert as_text(decode_output(sources, 0, data + more)) == output
    assert as_text(decode_output(sources, half, more)) == output[half:]


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
        (b"\x04\x41\x80", "within a number"),
    ],
)
def test_what_is_no_log_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_output(SOURCES, 0, data)


@given(st.binary(max_size=40))
def test_any_bytes_are_tokens_or_an_error(data: bytes) -> None:
    with suppress(ValueError):
        assert all(
            token_id >= 0 or token_id == SEPARATOR for token_id in decode_output(SOURCES, 0, data)
        )


def find(hint: int, text: str, num_skipped: int = 0) -> tuple[int, int]:
    return CopySearch(tokens(CODE), hint).find(tokens(text), 0, num_skipped)


def test_copy_goes_on_where_it_ended_or_behind_what_was_replaced() -> None:
    assert find(100, CODE[100:120]) == (100, 20)
    assert find(100, CODE[105:120], num_skipped=5) == (105, 15)


def test_what_is_nowhere_is_no_copy_and_moves_nothing() -> None:
    search = CopySearch(tokens(CODE), 100)
    assert search.find(tokens("!" * 10), 0, 0) == (0, 0)
    assert search.hint == 100
    search.find(tokens(CODE[110:130]), 0, 10)
    assert search.hint == 130


def test_copy_is_looked_for_around_its_expected_place_first_behind_it() -> None:
    place = CODE.index("20(value)")
    assert find(100, CODE[place : place + 40]) == (place, 40)
    assert find(1800, CODE[place : place + 40]) == (place, 40)
    assert find(0, "function_") == (4, 9)
    assert find(40, "function_") == (CODE.index("function_", 40), 9)


@given(texts, texts, st.integers(-50, 50), st.integers(0, 9))
def test_what_is_found_is_there(source: str, text: str, hint: int, num_skipped: int) -> None:
    if text:
        place, length = CopySearch(tokens(source), hint).find(tokens(text), 0, num_skipped)
        assert source[place : place + length] == text[:length]
        assert source[place + length : place + length + 1] != text[length : length + 1] or (
            not length or not text[length:]
        )


@given(st.lists(st.integers(0, 2**35 - 1)))
def test_numbers_come_back(values: list[int]) -> None:
    data = bytearray()
    for value in values:
        put_varint(data, value)
    assert read_varints(bytes(data)) == values


def test_small_numbers_take_a_byte() -> None:
    data = bytearray()
    for value in (0, 127, 128):
        put_varint(data, value)
    assert bytes(data) == b"\x00\x7f\x80\x01"


@pytest.mark.parametrize(
    ("data", "message"), [(b"\x01\x80", "ends within"), (b"\x80" * 5 + b"\x01", "too many bytes")]
)
def test_broken_data_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_varints(data)


@given(st.integers(-(2**31), 2**31))
def test_zigzag_comes_back(value: int) -> None:
    assert zigzag(value) >= 0
    assert unzigzag(zigzag(value)) == value
    assert zigzag(value) <= 2 * abs(value)
