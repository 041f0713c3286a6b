"""What an output may repeat, laid out as one text."""

import json
from array import array

from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner.follower import Aligner
from optimist_aligner.text.searched_text import SearchedText
from optimist_aligner.text.sources import INT32, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from tests.aligner.words import codes, observed

# One token for each character, and one of two characters that begins or ends lines.
TEXTS = [chr(code) for code in range(128)] + ["\n\n", "`\n", "e\n"]


def join(token_ids: "array[int]") -> str:
    return "".join("|" if each == SEPARATOR else TEXTS[each] for each in token_ids)


VOCABULARY = Vocabulary(TEXTS, lambda text: codes(text).tolist())
FILE = "".join(f"line = {number}\n" for number in range(20))


def searched(prompt: str, *predictions: str) -> SearchedText:
    return SearchedText(Sources([*map(codes, predictions)], codes(prompt)), VOCABULARY)


def test_files_are_read_without_line_numbers_and_as_json() -> None:
    lines = enumerate(FILE.splitlines(keepends=True), 1)
    shown = "".join(f"{number}\t{line}" for number, line in lines)
    prompt = f"{shown}\n" + json.dumps({"command": "ls\nls"}) * 50
    text = searched(prompt)
    escaped = json.dumps(FILE)[1:-1]
    assert join(text.token_ids) == f"{FILE}|{escaped}|{prompt}"
    without_json = searched(shown + "x" * 500)
    assert join(without_json.token_ids) == f"{FILE}|{shown}{'x' * 500}"


def test_answer_is_drafted_from_the_prompts_block_from_its_first_token_on() -> None:
    algorithm = Aligner(VOCABULARY)
    prompt = codes(f"Change it:\n```\n{FILE}```\nAll of it.")
    draft = observed(algorithm, [], [], prompt).propose(16, 0.0)
    attached = observed(algorithm, [codes(FILE)], []).propose(16, 0.0)
    assert draft.token_ids == attached.token_ids
    first = prompt.index(ord("l")) - len(prompt) - 1
    assert list(draft.positions) == list(range(first, first + len(draft)))


@given(
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    body=st.lists(st.integers(97, 130), min_size=30, max_size=40),
)
def test_block_is_whole_wherever_tokens_are_divided(
    before: int, after: int, body: list[int]
) -> None:
    # "`\n" ends the fence in one token, "e\n" and "\n\n" reach over the ends of lines.
    opening = [[96, 96, 96, 10], [96, 96, 129], [96, 96, 96, 128], [10, 96, 96, 129]][before]
    closing = [[10, 96, 96, 96], [130, 96, 96, 96], [128, 96, 96, 96], [10, 96, 96, 129]][after]
    prompt = array(INT32, [*opening, *body, *closing])
    whole = join(prompt)
    start, end = whole.index("```\n") + 4, whole.rindex("```")
    text = SearchedText(Sources([], prompt), VOCABULARY)
    assert text.is_rewrite
    assert join(text.token_ids[: text.num_aligned]) == whole[start:end] + "|"
