"""Edits cost few passes more than an exact prediction, and thoughts before them nothing."""

import re
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.follower import Aligner
from optimist_aligner.text.sources import INT32, NO_POSITION, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from tests.aligner.words import Words, edits, listing, observed
from tests.stack import REPOSITORY

OLD = listing("session")
RENAMED = listing("store")
INDENTED = OLD.replace("\n    ", "\n        ")
WITH_CR_LF = OLD.replace("\n", "\r\n")
NEW_LINES = "class Other:\n    unlike = anything(else, here)\n"
LINES = OLD.splitlines(keepends=True)
WORDS = Words(OLD, RENAMED, INDENTED, WITH_CR_LF, NEW_LINES)
NUM_EXACT = WORDS.count_passes([OLD], OLD)


def with_lines(start: int, *new: str) -> str:
    return "".join([*LINES[:start], *new, *LINES[start:]])


def after(truth: str, end: str, number: int = 1) -> tuple[str, str]:
    """Divides a text after an occurrence of some words."""
    offset = -1
    for _ in range(number):
        offset = truth.index(end, offset + 1)
    return truth[: offset + len(end)], truth[offset + len(end) :]


def test_name_seen_renamed_once_is_proposed_renamed() -> None:
    # Seen: the parameter and the use in the first function.
    output, rest = after(RENAMED, "if loaded >")
    kept, positions = WORDS.kept(WORDS.follow([OLD], output).propose(64, 0.0), rest)
    expected = " 0:\n        return user\n    return loaded\n\ndef save_order(store, order):\n"
    assert kept.startswith(expected)
    renamed = len(WORDS.tokens(expected[: expected.index("store")]))
    start = len(WORDS.tokens(output))
    assert positions[renamed] == NO_POSITION
    assert positions[:renamed] == list(range(start, start + renamed))
    behind = renamed + 1
    assert positions[behind:][:7] == list(range(start + behind, start + behind + 7))


@pytest.mark.parametrize(
    ("changed", "most_more"),
    [
        pytest.param(OLD, 0, id="exact"),
        pytest.param(RENAMED, 3, id="renamed"),
        pytest.param(INDENTED, 4, id="re-indented"),
        pytest.param(WITH_CR_LF, 8, id="CR-LF"),
        pytest.param(with_lines(20, NEW_LINES), 10, id="inserted"),
        pytest.param("".join(LINES[:20] + LINES[24:]), 1, id="deleted"),
        pytest.param("".join(LINES[:12] + LINES[24:]), -3, id="functions-deleted"),
        pytest.param(
            "".join([*LINES[:6], *LINES[12:18], *LINES[6:12], *LINES[18:]]), 3, id="moved"
        ),
        pytest.param(with_lines(18, *LINES[12:18]), 3, id="duplicated"),
    ],
)
def test_edit_costs_a_few_passes(changed: str, most_more: int) -> None:
    assert WORDS.count_passes([OLD], changed) <= NUM_EXACT + most_more
    # A pass is filled but for the model's own token.
    assert -(-len(WORDS.tokens(OLD)) // 17) == NUM_EXACT


@pytest.mark.parametrize("between", ["", "and all of it once more\n"])
def test_an_output_that_goes_round_in_a_loop_is_not_expected_to_leave_it(between: str) -> None:
    words = Words(OLD, between)
    loop, wasted = words.tokens(f"{FUNCTIONS[0]}\n\n{between}"), []
    for num_rounds in (1, 6):
        output = num_rounds * loop + loop[:12]
        draft = observed(words.algorithm, [words.tokens(OLD)], output).propose(64, 0.3)
        _, num_right = draft.walk((3 * loop)[12:], NO_PARENT)
        wasted.append(len(draft) - num_right)
    # The prediction goes on otherwise, and was right after the loop never again.
    assert wasted[1] == 0 < wasted[0]


VOCABULARY_SIZE = 8
ALGORITHM = Aligner(Vocabulary([" a", "b", "\n", "(", "1", " ", "\n  ", "é"]))
output_tokens = st.integers(0, VOCABULARY_SIZE + 1)


@given(request_=edits(output_tokens, 60), other=st.lists(output_tokens, max_size=60))
def test_followers_of_one_reference_do_not_meet(
    request_: tuple[list[list[int]], list[int], list[int]], other: list[int]
) -> None:
    predictions, output, prompt = request_
    sources = Sources([array(INT32, each) for each in predictions], array(INT32, prompt))
    reference = ALGORITHM.prepare(sources)
    before = list(reference.text)
    one, another = reference.follow(), reference.follow()
    another.observe(array(INT32, other))
    one.observe(array(INT32, output))
    alone = observed(ALGORITHM, predictions, output, prompt)
    assert one.propose(32, 0.0) == alone.propose(32, 0.0)
    assert reference.text == before


def propose(predictions: list[list[int]], output: list[int]) -> Draft:
    return observed(ALGORITHM, predictions, output).propose(16, 0.0)


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = REPOSITORY / "docs" / "aligner.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "\nprint(total)\n\n"


FUNCTIONS = OLD.split("\n\n")
END = "</think>\n\n"
PLAIN = "".join(f"so number {number} may be what changes here or not\n" for number in range(20))
THOUGHTS = {
    "plain": PLAIN,
    "quotes its beginning": f"{PLAIN}{FUNCTIONS[0]}\n\nbegins it, and it goes on.\n",
    "quotes its end": f"{PLAIN}First\n{FUNCTIONS[-1]}",
}
NEW = listing("store")
THINKING = Words(OLD, NEW, END, *THOUGHTS.values())


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_cost_the_answer_nearly_nothing(name: str) -> None:
    answer = OLD if name == "plain" else NEW
    alone = THINKING.count_passes([OLD], answer)
    thoughts = THOUGHTS[name] + END
    num_thoughts = THINKING.count_passes([END + OLD], thoughts)
    together = THINKING.count_passes([END + OLD], thoughts + answer) - num_thoughts
    assert together <= alone < THINKING.count_passes([OLD], thoughts + answer) - num_thoughts
