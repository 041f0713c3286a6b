from optimist_aligner.following.template import NOWHERE, Template
from optimist_aligner.text.output_index import OutputIndex
from tests.aligner.words import codes

SOURCES = "sources are no template"


def placed(output: str) -> Template:
    text = codes(SOURCES).tolist()
    index = OutputIndex(len(text))
    template = Template(text, index)
    for token_id in codes(output):
        text.append(token_id)
        index.extend(text, len(text) - 1)
        template.advance(token_id)
    return template


def test_it_is_nowhere_before_anything_is_said_again() -> None:
    template = placed("abcdefgh")
    assert (template.offset, template.lost_at) == (NOWHERE, NOWHERE)
    assert placed("sources").offset == NOWHERE


def test_three_tokens_said_before_are_an_offset() -> None:
    assert placed("abcdef-ab").offset == NOWHERE
    assert placed("abcdef-abc").offset == len(SOURCES) + 3


def test_it_is_sure_after_going_along() -> None:
    template = placed("abcdef-abcdef")
    assert template.offset == template.lost_at == len(SOURCES) + 6
    assert template.num_lost == 0


def test_latest_offset_is_taken() -> None:
    assert placed("abc1abc2abc").offset == len(SOURCES) + 7


def test_lost_offset_is_kept() -> None:
    template = placed("abcdefgh-abcde!")
    assert (template.lost_at, template.offset) == (len(SOURCES) + 5, len(SOURCES) + 5)
    assert template.num_lost == 1
    assert placed("abcdefgh-abcde!?").num_lost == 2


def test_single_token_near_the_lost_offset_is_found() -> None:
    template = placed("abcdefgh-abcde!g")
    assert template.offset == len(SOURCES) + 7
    assert template.num_lost == 2
    assert placed("abcdefgh-abcde!ghx").lost_at == len(SOURCES) + 5


def test_leaving_goes_nowhere() -> None:
    template = placed("abcdefgh-abcde!")
    template.leave()
    assert (template.offset, template.lost_at, template.num_lost) == (NOWHERE, NOWHERE, 0)
