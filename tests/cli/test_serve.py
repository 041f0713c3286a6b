"""What `optimist serve` starts."""

import urllib.request
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest

from optimist_cli.serve import serve_settings, service_specs
from optimist_common.errors import SetupError
from optimist_common.server import bind
from tests.cli.fake_gateway import serving


def _value(arguments: Sequence[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


@pytest.mark.parametrize("num_proposers", [1, 3])
def test_the_scheduler_knows_every_proposer(num_proposers: int) -> None:
    specs = service_specs(serve_settings(["model", "--proposers", str(num_proposers)]))
    proposers = [spec.arguments for spec in specs if spec.name == "proposer"]
    (scheduler,) = [spec.arguments for spec in specs if spec.name == "scheduler"]
    addresses = [f"{_value(each, '--host')}:{_value(each, '--port')}" for each in proposers]
    assert _value(scheduler, "--proposers").split(",") == addresses
    assert len(set(addresses)) == num_proposers


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (("--device", "cuda"), ["cuda:0", "cuda:1", "cuda:2"]),
        (("--device", "cpu"), ["cpu"] * 3),
    ],
)
def test_several_workers_have_a_device_each_and_one_scheduler(
    options: tuple[str, ...], devices: list[str]
) -> None:
    specs = service_specs(serve_settings(["model", "--workers", "3", *options]))
    workers = [spec.arguments for spec in specs if spec.name == "worker"]
    (scheduler,) = [spec.arguments for spec in specs if spec.name == "scheduler"]
    addresses = [f"{_value(each, '--host')}:{_value(each, '--port')}" for each in workers]
    assert _value(scheduler, "--workers").split(",") == addresses
    assert len(set(addresses)) == 3
    assert [_value(each, "--device") for each in workers] == devices


def test_a_single_worker_has_the_device_that_was_named() -> None:
    specs = service_specs(serve_settings(["model", "--device", "cuda"]))
    (worker,) = [spec.arguments for spec in specs if spec.name == "worker"]
    assert _value(worker, "--device") == "cuda"


def test_workers_of_several_gpus_are_not_started_together() -> None:
    options = ("--workers", "2", "--device", "cuda", "--tensor-parallel-size", "2")
    with pytest.raises(SetupError, match="--workers: must be 1"):
        serve_settings(["model", *options])


def test_there_is_a_proposer_by_default() -> None:
    names = [spec.name for spec in service_specs(serve_settings(["model"]))]
    assert names.count("proposer") in range(1, 5)
    assert sorted(set(names)) == ["gateway", "proposer", "scheduler", "worker"]


def test_the_worker_is_told_how_many_processes_it_is() -> None:
    (worker,) = (
        spec.arguments
        for spec in service_specs(serve_settings(["model", "--tensor-parallel-size", "2"]))
        if spec.name == "worker"
    )
    assert _value(worker, "--tensor-parallel-size") == "2"
    assert "--pipeline-parallel-size" not in worker


def test_all_services_export_their_spans_if_one_says_where() -> None:
    endpoint = ("--otlp-endpoint", "http://127.0.0.1:4317")
    for spec in service_specs(serve_settings(["model", *endpoint])):
        assert _value(spec.arguments, "--otlp-endpoint") == endpoint[1], spec.name
    for spec in service_specs(serve_settings(["model"])):
        assert "--otlp-endpoint" not in spec.arguments


def test_the_gateway_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    # It remembers the proxy of its first use.
    monkeypatch.setattr(urllib.request, "_opener", None)
    # Nobody listens there.
    with bind("127.0.0.1", 0) as unused, serving([], []) as url:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused.getsockname()[1]}")
        *_, gateway = service_specs(serve_settings(["model", "--port", str(urlsplit(url).port)]))
        assert gateway.is_healthy()
