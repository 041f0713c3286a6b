from hypothesis import given
from hypothesis import strategies as st

from optimist_proposer.core.output_log import CopySearch
from tests.proposer.text import texts, tokens

CODE = "".join(f"def function_{n}(value):\n    return value * {n}\n\n" for n in range(40))


def find(hint: int, text: str, num_skipped: int = 0) -> tuple[int, int]:
    return CopySearch(tokens(CODE), hint).find(tokens(text), 0, num_skipped)


def test_copy_goes_on_where_it_ended_or_behind_what_was_replaced() -> None:
    assert find(100, CODE[100:120]) == (100, 20)
    assert find(100, CODE[105:120], num_skipped=5) == (105, 15)


def test_copy_is_looked_for_around_its_expected_place_first_behind_it() -> None:
    place = CODE.index("20(value)")
    assert find(100, CODE[place : place + 40]) == (place, 40)
    assert find(1800, CODE[place : place + 40]) == (place, 40)
    assert find(0, "function_") == (4, 9)
    assert find(40, "function_") == (CODE.index("function_", 40), 9)


def test_what_is_nowhere_is_no_copy_and_moves_nothing() -> None:
    search = CopySearch(tokens(CODE), 100)
    assert search.find(tokens("!" * 10), 0, 0) == (0, 0)
    assert search.hint == 100
    search.find(tokens(CODE[110:130]), 0, 10)
    assert search.hint == 130


@given(texts, texts, st.integers(-50, 50), st.integers(0, 9))
def test_what_is_found_is_there(source: str, text: str, hint: int, num_skipped: int) -> None:
    if text:
        place, length = CopySearch(tokens(source), hint).find(tokens(text), 0, num_skipped)
        assert source[place : place + length] == text[:length]
        assert source[place + length : place + length + 1] != text[length : length + 1] or (
            not length or not text[length:]
        )
