from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import LCSseq

from optimist_proposer.core.lcs import add_line, lcs_length

lines = st.lists(st.integers(0, 4), max_size=100)


@given(lines, lines)
def test_equals_the_lcs_of_every_prefix(predicted: list[int], output: list[int]) -> None:
    matched = 0
    for line in output:
        same = sum(1 << number for number, other in enumerate(predicted) if other == line)
        matched = add_line(matched, same)
    assert matched >> len(predicted) == 0
    for length in range(len(predicted) + 1):
        assert lcs_length(matched, length) == LCSseq.similarity(predicted[:length], output)
