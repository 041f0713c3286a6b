"""Which worker a request goes to."""

from typing import Any

import pytest

from optimist_scheduler.core import placement
from optimist_scheduler.core.placement import Candidate, Placement, hash_beginning

LONG = list(range(300))


def place(name: str, num_requests: int = 0, **values: Any) -> Candidate:
    sizes: dict[str, Any] = {
        "is_connected": True,
        "max_num_seqs": 10,
        "num_waiting": 0,
        "max_num_waiting": 8,
        "max_length": 100,
    }
    return Candidate(name=name, num_requests=num_requests, **{**sizes, **values})


def choose(*places: Candidate, wanted: int = 20, **values: Any) -> str:
    return Placement().choose(places, 10, wanted, **values)


def choose_of_two(
    chooser: Placement, loads: tuple[int, int], prompt: list[int], salt: str = ""
) -> str:
    """Chooses of "a" and "b" by what each has to do."""
    places = [place("a", loads[0]), place("b", loads[1])]
    return chooser.choose(places, 10, 20, hash_beginning(prompt, salt))


def test_the_least_loaded_for_its_size_is_chosen() -> None:
    assert choose(place("a", 3), place("b", 2)) == "b"
    assert choose(place("a", 3), place("b", 2, max_num_seqs=5)) == "a"


def test_equals_take_turns() -> None:
    chooser = Placement()
    places = [place("a"), place("b"), place("c")]
    names = [chooser.choose(places, 10, 20) for _ in range(6)]
    assert names == ["a", "b", "c"] * 2


def test_one_that_is_connected_is_chosen_however_loaded() -> None:
    lost = place("lost", is_connected=False)
    full = place("full", 30, num_waiting=20)
    assert choose(lost, full) == "full"
    assert choose(lost) == "lost"


def test_one_whose_queue_has_room_is_chosen_before_one_that_holds_the_beginning() -> None:
    chooser, key = Placement(), hash_beginning(LONG, "")
    assert chooser.choose([place("a"), place("b")], 10, 20, key) == "a"
    full = place("a", 9, num_waiting=8)
    assert chooser.choose([full, place("b", 9)], 10, 20, key) == "b"


def test_one_is_chosen_that_a_request_fits_to_its_end() -> None:
    assert choose(place("a", max_length=15), place("b", 9), wanted=20) == "b"
    assert choose(place("a", max_length=15), place("b", max_length=8), wanted=20) == "a"
    assert choose(place("a", max_length=8), place("b", is_connected=False)) == "b"
    assert choose(place("a", max_length=8), place("b", max_length=8, is_connected=False)) == "a"


def test_a_beginning_goes_where_it_was_until_the_load_is_clearly_more() -> None:
    chooser = Placement()
    assert choose_of_two(chooser, (0, 0), LONG) == "a"
    assert choose_of_two(chooser, (0, 0), LONG[1:]) == "b"
    for num_tokens, load in ((64, 5), (130, 5), (300, 5), (300, 0)):
        assert choose_of_two(chooser, (load, 0), LONG[:num_tokens]) == "a"
    # Shorter than a chunk, or of somebody else, it is no beginning.
    for prompt, salt in ((LONG[:63], ""), (LONG, "salt")):
        assert choose_of_two(chooser, (5, 0), prompt, salt) == "b"
    assert choose_of_two(chooser, (6, 0), LONG) == "b"


def test_the_longest_known_beginning_counts() -> None:
    chooser = Placement()
    fork = [*LONG[:128], *range(1000, 1200)]
    assert choose_of_two(chooser, (0, 1), LONG) == "a"
    assert choose_of_two(chooser, (9, 0), fork) == "b"
    assert choose_of_two(chooser, (3, 0), LONG) == "a"
    assert choose_of_two(chooser, (0, 3), fork) == "b"


def test_what_a_lost_worker_held_is_forgotten() -> None:
    chooser = Placement()
    assert choose_of_two(chooser, (0, 0), LONG) == "a"
    chooser.forget("a")
    assert choose_of_two(chooser, (1, 0), LONG) == "b"


def test_no_more_is_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_BEGINNINGS", 4)
    chooser = Placement()
    assert choose_of_two(chooser, (0, 1), LONG) == "a"
    for number in range(3):
        choose_of_two(chooser, (0, 9), [number] * 64)
    assert choose_of_two(chooser, (1, 0), LONG) == "a"
    for number in range(4):
        choose_of_two(chooser, (0, 9), [number] * 64, "x")
    assert choose_of_two(chooser, (1, 0), LONG) == "b"
