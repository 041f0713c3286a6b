from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from optimist_common.drafts import DraftSource
from optimist_worker.core.plan import StepResult
from optimist_worker.service.observing import observe_step
from tests.worker.step import make_result

Read = Callable[..., float]


def result_of(*rows: tuple[int, int, int], draft_ns: int = 0) -> StepResult:
    """Rows of source, drafts and accepted drafts; each emits one token more than it accepts."""
    sources, drafted, accepted = (list(column) for column in zip(*rows, strict=True))
    return make_result(
        range(len(rows)),
        num_emitted_tokens=[number + 1 for number in accepted],
        token_ids=[7] * (sum(accepted) + len(rows)),
        num_drafted_tokens=drafted,
        num_accepted_tokens=accepted,
        draft_sources=sources,
        num_tokens=sum(drafted) + len(rows),
        draft_ns=draft_ns,
    )


@pytest.fixture
def added() -> Read:
    """How much a sample has grown since the test began."""
    before = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
    }

    def read(name: str, **labels: str) -> float:
        name = f"optimist_worker_{name}"
        now = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - before.get((name, tuple(sorted(labels.items()))), 0.0)

    return read


def test_drafts_are_counted_by_source(added: Read) -> None:
    rows = [
        (DraftSource.PREDICTION, 8, 8),
        (DraftSource.EAGLE, 5, 2),
        (DraftSource.EAGLE, 3, 0),
        (DraftSource.TARGET, 0, 0),
    ]
    observe_step(result_of(*rows), 0.01, 0.0)
    for source, drafted, accepted, number in (("prediction", 8, 8, 1), ("eagle", 8, 2, 2)):
        assert added("drafted_tokens_total", source=source) == drafted
        assert added("accepted_tokens_total", source=source) == accepted
        assert added("drafted_rows_total", source=source) == number
        assert added("acceptance_rate_count", source=source) == 1
        assert added("acceptance_rate_sum", source=source) == pytest.approx(accepted / drafted)
        assert added("tokens_per_pass_sum", source=source) == pytest.approx(1 + accepted / number)
    assert added("acceptance_rate_bucket", source="eagle", le="0.2") == 0
    assert added("acceptance_rate_bucket", source="eagle", le="0.3") == 1
    assert added("drafted_rows_total", source="target") == 0
    assert added("emitted_tokens_total") == 14


def test_accepted_drafts_are_counted_by_position(added: Read) -> None:
    rows = [(DraftSource.MEDUSA, 30, accepted) for accepted in (0, 1, 3, 3, 20)]
    observe_step(result_of(*rows), 0.01, 0.0)
    counts = {
        position: added("accepted_at_total", source="medusa", position=position)
        for position in ("1", "2", "3", "4", "16", "17", "more")
    }
    assert counts == {"1": 4, "2": 3, "3": 3, "4": 1, "16": 1, "17": 0, "more": 4}


def test_the_time_of_a_pass_is_split(added: Read) -> None:
    observe_step(result_of((DraftSource.EAGLE, 5, 2), draft_ns=2_000_000), 0.01, 0.0)
    assert added("draft_seconds_sum", source="eagle") == pytest.approx(0.002)
    assert added("verify_seconds_sum", source="eagle") == pytest.approx(0.008)
    assert added("step_seconds_sum") == pytest.approx(0.01)


def test_the_time_of_several_sources_is_nobodys(added: Read) -> None:
    rows = [(DraftSource.EAGLE, 5, 2), (DraftSource.PREDICTION, 5, 2)]
    observe_step(result_of(*rows, draft_ns=2_000_000), 0.01, 0.0)
    assert added("draft_seconds_count", source="eagle") == 0
    assert added("draft_seconds_count", source="mixed") == 1


def test_passes_without_drafts_are_no_drafting(added: Read) -> None:
    observe_step(result_of((DraftSource.TARGET, 0, 0)), 0.01, 0.0)
    assert added("step_seconds_count") == 1
    for source in ("target", "mixed"):
        assert added("verify_seconds_count", source=source) == 0
        assert added("acceptance_rate_count", source=source) == 0
