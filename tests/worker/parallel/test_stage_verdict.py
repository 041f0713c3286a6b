from dataclasses import fields

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.execution.stage_pass import StageVerdict, read_verdict, write_verdict


@settings(max_examples=30)
@given(
    num_rows=st.integers(0, 5),
    depth=st.integers(0, 4),
    has_path=st.booleans(),
    scored_shape=st.none() | st.tuples(st.integers(0, 3), st.integers(1, 5)),
    faults=st.dictionaries(st.integers(0, 9), st.text(max_size=20)),
)
def test_a_verdict_is_read_as_it_was_written(
    num_rows: int,
    depth: int,
    has_path: bool,
    scored_shape: tuple[int, int] | None,
    faults: dict[int, str],
) -> None:
    generator = torch.Generator().manual_seed(num_rows + 10 * depth)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2**31 - 1, shape, generator=generator)

    verdict = Verdict(
        token_ids=draw(num_rows, 1 + depth),
        num_accepted=draw(num_rows),
        path=draw(num_rows, depth) if has_path else None,
        is_finite=draw(num_rows) % 2 == 0,
    )
    scored = None if scored_shape is None else draw(*scored_shape).int()
    read = read_verdict(write_verdict(StageVerdict(7, verdict, scored, "", faults, 2**32 - 1)))
    assert (read.number, read.failure, read.faults) == (7, "", faults)
    assert read.drafts == 2**32 - 1
    assert read.verdict is not None
    found = [read.scored, *(getattr(read.verdict, field.name) for field in fields(Verdict))]
    written = [scored, *(getattr(verdict, field.name) for field in fields(Verdict))]
    for one, other in zip(found, written, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_failure_comes_in_place_of_a_verdict() -> None:
    read = read_verdict(write_verdict(StageVerdict(3, None, failure="stage 1: no memory")))
    assert (read.number, read.verdict, read.failure) == (3, None, "stage 1: no memory")
