"""The names of vLLM, read by the tools that ask for them."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from optimist.scheduler.v1 import scheduler_pb2
from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import served, serving
from tests.gateway.fake_scheduler import FakeScheduler

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


@pytest.fixture
async def vllm(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: FakeScheduler
) -> AsyncIterator[httpx.AsyncClient]:
    scheduler.stats = STATS
    async with served(settings, tokenizer, vllm_metrics=True) as client:
        while "vllm:num_requests_running" not in (await client.get("/metrics")).text:
            pass
        yield client


async def test_vllm_bench_reads_what_drafts_were_worth(vllm: httpx.AsyncClient) -> None:
    read: dict[str, list[float]] = {}
    # As `vllm bench serve` does: whatever begins and ends so is read, in order.
    for line in (await vllm.get("/metrics")).text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name.startswith("vllm:spec_decode") and name.endswith("_total"):
            read.setdefault(name, []).append(float(line.split()[-1]))
    assert read == {
        "vllm:spec_decode_num_drafts_total": [10],
        "vllm:spec_decode_num_draft_tokens_total": [80],
        "vllm:spec_decode_num_accepted_tokens_total": [52],
        "vllm:spec_decode_num_accepted_tokens_per_pos_total": [9, 8, 7],
    }
    assert (
        'per_pos_total{engine="0",model_name="tiny",position="2"} 7.0'
        in (await vllm.get("/metrics")).text
    )


async def test_load_is_the_schedulers(vllm: httpx.AsyncClient) -> None:
    lines = (await vllm.get("/metrics")).text.splitlines()
    labels = '{engine="0",model_name="tiny"}'
    assert f"vllm:num_requests_running{labels} 3.0" in lines
    assert f"vllm:num_requests_waiting{labels} 2.0" in lines
    assert f"vllm:kv_cache_usage_perc{labels} 0.25" in lines
    assert f"vllm:prefix_cache_queries_total{labels} 100.0" in lines
    assert f"vllm:prefix_cache_hits_total{labels} 60.0" in lines


async def test_requests_are_the_gateways(
    vllm: httpx.AsyncClient, say: Callable[..., list[int]]
) -> None:
    token_ids = say("The quick brown fox", width=2)
    body = {"model": "tiny", "prompt": "The", "max_tokens": 99}
    assert (await vllm.post("/v1/completions", json=body)).status_code == 200
    lines = (await vllm.get("/metrics")).text.splitlines()
    labels = 'engine="0",model_name="tiny"'
    assert f"vllm:generation_tokens_total{{{labels}}} {len(token_ids)}.0" in lines
    success = 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 1.0'
    assert success in lines
    assert f"vllm:time_to_first_token_seconds_count{{{labels}}} 1.0" in lines
    assert f"vllm:e2e_request_latency_seconds_count{{{labels}}} 1.0" in lines
    assert f"vllm:request_time_per_output_token_seconds_count{{{labels}}} 1.0" in lines
    latencies = f"vllm:inter_token_latency_seconds_count{{{labels}}} {len(token_ids) - 2}.0"
    assert latencies in lines
    bucket = 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 1.0'
    assert bucket in lines


async def test_without_the_flag_there_are_none(http: httpx.AsyncClient) -> None:
    assert "vllm:" not in (await http.get("/metrics")).text


async def test_figures_of_a_scheduler_that_went_away_are_not_shown(
    settings: GatewaySettings, tokenizer: Tokenizer
) -> None:
    settings = settings.model_copy(update={"vllm_metrics": True, "schedulers": ["127.0.0.1:9"]})
    async with (
        serving(settings, tokenizer) as address,
        httpx.AsyncClient(base_url=address, trust_env=False, verify=False) as client,
    ):
        text = (await client.get("/metrics")).text
    assert "vllm:num_requests_waiting" not in text
    assert "vllm:prompt_tokens_total" in text
