"""Agreement is what a comparison finds, and the longest and nearest is chosen."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.following.agreement import choose_longest
from optimist_aligner.model.layout import MOST_LENGTH

ROUGH_LENGTHS = (0, 5, 8, 16, MOST_LENGTH)

texts = st.lists(st.integers(0, 1), min_size=1, max_size=60)


def brute_length(text: list[int], offset: int, num_output: int) -> int:
    length = 0
    while (
        length < min(offset, num_output)
        and text[offset - 1 - length] == text[len(text) - 1 - length]
    ):
        length += 1
    return length


@given(text=texts, near=st.integers(-3, 63), most=st.integers(1, 5), data=st.data())
def test_chosen_agree_the_longest_and_are_the_nearest_of_equals(
    text: list[int], near: int, most: int, data: st.DataObject
) -> None:
    offsets = data.draw(st.lists(st.integers(0, len(text)), unique=True))
    chosen = choose_longest(text, offsets, len(text), near, most)
    assert len(chosen) == min(most, len(offsets))

    def rank(offset: int) -> tuple[int, int]:
        length = brute_length(text, offset, len(text))
        rough = max(each for each in ROUGH_LENGTHS if each <= length)
        return -rough, offset - near if offset >= near else 2 * (near - offset)

    assert list(map(rank, chosen)) == sorted(map(rank, offsets))[:most]
