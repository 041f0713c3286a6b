"""Who may speak with whom: what the policies allow is what the settings need, and nothing else."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.deploy.installation import (
    VLLM,
    Installation,
    Pod,
    combinations,
    matches,
    name_of,
    render,
)

_DNS = {"k8s-app": "kube-dns"}
_ANY_PORT = 0
# REST and gRPC.
_GATEWAY = (8000, 50050)
_OUTSIDE = "outside"


@pytest.fixture(params=[one for one in combinations() if one[0] != VLLM], ids=name_of)
def installation(request: pytest.FixtureRequest) -> Installation:
    return render(*request.param)


def policies(installation: Installation, pod: Pod, direction: str) -> list[dict[str, Any]]:
    """Returns the rules of one direction that hold for a pod, which then allow what they name."""
    kind = direction.capitalize()
    specs = [one["spec"] for one in installation.kind("NetworkPolicy").values()]
    of_pod = [one for one in specs if matches(one["podSelector"], pod.labels)]
    assert any(kind in one["policyTypes"] for one in of_pod), "all is allowed"
    return [rule for one in of_pod if kind in one["policyTypes"] for rule in one.get(direction, [])]


def allows(rule: Mapping[str, Any], other: str, labels: Mapping[str, str], space: str) -> list[int]:
    """Returns the ports by which a rule lets the pod speak with another of a namespace."""
    peers = rule.get(other)
    ports = [port["port"] for port in rule.get("ports", [{"port": _ANY_PORT}])]
    if peers is None:
        return ports
    for peer in peers:
        if "ipBlock" in peer:
            if space == _OUTSIDE:
                return ports
            continue
        assert peer.keys() <= {"podSelector", "namespaceSelector"}
        spaces = peer.get("namespaceSelector", {"matchLabels": {}})
        is_of_space = matches(spaces, {"kubernetes.io/metadata.name": space})
        if ("namespaceSelector" in peer) is (space == "own") or not is_of_space:
            continue
        if matches(peer.get("podSelector", {}), labels):
            return ports
    return []


def allowed(installation: Installation, direction: str, other: str) -> set[tuple[str, str, int]]:
    """Returns (pod, other pod, port) of all pairs that one side's rules allow."""
    return {
        (pod.role, peer.role, port)
        for pod in installation.pods
        for rule in policies(installation, pod, direction)
        for peer in installation.pods
        for port in allows(rule, other, peer.labels, "own")
    }


def reached_from(installation: Installation, space: str) -> set[tuple[str, int]]:
    """Returns (pod, port) of all that pods without labels in another namespace may speak with."""
    return {
        (pod.role, port)
        for pod in installation.pods
        for rule in policies(installation, pod, "ingress")
        for port in allows(rule, "from", {}, space)
    }


def needed(installation: Installation) -> set[tuple[str, str, int]]:
    """Returns (caller, called, port) as the settings have it."""
    edges = {
        (pod.role, called.role, port)
        for pod in installation.pods
        for service, port in installation.called_by(pod)
        for called in installation.selected({"matchLabels": service["spec"]["selector"]})
    }
    if "optimist-redis" in installation.kind("StatefulSet"):
        edges |= {("redis", "redis", 6379), ("redis", "redis", 26379), ("proposer", "redis", 6379)}
    if "worker-rank" in {pod.role for pod in installation.pods}:
        ranks = ("worker", "worker-rank")
        edges |= {(one, other, _ANY_PORT) for one in ranks for other in ranks}
    return edges


def test_the_services_reach_whom_their_settings_name_and_nobody_else(
    installation: Installation,
) -> None:
    assert allowed(installation, "egress", "to") == needed(installation)
    incoming = {(b, a, port) for a, b, port in allowed(installation, "ingress", "from")}
    everybody = {(pod.role, "gateway", port) for pod in installation.pods for port in _GATEWAY}
    assert incoming - everybody == needed(installation)


def test_the_world_reaches_the_gateway_alone(installation: Installation) -> None:
    assert reached_from(installation, _OUTSIDE) == {("gateway", port) for port in _GATEWAY}


def test_prometheus_reaches_what_it_scrapes(installation: Installation) -> None:
    scraped = {("gateway", port) for port in _GATEWAY}
    for monitor in installation.kind("PodMonitor").values():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        pods = installation.selected(monitor["spec"]["selector"])
        found = {(pod.role, pod.ports[endpoint["port"]]) for pod in pods}
        # Engines are scraped as schedulers, and have no workers and proposers.
        assert len(found) == 1 or (
            not found and any(pod.role == "engine" for pod in installation.pods)
        )
        scraped |= found
    assert reached_from(installation, "monitoring") == scraped


def test_all_may_look_up_names_and_engines_models_and_reach_nothing_else_outside(
    installation: Installation,
) -> None:
    has_engines = any(pod.service == "engine" for pod in installation.pods)
    for pod in installation.pods:
        rules = policies(installation, pod, "egress")
        dns = [port for rule in rules for port in allows(rule, "to", _DNS, "kube-system")]
        assert dns == [53, 53]
        for labels, space in (({}, "kube-system"), (_DNS, "default")):
            assert not [port for rule in rules for port in allows(rule, "to", labels, space)]
        # The gateway's tokenizer comes from the hub too.
        outside = [port for rule in rules for port in allows(rule, "to", {}, _OUTSIDE)]
        assert outside == ([443] if has_engines else [])
        for peer in (peer for rule in rules for peer in rule["to"] if "ipBlock" in peer):
            check_private_addresses_are_closed(peer)


def test_vllm_is_asked_and_asks_for_names_and_models_alone() -> None:
    installation = render(VLLM)
    (pod,) = installation.pods
    (incoming,) = policies(installation, pod, "ingress")
    assert incoming == {"ports": [{"port": pod.ports["http"]}]}
    names, models = policies(installation, pod, "egress")
    assert allows(names, "to", _DNS, "kube-system") == [53, 53]
    assert not allows(names, "to", _DNS, _OUTSIDE)
    assert models["ports"] == [{"port": 443}]
    (world,) = models["to"]
    check_private_addresses_are_closed(world)


def check_private_addresses_are_closed(peer: Mapping[str, Any]) -> None:
    closed = [ip_network(each) for each in peer["ipBlock"]["except"]]
    for private in ("10.1.2.3", "100.64.0.1", "169.254.169.254", "172.31.0.1", "192.168.1.1"):
        assert any(ip_address(private) in each for each in closed)
