"""A cursor in the output's own earlier text."""

import pytest

from optimist_aligner.following.template import NOWHERE, Template
from optimist_aligner.text.context_index import ContextIndex
from tests.aligner.words import codes

SOURCES = "sources are no template"


def placed(output: str) -> Template:
    text = codes(SOURCES).tolist()
    index = ContextIndex(text, len(text))
    template = Template(text, index)
    for token_id in codes(output):
        text.append(token_id)
        template.advance(token_id)
    return template


@pytest.mark.parametrize("output", ["abcdefgh", "sources", "abcdef-ab"])
def test_it_is_nowhere_before_three_tokens_are_said_again(output: str) -> None:
    template = placed(output)
    assert (template.offset, template.lost_at) == (NOWHERE, NOWHERE)


@pytest.mark.parametrize(
    ("output", "offset", "lost_at", "num_lost"),
    [
        pytest.param("abcdef1abcdef2abcdef", 13, 13, 0, id="sure, and of two the latest is taken"),
        pytest.param("abcdefgh-abcde!", 5, 5, 1, id="a lost offset is kept"),
        pytest.param("abcdefgh-abcde!?", 5, 5, 2, id="lost for longer"),
        pytest.param("abcdefgh-abcde!g", 7, 5, 2, id="a single token near the lost offset"),
    ],
)
def test_where_the_output_is_in_what_was_said_before(
    output: str, offset: int, lost_at: int, num_lost: int
) -> None:
    template, start = placed(output), len(SOURCES)
    assert (template.offset - start, template.lost_at - start) == (offset, lost_at)
    assert template.num_lost == num_lost
