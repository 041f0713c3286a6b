"""The names of vLLM, read by the tools that ask for them."""

from optimist.scheduler.v1 import scheduler_pb2
from tests.gateway.fake_scheduler import FakeScheduler
from tests.gateway.harness import COMPLETIONS, Gateway, Start

STATS = scheduler_pb2.Stats(
    num_running=3,
    num_waiting=2,
    num_free_blocks=30,
    num_blocks=40,
    num_preemptions=1,
    num_prefix_queries=100,
    num_prefix_hits=60,
    num_drafts=10,
    num_drafted_tokens=80,
    num_accepted_tokens=52,
    num_accepted_at_positions=[9, 8, 7],
)
LABELS = 'engine="0",model_name="tiny"'


async def test_figures_of_schedulers_and_requests(start: Start) -> None:
    async with start(FakeScheduler(stats=STATS), vllm_metrics=True) as gateway:
        token_ids = gateway.say("The quick brown fox", width=2)
        await gateway.answer(COMPLETIONS, max_tokens=99)
        await gateway.until_shown("vllm:num_requests_running")
        figures = await gateway.figures()
        assert {
            name: figures[f"vllm:{name}{{{LABELS}}}"]
            for name in (
                *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
                *("prefix_cache_queries_total", "prefix_cache_hits_total"),
                *("generation_tokens_total", "time_to_first_token_seconds_count"),
                *("e2e_request_latency_seconds_count", "inter_token_latency_seconds_count"),
                "request_time_per_output_token_seconds_count",
            )
        } == {
            "num_requests_running": 3,
            "num_requests_waiting": 2,
            "kv_cache_usage_perc": 0.25,
            "prefix_cache_queries_total": 100,
            "prefix_cache_hits_total": 60,
            "generation_tokens_total": len(token_ids),
            "time_to_first_token_seconds_count": 1,
            "e2e_request_latency_seconds_count": 1,
            "inter_token_latency_seconds_count": len(token_ids) - 2,
            "request_time_per_output_token_seconds_count": 1,
        }
        success = 'request_success_total{engine="0",finished_reason="stop",model_name="tiny"}'
        bucket = 'e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"}'
        assert figures[f"vllm:{success}"] == figures[f"vllm:{bucket}"] == 1
        position = 'num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="2"}'
        assert figures[f"vllm:spec_decode_{position}"] == 7
        assert await read_by_vllm_bench(gateway) == {
            "vllm:spec_decode_num_drafts_total": [10],
            "vllm:spec_decode_num_draft_tokens_total": [80],
            "vllm:spec_decode_num_accepted_tokens_total": [52],
            "vllm:spec_decode_num_accepted_tokens_per_pos_total": [9, 8, 7],
        }


async def read_by_vllm_bench(gateway: Gateway) -> dict[str, list[float]]:
    """Reads as `vllm bench serve` does: whatever begins and ends so, in order."""
    read: dict[str, list[float]] = {}
    for line in (await gateway.http.get("/metrics")).text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name.startswith("vllm:spec_decode") and name.endswith("_total"):
            read.setdefault(name, []).append(float(line.split()[-1]))
    return read


async def test_without_the_flag_there_are_none(gateway: Gateway) -> None:
    assert "vllm:" not in (await gateway.http.get("/metrics")).text


async def test_figures_of_a_scheduler_that_went_away_are_not_shown(start: Start) -> None:
    options = {"vllm_metrics": True, "schedulers": ["127.0.0.1:9"]}
    async with start(waits=False, **options) as gateway:
        text = (await gateway.http.get("/metrics")).text
    assert "vllm:num_requests_waiting" not in text
    assert "vllm:prompt_tokens_total" in text
