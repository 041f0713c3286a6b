"""What `optimist serve` starts."""

import os
import re
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from optimist_cli import engine
from optimist_cli.serve import command as serve
from optimist_cli.serve.process import ServiceSpec
from optimist_cli.serve.service_specs import gateway_url, model_name, service_specs
from optimist_cli.serve.settings import serve_settings
from optimist_common.errors import SetupError
from optimist_common.network.server import bind
from optimist_common.settings import ServiceSettings, config_file, load_settings, split_flags
from optimist_gateway.settings import GatewaySettings
from optimist_proposer.settings import ProposerSettings
from optimist_scheduler.settings import SchedulerSettings
from optimist_vllm.engine.settings import EngineSettings
from optimist_worker.settings import WorkerSettings
from tests.certificates import issue, make_authority
from tests.cli.fake_gateway import serving
from tests.common.ipv6 import needs_ipv6


def _value(arguments: Sequence[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


SETTINGS: dict[str, type[ServiceSettings]] = {
    "proposer": ProposerSettings,
    "worker": WorkerSettings,
    "scheduler": SchedulerSettings,
    "gateway": GatewaySettings,
}


def started(*options: str) -> dict[str, dict[str, object]]:
    """Returns by which settings each service goes when it is started as `serve` starts it."""
    arguments = ["some/model", *options]
    settings, flags = serve_settings(arguments)
    specs = service_specs(settings, config_file(arguments), flags)
    return {
        spec.name: load_settings(SETTINGS[spec.name], spec.arguments).model_dump() for spec in specs
    }


def specs_of(*options: str) -> Sequence[ServiceSpec]:
    settings, flags = serve_settings(["model", *options])
    return service_specs(settings, None, flags)


def arguments_of(name: str, *options: str) -> list[Sequence[str]]:
    """Returns the arguments of all services of a name."""
    return [spec.arguments for spec in specs_of(*options) if spec.name == name]


@pytest.mark.parametrize("name", ["proposer", "worker"])
def test_the_scheduler_knows_all(name: str) -> None:
    specs = specs_of(f"--{name}s", "3")
    services = [spec.arguments for spec in specs if spec.name == name]
    (scheduler,) = [spec.arguments for spec in specs if spec.name == "scheduler"]
    addresses = [f"{_value(each, '--host')}:{_value(each, '--port')}" for each in services]
    assert _value(scheduler, f"--{name}s").split(",") == addresses
    assert len(set(addresses)) == 3


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        (("--workers", "3", "--device", "cuda"), ["cuda:0", "cuda:1", "cuda:2"]),
        (("--workers", "3", "--device", "cpu"), ["cpu"] * 3),
        (("--workers", "3"), ["auto:0", "auto:1", "auto:2"]),
        (("--device", "cuda"), ["cuda"]),
    ],
)
def test_several_workers_have_a_device_each(
    options: tuple[str, ...], devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPTIMIST_WORKER_DEVICE", raising=False)
    assert [_value(each, "--device") for each in arguments_of("worker", *options)] == devices


def test_workers_of_several_devices_are_not_started_together() -> None:
    options = ("--workers", "2", "--tensor-parallel-size", "2")
    with pytest.raises(SetupError, match="--workers: must be 1"):
        serve_settings(["model", *options])
    worker, _ = arguments_of("worker", *options, "--device", "cpu")
    assert _value(worker, "--tensor-parallel-size") == "2"


def test_the_gateway_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    # It remembers the proxy of its first use.
    monkeypatch.setattr(urllib.request, "_opener", None)
    # Nobody listens there.
    with bind("127.0.0.1", 0) as unused, serving([], []) as url:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused.getsockname()[1]}")
        *_, gateway = specs_of("--port", str(urlsplit(url).port))
        assert gateway.is_healthy()


def test_a_gateway_that_shows_a_certificate_is_asked_by_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = issue(tmp_path, make_authority(tmp_path), "gateway", "DNS:api.example")
    monkeypatch.setenv("OPTIMIST_GATEWAY_HTTPS_CERT", shown.cert)
    monkeypatch.setenv("OPTIMIST_GATEWAY_HTTPS_KEY", shown.key)
    with serving([], [], certificate=shown) as url:
        settings, _ = serve_settings(["model", "--port", str(urlsplit(url).port)])
        assert gateway_url(settings) == url
        *_, gateway = service_specs(settings)
        assert gateway.is_healthy()


def test_the_services_read_the_file_of_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text(
        "serve: {log_level: info}\n"
        "proposer: {store: 'redis://one', log_level: debug}\n"
        "worker: {max_num_seqs: 3, dtype: float16, log_level: debug}\n"
        "gateway: {served_model_name: mine, grpc_port: 7}\n"
    )
    by_flag = started("--config", "settings.yaml")
    monkeypatch.setenv("OPTIMIST_CONFIG", "settings.yaml")
    by_variable = started()
    expected_of: dict[str, dict[str, object]] = {
        "proposer": {"store": "redis://one", "log_level": "info"},
        "worker": {"max_num_seqs": 3, "dtype": "float16", "log_level": "info"},
        "gateway": {"served_model_name": "mine", "grpc_port": 7},
    }
    for name, expected in expected_of.items():
        assert all(expected.items() <= each[name].items() for each in (by_flag, by_variable))
    settings, _ = serve_settings(["some/model"])
    assert model_name(settings, "settings.yaml") == "mine"


