from typing import Any

from prometheus_client import REGISTRY

from tests.scheduler.client import PROMPT, add, ask, truth
from tests.scheduler.fake_services import FakeWorkerServicer, serve_scheduler

PREFIX = "optimist_scheduler_"


def read(*names: str, **labels: str) -> list[float]:
    return [REGISTRY.get_sample_value(PREFIX + name, labels) or 0 for name in names]


async def test_what_happens_is_counted(
    worker: FakeWorkerServicer, worker_port: int, proposer_port: int
) -> None:
    worker.step_seconds = 0.002
    outcomes = ("hit", "repaired", "discarded")
    totals = (
        "tokens_total",
        "steps_total",
        "drafted_tokens_total",
        "accepted_tokens_total",
        "prefix_queries_total",
        "prefix_hits_total",
        "draft_width_count",
    )
    before = read(*totals)
    decisions = [read("preschedules_total", outcome=outcome)[0] for outcome in outcomes]
    (saved,) = read("preschedule_saved_seconds_count")
    options: dict[str, Any] = {
        "enable_prefix_caching": True,
        "max_plans_in_flight": 2,
        "proposer_wait_ms": 2000,
    }
    async with serve_scheduler(worker_port, [proposer_port], **options) as (engine, stub):
        for handle in (1, 2):
            await ask(stub, add(handle, PROMPT, predicted=truth(PROMPT)))
        stats = engine.scheduler.stats
    tokens, steps, drafted, accepted, queries, hits, plans = (
        after - value for after, value in zip(read(*totals), before, strict=True)
    )
    assert tokens == 40
    assert steps == worker.worker.num_steps
    assert drafted >= accepted > 0
    assert (queries, hits) == (stats.num_prefix_queries, stats.num_prefix_hits)
    assert hits == 4
    assert plans == stats.num_plans
    discards = stats.preschedule_discards.total()
    assert [
        read("preschedules_total", outcome=outcome)[0] - value
        for outcome, value in zip(outcomes, decisions, strict=True)
    ] == [stats.num_preschedule_hits, stats.num_preschedule_repairs, discards]
    assert read("preschedule_saved_seconds_count")[0] - saved == stats.num_preschedule_hits
    assert read("plans_in_flight", "running", "waiting") == [0, 0, 0]
