"""A prediction that begins with the end of thoughts is followed from where these end."""

import pytest

from tests.aligner.words import Words, listing

OLD = listing("session")
FUNCTIONS = OLD.split("\n\n")
END = "</think>\n\n"
PLAIN = "".join(f"so number {number} may be what changes here or not\n" for number in range(20))
THOUGHTS = {
    "plain": PLAIN,
    "quotes its beginning": f"{PLAIN}{FUNCTIONS[0]}\n\nbegins it, and it goes on.\n",
    "quotes its end": f"{PLAIN}First\n{FUNCTIONS[-1]}",
}
NEW = listing("store")
WORDS = Words(OLD, NEW, END, *THOUGHTS.values())


@pytest.mark.parametrize("name", THOUGHTS)
def test_the_first_window_after_thoughts_is_the_beginning(name: str) -> None:
    prompt = f"Change this.\n{OLD}" if name == "plain" else ""
    words = Words(OLD, END, *THOUGHTS.values(), prompt)
    follower = words.follow([END + OLD], THOUGHTS[name] + END.rstrip("\n"), prompt)
    kept, positions = words.kept(follower.propose(64, 0.02), "\n\n" + OLD)
    assert (END + OLD).startswith(END.rstrip("\n") + kept)
    first = len(words.tokens(END.rstrip("\n")))
    assert len(positions) >= 3
    assert positions == list(range(first, first + len(positions)))


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_cost_the_answer_nearly_nothing(name: str) -> None:
    answer = OLD if name == "plain" else NEW
    alone = WORDS.count_passes([OLD], answer)
    thoughts = THOUGHTS[name] + END
    num_thoughts = WORDS.count_passes([END + OLD], thoughts)
    together = WORDS.count_passes([END + OLD], thoughts + answer) - num_thoughts
    assert together <= alone < WORDS.count_passes([OLD], thoughts + answer) - num_thoughts