def test_a_variable_of_a_service_yields_to_an_option_of_serve_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPTIMIST_PROPOSER_STORE", "redis://one")
    monkeypatch.setenv("OPTIMIST_SCHEDULER_LOG_LEVEL", "error")
    monkeypatch.setenv("OPTIMIST_GATEWAY_GRPC_PORT", "7")
    services = started()
    assert services["proposer"]["store"] == "redis://one"
    assert services["scheduler"]["log_level"] == "error"
    assert services["gateway"]["grpc_port"] == 7
    monkeypatch.setenv("OPTIMIST_SERVE_LOG_LEVEL", "info")
    services = started("--store", "memory", "--grpc-port", "0")
    assert services["proposer"]["store"] == "memory"
    assert {each["log_level"] for each in services.values()} == {"info"}
    assert services["gateway"]["grpc_port"] == 0


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_the_gateway_may_be_on_ipv6(host: str) -> None:
    with serving([], [], "::1") as url:
        *_, gateway = specs_of("--host", host, "--port", str(urlsplit(url).port))
        assert gateway.is_healthy()
    assert _value(gateway.arguments, "--host") == "::1"


def test_services_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", {"fastapi": True, "redis": True}.get)
    with pytest.raises(SetupError, match=r"^not installed: scheduler, worker; .* 'optimist\[sch"):
        serve.main(["some/model"])


def test_options_of_single_services_are_passed_on_to_those_that_have_them() -> None:
    services = started(
        *("--max-model-len", "64", "--num-speculative-tokens", "8", "--no-enable-prefix-caching"),
        *("--max-num-seqs", "3", "--insecure", "--api-keys-file", "keys", "--allowed-hosts", "a,b"),
    )
    expected_of: dict[str, dict[str, object]] = {
        "gateway": {"insecure": True, "api_keys_file": "keys", "allowed_hosts": ["a", "b"]},
        "scheduler": {
            "num_speculative_tokens": 8,
            "enable_prefix_caching": False,
            "max_num_seqs": 3,
            "insecure": False,
        },
        "worker": {"max_model_len": 64, "max_num_seqs": 3, "insecure": False},
    }
    for name, expected in expected_of.items():
        assert expected.items() <= services[name].items()


def test_a_key_reaches_the_gateway_and_no_command_line() -> None:
    endpoint = "http://127.0.0.1:4317"
    *others, gateway = specs_of("--api-key", "secret", "--otlp-endpoint", endpoint)
    # All services export their spans if one says where.
    assert {_value(spec.arguments, "--otlp-endpoint") for spec in others} == {endpoint}
    assert gateway.variables == {"OPTIMIST_GATEWAY_API_KEYS": "secret"}
    assert not any("secret" in word for spec in (*others, gateway) for word in spec.arguments)
    assert not any(spec.variables for spec in others)


def test_vllm_is_an_engine_of_the_gateway() -> None:
    words = ["model", "--engine", "vllm", "--engine-python", "/vllm/python", "--log-level", "info"]
    settings, _ = serve_settings(words)
    engine, gateway = service_specs(settings, None, {"engine": ["--dtype", "bfloat16"]})
    assert (engine.python, engine.module) == ("/vllm/python", "optimist_vllm.engine")
    own, flags = split_flags(engine.arguments)
    assert flags == ["--dtype", "bfloat16"]
    of_engine = load_settings(EngineSettings, own)
    assert (of_engine.model, of_engine.log_level) == ("model", "info")
    assert _value(gateway.arguments, "--schedulers") == f"127.0.0.1:{of_engine.port}"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--engine vllm --dtype float32", "--dtype: is of --engine optimist; give vLLM's own"),
        ("--engine vllm --workers 2", "--workers: is of --engine optimist; give vLLM's own"),
        ("--engine-python python", "--engine-python: is of --engine vllm"),
        ("-- --dtype float32", "--dtype: what comes after -- is for --engine vllm"),
    ],
)
def test_each_engine_has_its_own_flags(words: str, reason: str) -> None:
    with pytest.raises(SetupError, match=f"^{re.escape(reason)}"):
        serve.main(["model", *words.split()])


def test_the_engine_alone_is_started_by_the_python_that_has_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Sequence[str]] = []
    monkeypatch.setattr(os, "execvp", lambda _python, command: started.append(command))
    for words in ("model --port 7 --engine-python /vllm/python -- --dtype auto", "model"):
        engine.main(words.split())
    module = ["-m", "optimist_vllm.engine", "model"]
    assert started[0] == ["/vllm/python", *module, "--port", "7", "--", "--dtype", "auto"]
    assert started[1] == [sys.executable, *module]
    with pytest.raises(SetupError, match=r"^--engine-python: name the Python"):
        engine.main(["model", "--engine-python"])
    monkeypatch.undo()
    with pytest.raises(SetupError, match=r"^--engine-python: cannot start /no/python: No such"):
        engine.main(["model", "--engine-python", "/no/python"])
