"""What happens shows in the metrics, once and under its labels."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from optimist_common.drafts import DraftSource
from optimist_scheduler.core.requests.plan import StepResult
from optimist_scheduler.core.width.acceptance import Drafter
from optimist_scheduler.observing import metrics
from tests.scheduler.client import PATIENT, PROMPT, add, ask, predict, until
from tests.scheduler.fake_services import FakeWorkerServicer, serve_scheduler, serve_worker
from tests.scheduler.fake_worker import FakeWorker
from tests.scheduler.situation import ints

PREFIX = "optimist_scheduler_"


def read(*names: str, **labels: str) -> list[float]:
    return [REGISTRY.get_sample_value(PREFIX + name, labels) or 0 for name in names]


async def test_what_happens_is_counted(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int
) -> None:
    worker.step_seconds = 0.002
    outcomes, labels = ("hit", "repaired", "discarded"), {"worker": f"127.0.0.1:{worker_port}"}
    totals = ["delivered_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total"]
    totals += ["draft_tokens_per_row_count", "preschedule_saved_seconds_count"]

    def count() -> list[float]:
        kept = (read("preschedules_total", outcome=outcome)[0] for outcome in outcomes)
        return [*read(*totals), *kept]

    before = count()
    options: dict[str, Any] = {"enable_prefix_caching": True, "max_plans_in_flight": 2, **PATIENT}
    async with serve_scheduler(worker_port, [proposer_port], **options) as (engine, stub):
        for handle in (1, 2):
            await ask(stub, predict(handle))
        stats = engine.scheduler.stats
        await until(lambda: read("plans_in_flight", **labels) == [0])
        assert read("worker_connected", "requests_running", "requests_waiting", **labels) == [
            1,
            0,
            0,
        ]
        assert read("kv_cache_free_blocks", "kv_cache_blocks", **labels) == [32, 32]
    assert stats.num_prefix_hits == 4
    hits, repairs = stats.num_preschedule_hits, stats.num_preschedule_repairs
    assert [after - value for after, value in zip(count(), before, strict=True)] == [
        *(40, stats.num_prefix_queries, 4, stats.num_plans, hits),
        *(hits, repairs, stats.preschedule_discards.total()),
    ]
    assert REGISTRY.get_sample_value(PREFIX + "worker_connected", labels) is None


def test_drafts_are_counted_by_source_and_position() -> None:
    names = ["drafted_tokens_total", "draft_acceptance_rate_count"]
    names += ["draft_acceptance_rate_sum", "tokens_per_step_sum"]
    places = ["1", "2", "3", "16", "more"]

    def series(source: str) -> list[float]:
        at = (read("accepted_tokens_total", source=source, position=place)[0] for place in places)
        return [*read(*names, source=source), *at]

    before = {
        source: series(source) for source in ("prediction", "eagle", "medusa", "quantised", "form")
    }
    result = StepResult(
        sequence=1,
        slots=ints(0, 1, 2, 3, 4, 5),
        lengths=ints(9, 9, 9, 9, 9, 9),
        num_emitted_tokens=ints(3, 1, 19, 1, 4, 2),
        token_ids=ints(*range(30)),
        num_drafted_tokens=ints(4, 4, 20, 0, 5, 3),
        num_accepted_tokens=ints(2, 0, 18, 0, 3, 1),
        draft_sources=ints(5, 5, 1, 0, 4, 7),
        num_form_drafted_tokens=ints(0, 0, 0, 0, 3, 3),
        num_form_accepted_tokens=ints(0, 0, 0, 0, 1, 1),
    )
    metrics.observe_drafts(result)
    grown = {
        source: [after - value for after, value in zip(series(source), values, strict=True)]
        for source, values in before.items()
    }
    assert grown["prediction"] == pytest.approx([20, 1, 0.9, 19, 1, 1, 1, 1, 2])
    assert grown["eagle"] == pytest.approx([8, 1, 0.25, 2, 1, 1, 0, 0, 0])
    assert grown["medusa"] == pytest.approx([2, 1, 1, 4, 1, 1, 0, 0, 0])
    assert grown["form"] == pytest.approx([6, 1, 1 / 3, 3, 2, 0, 0, 0, 0])
    assert grown["quantised"] == [0] * 9


async def test_what_speculation_is_expected_to_bring_is_shown(
    proposer_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "ESTIMATE_INTERVAL", 1)
    drafter = Drafter(DraftSource.QUANTISED, 3, 3)
    servicer = FakeWorkerServicer(FakeWorker(costs=((1, 900), (16, 1000)), drafter=drafter))
    servicer.worker.description.drafter_us = ints(300, 600, 900).tobytes()
    async with (
        serve_worker(servicer) as port,
        serve_scheduler(port, [proposer_port], **PATIENT) as (engine, stub),
    ):
        await ask(stub, add(1, PROMPT), predict(2))
        await ask(stub, predict(3))
        assert engine.scheduler.config.drafter == drafter
    for source in ("prediction", "quantised"):
        names = "draft_effective_speedup", "draft_latency_seconds", "verify_latency_seconds"
        speedup, draft, verify = read(*names, source=source)
        assert min(speedup, verify) > 0
        # The drafter's widths may be 0 in the end; proposers have answered.
        assert draft > 0 or source != "prediction"
        assert read("draft_overhead_ratio", source=source) == [pytest.approx(draft / verify)]
    assert read("drafted_tokens_total", source="quantised")[0] > 0
