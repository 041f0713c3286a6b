"""Reads what the repository deploys, and the settings that the deployed services understand."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from optimist_common.settings import ServiceSettings

REPOSITORY = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "worker", "proposer")
ENGINE = "engine"
"""The service over vLLM, which stands for a scheduler and its workers."""
DEPLOYED = (*SERVICES, ENGINE)


def settings_class(service: str) -> type[ServiceSettings]:
    """Returns the settings of a service, the only ServiceSettings that its module defines."""
    package = "optimist_vllm.engine" if service == ENGINE else f"optimist_{service}"
    module = import_module(f"{package}.settings")
    classes = (each for each in vars(module).values() if isinstance(each, type))
    own = (each for each in classes if each.__module__ == module.__name__)
    (found,) = (each for each in own if issubclass(each, ServiceSettings))
    return found


def settings_values(service: str, variables: dict[str, str]) -> dict[str, str]:
    """Returns a container's `OPTIMIST_<SERVICE>_*` variables by the name of their field."""
    prefix = f"OPTIMIST_{service.upper()}_"
    own = {name: value for name, value in variables.items() if name.startswith("OPTIMIST_")}
    assert all(name.startswith(prefix) for name in own), variables
    return {name.removeprefix(prefix).lower(): value for name, value in own.items()}


def document(path: str) -> dict[str, Any]:
    """Returns the only YAML document of a file of the repository."""
    (found,) = yaml.safe_load_all((REPOSITORY / path).read_text())
    assert isinstance(found, dict)
    return found


def compose_services() -> dict[str, dict[str, Any]]:
    """Returns the services of docker-compose.yml."""
    services: dict[str, dict[str, Any]] = document("docker-compose.yml")["services"]
    return services


def chosen(value: object) -> str:
    """Returns what a variable is if nothing is set: `${NAME:-value}` is the value."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))


def instructions(name: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile, each with its joined argument.

    Args:
        name: A service, or the path of the file in the repository.
    """
    path = f"services/{name}/Dockerfile" if name in SERVICES else name
    path = "engines/vllm/Dockerfile" if name == ENGINE else path
    text = (REPOSITORY / path).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in lines)]


def image_variables(service: str) -> dict[str, str]:
    """Returns the settings that a service's image has as variables."""
    words = [word for name, text in instructions(service) if name == "ENV" for word in text.split()]
    return dict(word.split("=", 1) for word in words if word.startswith("OPTIMIST_"))


def alerts() -> list[dict[str, Any]]:
    """Returns the rules of Prometheus."""
    groups = document("deploy/prometheus/alerts.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def known_series() -> dict[str, set[str]]:
    """Returns the labels of each series that can be scraped, as `make docs` lists the metrics."""
    text = (REPOSITORY / "docs" / "metrics.md").read_text()
    found: dict[str, set[str]] = {}
    for name, names, kind in re.findall(
        r"^- `([\w:]+)\{?(.*?)\}?`\s+\((\w+)\)", text, re.MULTILINE
    ):
        labels = set(names.split(",")) - {""}
        if kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels}
        found[f"{name}_count" if kind == "histogram" else name] = labels
    return found


def known_metrics() -> set[str]:
    """Returns the names of all metrics, with those of a histogram's series."""
    return {name.removesuffix("_bucket") for name in known_series()}
