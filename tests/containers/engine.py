"""Commands to the container engine that `deploy/containers/engine.sh run` provides."""

import os
from collections.abc import Sequence

from tests.command import run

PROJECT = "optimist-test"


def engine(*arguments: str) -> str:
    """Runs docker or podman."""
    return run(os.environ["ENGINE"], *arguments)


def compose(*arguments: str) -> str:
    """Runs docker-compose on docker-compose.yml as it is, as a project of its own."""
    return run(*os.environ["COMPOSE"].split(), "--project-name", PROJECT, *arguments)


def containers(service: str, *options: str) -> list[str]:
    """Returns the ids of a service's containers, in the order of their numbers."""
    ids = compose(*options, "ps", "--quiet", service).split()
    label = '{{index .Config.Labels "com.docker.compose.container-number"}}'
    return sorted(ids, key=lambda one: int(engine("inspect", "--format", label, one)))


def address(container: str) -> str:
    """Returns the address of a container in its network."""
    ips = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return engine("inspect", "--format", ips, container).strip()


def left_over() -> Sequence[str]:
    """Returns the containers, networks and volumes of the project."""
    label = f"label=com.docker.compose.project={PROJECT}"
    commands = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
    return [
        f"{command[0]} {each}"
        for command in commands
        for each in engine(*command, "--quiet", "--filter", label).split()
    ]
