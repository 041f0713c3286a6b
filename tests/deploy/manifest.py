"""Reads what the repository deploys, and the settings that the deployed services understand."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from optimist_common.settings import ServiceSettings

REPOSITORY = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "worker", "proposer")


def settings_class(service: str) -> type[ServiceSettings]:
    """Returns the settings of a service, the only ServiceSettings that its module defines."""
    module = import_module(f"optimist_{service}.settings")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, ServiceSettings)
        and value.__module__ == module.__name__
    )
    return found


def settings_values(service: str, variables: dict[str, str]) -> dict[str, str]:
    """Returns a container's `OPTIMIST_<SERVICE>_*` variables by the name of their field."""
    prefix = f"OPTIMIST_{service.upper()}_"
    assert all(name.startswith(prefix) for name in variables), variables
    return {name.removeprefix(prefix).lower(): value for name, value in variables.items()}


def documents(path: Path) -> list[dict[str, Any]]:
    """Returns the YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text()))


def instructions(name: str) -> list[tuple[str, str]]:
    """Returns the instructions of a Dockerfile, each with its joined argument.

    Args:
        name: A service, or the path of the file in the repository.
    """
    path = f"services/{name}/Dockerfile" if name in SERVICES else name
    text = (REPOSITORY / path).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, argument) for name, _, argument in (line.partition(" ") for line in lines)]


def image_variables(service: str) -> dict[str, str]:
    """Returns the settings that a service's image has as variables."""
    words = [word for name, text in instructions(service) if name == "ENV" for word in text.split()]
    return dict(word.split("=", 1) for word in words if word.startswith("OPTIMIST_"))


def alerts() -> list[dict[str, Any]]:
    """Returns the rules of Prometheus."""
    (content,) = documents(REPOSITORY / "deploy" / "prometheus" / "alerts.yml")
    return [rule for group in content["groups"] for rule in group["rules"]]


def known_metrics() -> set[str]:
    """Returns the names of all metrics."""
    text = (REPOSITORY / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(optimist_\w+)", text, re.MULTILINE))
