import torch
from hypothesis import given
from hypothesis import strategies as st

from optimist_worker.core.acceptance.verdict import Verdict
from optimist_worker.execution.stage_pass import StageVerdict, read_verdict, write_verdict


@given(
    st.integers(0, 5),
    st.integers(0, 4),
    st.booleans(),
    st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(1, 5))),
    st.dictionaries(st.integers(0, 9), st.text(max_size=20)),
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
    assert torch.equal(read.verdict.token_ids, verdict.token_ids)
    assert torch.equal(read.verdict.num_accepted, verdict.num_accepted)
    assert torch.equal(read.verdict.is_finite, verdict.is_finite)
    assert (read.verdict.path is None) == (verdict.path is None)
    if read.verdict.path is not None and verdict.path is not None:
        assert torch.equal(read.verdict.path, verdict.path)
    assert (read.scored is None) == (scored is None)
    if read.scored is not None and scored is not None:
        assert torch.equal(read.scored, scored)


def test_a_failure_comes_in_place_of_a_verdict() -> None:
    read = read_verdict(write_verdict(StageVerdict(3, None, failure="stage 1: no memory")))
    assert (read.number, read.verdict, read.failure) == (3, None, "stage 1: no memory")
