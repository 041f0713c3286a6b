"""One trace through all services, as processes that a user starts."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from optimist.v1 import inference_pb2, inference_pb2_grpc
from tests.stack import BUNDLED_MODEL, Service, free_port
from tests.tracing.collector import CollectedSpan, Collector, running_collector

MODEL = str(BUNDLED_MODEL)
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
PASS = "worker pass"
SERVICES = ("gateway", "scheduler", "worker", "proposer")
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

    def ask(self, trace_parent: str, status: int = 200, **changes: Any) -> Any:
        """Posts the request; returns the answer."""
        headers = {"traceparent": trace_parent}
        response = self.http.post("/v1/completions", json=BODY | changes, headers=headers)
        assert response.status_code == status, response.text
        return response.json()

    def wait(self, trace_id: str, *services: str) -> list[CollectedSpan]:
        """Returns the spans of a trace once all of these services have said what they did."""
        wanted = {(trace_id, f"optimist-{name}") for name in services}
        spans = self.collector.wait(
            lambda spans: wanted <= {(s.trace_id, s.service) for s in spans if s.name != PASS}
        )
        return [span for span in spans if span.trace_id == trace_id]


def parent_of(digit: str, flags: str = "01") -> str:
    """Returns a traceparent of a trace whose id has one digit alone."""
    return f"00-{digit * 32}-{PARENT_ID}-{flags}"


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
        worker = start("worker", "--model", MODEL, "--trace-passes")
        scheduler = start("scheduler", "--workers", worker, "--proposers", proposer)
        port = free_port()
        peers = ("--schedulers", scheduler, "--grpc-port", str(port))
        gateway = start("gateway", "--model", MODEL, *peers)
        http = httpx.Client(base_url=f"http://{gateway}", trust_env=False, verify=False, timeout=60)
        yield Traced(stack.enter_context(http), f"127.0.0.1:{port}", collector)


def test_a_request_is_one_trace_through_all_services(traced: Traced) -> None:
    answer = traced.ask(f"00-{TRACE_ID}-{PARENT_ID}-01")
    usage = answer["usage"]
    # The next plan says to the worker that a slot is free.
    traced.ask(f"00-{TRACE_ID}-{PARENT_ID}-00")
    spans = traced.wait(TRACE_ID, *SERVICES)
    passes = [span for span in spans if span.name == PASS]
    by_service = {span.service: span for span in spans if span not in passes}
    gateway, scheduler, worker, proposer = (by_service[f"optimist-{name}"] for name in SERVICES)
    assert gateway.parent_id == PARENT_ID
    assert scheduler.parent_id == gateway.span_id
    assert worker.parent_id == proposer.parent_id == scheduler.span_id
    assert {span.parent_id for span in passes} == {worker.span_id}
    assert gateway.name == "text_completion tiny-edit"
    assert gateway.attributes["gen_ai.operation.name"] == "text_completion"
    assert gateway.attributes["gen_ai.request.model"] == "tiny-edit"
    assert gateway.attributes["gen_ai.request.max_tokens"] == 24
    assert gateway.attributes["gen_ai.response.id"] == answer["id"]
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
    traced.ask(parent_of("5"), prompt="the secret prompt", prediction=None)
    traced.wait("5" * 32, "gateway", "scheduler")
    assert "secret" not in repr(traced.collector.spans)


def test_what_is_not_sampled_is_not_traced(traced: Traced) -> None:
    traced.ask(parent_of("1", "00"))
    for _ in range(2):
        traced.ask(parent_of("2"))
    traced.wait("2" * 32, *SERVICES)
    assert "1" * 32 not in {span.trace_id for span in traced.collector.spans}


def test_a_refused_request_is_a_span_with_its_reason(traced: Traced) -> None:
    traced.ask(parent_of("3"), 400, prompt="a b " * 10_000)
    (span,) = traced.wait("3" * 32, "gateway")
    assert span.attributes["error.type"] == "context_length_exceeded"
    assert span.attributes["http.response.status_code"] == 400


def test_a_call_of_the_grpc_api_is_traced_too(traced: Traced) -> None:
    request = inference_pb2.GenerateRequest(text="def add(a, b):", max_tokens=4)
    with grpc.insecure_channel(traced.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        metadata = (("traceparent", parent_of("4")),)
        assert list(stub.Generate(request, metadata=metadata, timeout=60))
    spans = traced.wait("4" * 32, "gateway", "scheduler")
    (gateway,) = [span for span in spans if span.service == "optimist-gateway"]
    assert gateway.parent_id == PARENT_ID
    assert gateway.name == "text_completion tiny-edit"
    assert gateway.attributes["rpc.method"] == "Generate"
    assert gateway.attributes["gen_ai.usage.output_tokens"] == 4
