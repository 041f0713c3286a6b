"""Models, health, metrics and documentation of a running gateway."""

import httpx
import orjson
import pytest
from openai import AsyncOpenAI

from optimist_gateway.settings import GatewaySettings
from optimist_gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import asking, served
from tests.gateway.fake_scheduler import EOS, MAX_MODEL_LEN, USER, FakeScheduler, Say


async def test_the_model_is_listed(client: AsyncOpenAI) -> None:
    (listed,) = (await client.models.list()).data
    retrieved = await client.models.retrieve("tiny")
    assert retrieved == listed
    assert (listed.id, listed.object) == ("tiny", "model")
    assert listed.model_extra == {"max_model_len": MAX_MODEL_LEN}


async def test_an_answer_by_chance_is_marked_everywhere(
    settings: GatewaySettings, tokenizer: Tokenizer, scheduler: FakeScheduler, say: Say
) -> None:
    scheduler.is_synthetic = True
    say("The quick brown fox", width=2)
    mark = "synthetic-acceptance"
    async with served(settings, tokenizer) as http:
        for path, prompt in (
            ("chat/completions", {"messages": USER}),
            ("completions", {"prompt": "x"}),
        ):
            body = {"model": "tiny", "stream_options": {"include_usage": True}, **prompt}
            streamed = await http.post(f"/v1/{path}", json={**body, "stream": True})
            events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
            assert len(events) > 2
            assert {orjson.loads(each).get("system_fingerprint") for each in events} == {mark}
            del body["stream_options"]
            whole = (await http.post(f"/v1/{path}", json=body)).json()
            assert whole["system_fingerprint"] == mark
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert model["system_fingerprint"] == mark


async def sample(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    (value,) = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name + " ")]
    return float(value)


async def test_metrics_count_requests_and_tokens(
    http: httpx.AsyncClient, client: AsyncOpenAI, say: Say
) -> None:
    token_ids = say("The quick brown fox", width=2, accepted=[2, 1], rejected=5)
    assert token_ids[-1] == EOS
    for stream in (False, True):
        body = {"model": "tiny", "messages": USER, "stream": stream}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    await http.post("/v1/completions", json={})
    prefix = "optimist_gateway_"
    chat = f'{prefix}requests_total{{endpoint="/v1/chat/completions",outcome="200"}}'
    assert await sample(http, chat) == 2
    wrong = f'{prefix}requests_total{{endpoint="/v1/completions",outcome="400"}}'
    assert await sample(http, wrong) == 1
    assert await sample(http, f"{prefix}completion_tokens_total") == 2 * len(token_ids)
    assert await sample(http, f"{prefix}prompt_tokens_total") > 0
    assert await sample(http, f"{prefix}accepted_prediction_tokens_total") == 6
    assert await sample(http, f"{prefix}rejected_prediction_tokens_total") == 10
    assert await sample(http, f"{prefix}requests_running") == 0
    for name in ("time_to_first_token", "end_to_end"):
        assert await sample(http, f"{prefix}{name}_seconds_count") == 2
    behind_the_first_step = 2 * (len(token_ids) - 2)
    name = f"{prefix}inter_token_latency_seconds_count"
    assert await sample(http, name) == behind_the_first_step
    assert (await http.head("/metrics")).status_code == 200


async def test_unknown_paths_make_no_new_series(http: httpx.AsyncClient) -> None:
    for number in range(3):
        await http.get(f"/v1/{number}")
    text = (await http.get("/metrics")).text
    assert 'requests_total{endpoint="none",outcome="404"} 3.0' in text


@pytest.mark.parametrize(("page", "status"), [(True, 200), (False, 404)])
async def test_the_page_can_be_left_out(
    settings: GatewaySettings, tokenizer: Tokenizer, page: bool, status: int
) -> None:
    async with asking(settings, tokenizer, page=page) as http:
        for path in ("/", "/page/js/main.js"):
            assert (await http.get(path)).status_code == status
