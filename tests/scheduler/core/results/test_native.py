"""What is compiled for results finds those right that the Python does."""

from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimist_aligner import IS_COMPILED
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.results import check
from optimist_scheduler.core.results.check import ResultError

if not IS_COMPILED:
    pytest.skip("there is no C++ compiler", allow_module_level=True)

VOCAB_SIZE = 50
RESULT_COLUMNS = (
    "slots",
    "lengths",
    "num_emitted_tokens",
    "token_ids",
    "num_drafted_tokens",
    "num_accepted_tokens",
    "draft_sources",
)


def column(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int32)


def draw_columns(random: Random) -> tuple[Any, Any, np.ndarray, dict[str, Any]]:
    """Returns a plan, its rows before, which of them are alive, and columns of a right result."""
    rows = range(random.randrange(5))
    planned = [random.randrange(4) for _ in rows]
    drafted = [random.randint(0, number) for number in planned]
    accepted = [random.randint(0, number) for number in drafted]
    alive = [random.random() < 0.8 for _ in rows]
    emits = [int(random.random() < 0.9) for _ in rows]
    emitted = [
        (1 + accepted[row]) * emits[row] if alive[row] or random.random() < 0.5 else 0
        for row in rows
    ]
    before = [random.randrange(1, 9) for _ in rows]
    lengths = [before[row] + emitted[row] for row in rows]
    longest = [length + random.randrange(3) for length in lengths]
    slots = random.sample(range(9), len(rows))
    plan: Any = SimpleNamespace(
        slots=np.array(slots, np.int64), emits=column(emits), num_draft_tokens=column(planned)
    )
    counters: Any = SimpleNamespace(num_tokens=column(before), max_length=column(longest))
    tokens = [random.randrange(VOCAB_SIZE) for _ in range(sum(emitted))]
    sources = [int(number > 0) for number in drafted]
    columns = (slots, lengths, emitted, tokens, drafted, accepted, sources)
    result = {name: column(each) for name, each in zip(RESULT_COLUMNS, columns, strict=True)}
    return plan, counters, np.array(alive, np.bool_), result


def spoil(result: dict[str, Any], random: Random) -> None:
    """Changes a number or a length, maybe to what is wrong."""
    name = random.choice(RESULT_COLUMNS)
    if random.random() < 0.2:
        result[name] = np.append(result[name], column([0]))
    elif len(result[name]):
        row = random.randrange(len(result[name]))
        result[name][row] = random.choice([-1, 0, 1, int(result[name][row]) + 1, VOCAB_SIZE])


@given(st.randoms(use_true_random=False), st.booleans())
def test_both_find_the_same_results_right(random: Random, is_spoilt: bool) -> None:
    plan, counters, alive, columns = draw_columns(random)
    if is_spoilt:
        spoil(columns, random)
    result = StepResult(1, **columns)
    state: Any = SimpleNamespace(config=SimpleNamespace(drafter=None, vocab_size=VOCAB_SIZE))
    parts = state, plan, counters, alive, result
    is_right = check._is_plainly_right(*parts)
    assert is_right or is_spoilt
    try:
        check._check_shape(plan, result)
        assert is_right == (not check.find_wrong_rows(*parts))
    except ResultError:
        assert not is_right
