"""Outputs of a step go to the owners of its requests, each its own."""

from hypothesis import given
from hypothesis import strategies as st

from optimist_scheduler.core.base.values import (
    NO_OUTPUTS,
    Ended,
    Finished,
    FinishReason,
    StepOutputs,
)
from optimist_scheduler.gateways.delivery import split_by_owner
from tests.scheduler.situation import ints

Row = tuple[int, list[int], bool]


def outputs_of(rows: list[Row], extra: list[int]) -> StepOutputs:
    """Returns rows of owner, tokens and whether the request ends; `extra` end without tokens."""
    ends = [(owner, handle) for handle, (owner, _, ends) in enumerate(rows) if ends]
    ends += [(owner, 100 + index) for index, owner in enumerate(extra)]
    return StepOutputs(
        ints(*[owner for owner, _, _ in rows]),
        ints(*range(len(rows))),
        ints(*[len(tokens) for _, tokens, _ in rows]),
        ints(*[token for _, tokens, _ in rows for token in tokens]),
        ints(*[len(tokens) - 1 for _, tokens, _ in rows]),
        ints(*[owner for owner, _, _ in rows]),
        NO_OUTPUTS.observed_rows,
        [],
        {},
        [Ended(*end, f"r{end[1]}", Finished(FinishReason.STOP)) for end in ends],
    )


ROWS = st.tuples(
    st.integers(1, 3), st.lists(st.integers(0, 9), min_size=1, max_size=3), st.booleans()
)


@given(st.lists(ROWS, max_size=6), st.lists(st.integers(1, 4), max_size=2))
def test_each_owner_gets_its_rows_and_ends(rows: list[Row], extra: list[int]) -> None:
    parts = dict(split_by_owner(outputs_of(rows, extra)))
    assert parts.keys() == {owner for owner, _, _ in rows} | set(extra)
    for owner, part in parts.items():
        mine = [(handle, row) for handle, row in enumerate(rows) if row[0] == owner]
        assert part.handles.tolist() == [handle for handle, _ in mine]
        assert part.num_tokens.tolist() == [len(row[1]) for _, row in mine]
        assert part.token_ids.tolist() == [token for _, row in mine for token in row[1]]
        assert part.num_accepted_tokens.tolist() == [len(row[1]) - 1 for _, row in mine]
        ended = [handle for handle, row in mine if row[2]]
        ended += [100 + index for index, other in enumerate(extra) if other == owner]
        assert [end.handle for end in part.ended] == ended
