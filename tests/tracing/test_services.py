"""One trace through all services, as processes that a user starts."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import httpx
import pytest

from optimist.v1 import inference_pb2, inference_pb2_grpc
from tests.stack import BUNDLED_MODEL, Service, free_port
from tests.tracing.collector import CollectedSpan, Collector, running_collector

MODEL = str(BUNDLED_MODEL)
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
PREDICTION = "def add(a, b):\n    return a + b\n"
BODY = {
    "model": "tiny-edit",
    "prompt": f"Rename `a` to `c`.\n{PREDICTION}",
    "prediction": {"type": "content", "content": PREDICTION},
    "max_tokens": 24,
    "temperature": 0,
}


@dataclass
class Traced:
    http: httpx.Client
    grpc_address: str
    collector: Collector


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    with ExitStack() as stack:
        collector = stack.enter_context(running_collector())
        endpoint = ("--otlp-endpoint", collector.endpoint)

        def start(name: str, *options: str) -> str:
            service = Service(name, *options, *endpoint)
            stack.callback(service.stop)
            return service.address

        proposer = start("proposer", "--model", MODEL)
        worker = start("worker", "--model", MODEL, "--trace-passes", "true")
        scheduler = start("scheduler", "--workers", worker, "--proposers", proposer)
        port = free_port()
        peers = ("--schedulers", scheduler, "--grpc-port", str(port))
        gateway = start("gateway", "--model", MODEL, *peers)
        http = httpx.Client(base_url=f"http://{gateway}", trust_env=False, verify=False, timeout=60)
        yield Traced(stack.enter_context(http), f"127.0.0.1:{port}", collector)


def is_whole(spans: list[CollectedSpan], trace_id: str) -> bool:
    names = {span.name for span in spans if span.trace_id == trace_id}
    return {"scheduler request", "worker request", "proposer request"} < names - {"worker pass"}


def test_a_request_is_one_trace_through_all_services(traced: Traced) -> None:
    trace_parent = f"00-{TRACE_ID}-{PARENT_ID}-01"
    response = traced.http.post("/v1/completions", json=BODY, headers={"traceparent": trace_parent})
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    # The next plan says to the worker that a slot is free.
    untraced = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
    assert traced.http.post("/v1/completions", json=BODY, headers=untraced).status_code == 200
    spans = traced.collector.wait(lambda spans: is_whole(spans, TRACE_ID))
    spans = [span for span in spans if span.trace_id == TRACE_ID]
    passes = [span for span in spans if span.name == "worker pass"]
    by_service = {span.service: span for span in spans if span not in passes}
    gateway, scheduler, worker, proposer = (
        by_service[f"optimist-{name}"] for name in ("gateway", "scheduler", "worker", "proposer")
    )
    assert gateway.parent_id == PARENT_ID
    assert scheduler.parent_id == gateway.span_id
    assert worker.parent_id == proposer.parent_id == scheduler.span_id
    assert {span.parent_id for span in passes} == {worker.span_id}
    assert gateway.name == "text_completion tiny-edit"
    assert gateway.attributes["gen_ai.operation.name"] == "text_completion"
    assert gateway.attributes["gen_ai.request.model"] == "tiny-edit"
    assert gateway.attributes["gen_ai.request.max_tokens"] == 24
    assert gateway.attributes["gen_ai.response.id"] == response.json()["id"]
    assert gateway.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert gateway.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert gateway.attributes["http.response.status_code"] == 200
    assert gateway.attributes["gen_ai.response.finish_reasons"] in (["stop"], ["length"])
    assert gateway.events == ["first token"]
    assert scheduler.events == ["admitted", "first token"]
    assert scheduler.attributes["optimist.queue_seconds"] > 0
    num_passes = scheduler.attributes["optimist.num_passes"]
    assert gateway.attributes["optimist.num_passes"] == num_passes
    assert len(passes) == worker.attributes["optimist.num_passes"] >= num_passes
    emitted = sum(span.attributes["optimist.num_emitted_tokens"] for span in passes)
    assert emitted == worker.attributes["optimist.num_emitted_tokens"]
    assert emitted >= usage["completion_tokens"]
    assert proposer.attributes["optimist.num_windows"] > 0
    assert gateway.start_ns <= scheduler.start_ns <= worker.start_ns
    assert worker.end_ns <= scheduler.end_ns <= gateway.end_ns


def test_no_span_holds_a_text(traced: Traced) -> None:
    body = BODY | {"prompt": "the secret prompt", "prediction": None}
    before = len(traced.collector.spans)
    assert traced.http.post("/v1/completions", json=body).status_code == 200
    spans = traced.collector.wait(
        lambda spans: any(span.service == "optimist-gateway" for span in spans[before:])
    )
    assert "secret" not in repr(spans)


def test_what_is_not_sampled_is_not_traced(traced: Traced) -> None:
    unsampled = "1" * 32
    headers = {"traceparent": f"00-{unsampled}-{PARENT_ID}-00"}
    assert traced.http.post("/v1/completions", json=BODY, headers=headers).status_code == 200
    sampled = "2" * 32
    headers = {"traceparent": f"00-{sampled}-{PARENT_ID}-01"}
    for _ in range(2):
        assert traced.http.post("/v1/completions", json=BODY, headers=headers).status_code == 200
    spans = traced.collector.wait(lambda spans: is_whole(spans, sampled))
    assert unsampled not in {span.trace_id for span in spans}


def test_a_refused_request_is_a_span_with_its_reason(traced: Traced) -> None:
    refused = "3" * 32
    headers = {"traceparent": f"00-{refused}-{PARENT_ID}-01"}
    body = BODY | {"max_tokens": 10**6}
    assert traced.http.post("/v1/completions", json=body, headers=headers).status_code == 400
    spans = traced.collector.wait(lambda spans: any(span.trace_id == refused for span in spans))
    (span,) = [span for span in spans if span.trace_id == refused]
    assert span.attributes["error.type"] == "context_length_exceeded"
    assert span.attributes["http.response.status_code"] == 400


def test_a_call_of_the_grpc_api_is_traced_too(traced: Traced) -> None:
    called = "4" * 32
    request = inference_pb2.GenerateRequest(text="def add(a, b):", max_tokens=4)
    with grpc.insecure_channel(traced.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        metadata = (("traceparent", f"00-{called}-{PARENT_ID}-01"),)
        assert list(stub.Generate(request, metadata=metadata, timeout=60))
    spans = traced.collector.wait(
        lambda spans: (
            {"optimist-gateway", "optimist-scheduler"}
            <= {span.service for span in spans if span.trace_id == called}
        )
    )
    (gateway,) = [
        span for span in spans if span.trace_id == called and span.service == "optimist-gateway"
    ]
    assert gateway.parent_id == PARENT_ID
    assert gateway.name == "text_completion tiny-edit"
    assert gateway.attributes["rpc.method"] == "Generate"
    assert gateway.attributes["gen_ai.usage.output_tokens"] == 4
