"""What the manifests say of one another and of the services that they run, and to Kubernetes."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from optimist_common.network.server import GRACE_SECONDS
from optimist_worker.execution.ranks import LocalRanks, find_ranks
from optimist_worker.settings import WorkerSettings, check_ranks
from tests.deploy.installation import (
    COMBINATIONS,
    COMPONENTS,
    ENGINES,
    KUBERNETES,
    OVERLAYS,
    PROTECTED,
    STACKS,
    VLLM,
    Installation,
    Pod,
    matches,
    render,
)
from tests.deploy.manifest import (
    DEPLOYED,
    ENGINE,
    REPOSITORY,
    document,
    image_variables,
    settings_class,
    settings_values,
)

_TLS = ("TLS_CERT", "TLS_KEY", "TLS_CA")
_PATHS = (*_TLS, "HTTPS_CERT", "HTTPS_KEY", "API_KEYS_FILE", "ADMIN_KEYS_FILE")


@pytest.fixture(params=COMBINATIONS)
def installation(request: pytest.FixtureRequest) -> Installation:
    return render(*COMBINATIONS[request.param])


def service_pods(installation: Installation) -> list[Pod]:
    """Returns the pods that run a service of ours."""
    return [pod for pod in installation.pods if pod.service in DEPLOYED]


def probes(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    return {name: container[name] for name in names if name in container}


def all_containers(pod: Pod) -> list[dict[str, Any]]:
    return [*pod.spec["containers"], *pod.spec.get("initContainers", [])]


def test_all_overlays_and_components_are_tested() -> None:
    overlays = {path.name for path in (KUBERNETES / "overlays").iterdir()}
    tried = {overlay.removeprefix("overlays/") for overlay, _ in COMBINATIONS.values()}
    assert overlays == tried - {"base"}
    components = {path.name for path in (KUBERNETES / "components").iterdir()}
    # Those of GPUs and of the model are parts of others; that of the runbook wants a ConfigMap.
    assert components == {*COMPONENTS, "gpu", "served-model", "runbook"}


def test_every_file_is_part_of_a_kustomization() -> None:
    for directory in {path.parent for path in KUBERNETES.rglob("kustomization.yaml")}:
        content = document(str(directory / "kustomization.yaml"))
        named = {*content.get("resources", [])}
        named |= {one["path"] for one in content.get("patches", []) if "path" in one}
        named |= {file for one in content.get("configMapGenerator", []) for file in one["files"]}
        files = {path.name for path in directory.iterdir() if path.is_file()}
        # The adapter of metrics is configured by its own chart.
        assert files - named <= {"kustomization.yaml", "adapter-rules.yaml"}, directory


def test_gives_each_service_settings_that_it_accepts(installation: Installation) -> None:
    for pod in service_pods(installation):
        values = settings_values(pod.service, image_variables(pod.service) | pod.variables)
        settings_class(pod.service)(**values)


def test_a_service_leads_to_ports_that_are_listened_on(installation: Installation) -> None:
    for name, service in installation.kind("Service").items():
        pods = installation.selected({"matchLabels": service["spec"]["selector"]})
        assert pods, name
        for port in service["spec"]["ports"]:
            for pod in pods:
                assert pod.ports[port["targetPort"]] == port["port"], name


def test_services_listen_where_they_are_called(installation: Installation) -> None:
    for pod in service_pods(installation):
        for service, port in installation.called_by(pod):
            assert port in [one["port"] for one in service["spec"]["ports"]]
        if pod.is_rank:
            assert pod.ports == {}
            continue
        values = settings_values(pod.service, image_variables(pod.service) | pod.variables)
        expected = {"grpc": "port", "metrics": "metrics_port"}
        if pod.service == "gateway":
            expected = {"http": "port", "grpc": "grpc_port"}
        assert pod.ports == {
            name: int(values[key]) for name, key in expected.items() if key in values
        }


def test_pods_say_when_they_have_started_are_ready_and_alive(installation: Installation) -> None:
    for pod in installation.pods:
        for container in pod.spec["containers"]:
            found = probes(container)
            if pod.is_rank:
                assert not found
                continue
            assert len(found) == 3, pod.owner
            for name, probe in found.items():
                check_probe(pod, container, name, probe)


def check_probe(pod: Pod, container: dict[str, Any], name: str, probe: dict[str, Any]) -> None:
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    (action,) = probe.keys() & {"grpc", "tcpSocket", "httpGet", "exec"}
    is_tls = any(key.endswith("_TLS_CERT") for key in pod.variables) and pod.service != "gateway"
    if action == "exec":
        assert probe["timeoutSeconds"] >= 3
        command = probe["exec"]["command"]
        if command[0].startswith("python"):
            assert is_tls
            options = ["--service=liveness"] if name == "livenessProbe" else []
            assert command[1:] == [
                *("-m", "optimist_common.network.health", *options),
                f"127.0.0.1:{ports['grpc']}",
            ]
        return
    port = probe[action]["port"]
    if name == "livenessProbe":
        # A stopped process still accepts connections; and nobody dies because another is away.
        of_process = {"httpGet": ("path", "/live"), "grpc": ("service", "liveness")}
        key, value = of_process[action] if pod.service in DEPLOYED else ("port", port)
        assert probe[action][key] == value, pod.owner
    assert port in (*ports, *ports.values())
    assert port not in ("metrics", ports.get("metrics"))
    # A cluster's own gRPC probes show no certificate.
    assert not (action == "grpc" and is_tls)


def variable(pod: Pod, name: str) -> str:
    return f"OPTIMIST_{pod.service.upper()}_{name}"


def test_pods_are_as_restricted_as_kubernetes_knows(installation: Installation) -> None:
    for pod in installation.pods:
        security = pod.spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["automountServiceAccountToken"] is False
        # The cluster would add variables that are named like settings.
        assert pod.spec["enableServiceLinks"] is False
        assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert not any("hostPath" in volume for volume in pod.spec["volumes"])
        for container in all_containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]
    accounts = installation.kind("ServiceAccount")
    assert {pod.spec["serviceAccountName"] for pod in installation.pods} == set(accounts)
    for account in accounts.values():
        assert account["automountServiceAccountToken"] is False


def test_pods_outlive_the_grace_that_their_service_gives_to_requests(
    installation: Installation,
) -> None:
    for pod in service_pods(installation):
        grace = GRACE_SECONDS
        if pod.service == "gateway":
            hook = pod.container["lifecycle"]["preStop"]["exec"]["command"]
            assert hook[0] == "sleep"
            settings = settings_class("gateway").model_fields
            seconds = pod.variables.get("OPTIMIST_GATEWAY_GRACE_SECONDS")
            grace += float(seconds or settings["grace_seconds"].default) + float(hook[1])
        assert pod.spec["terminationGracePeriodSeconds"] > grace


def test_what_is_mounted_is_there_and_files_are_mounted_where_settings_look(
    installation: Installation,
) -> None:
    for pod in installation.pods:
        volumes = {one["name"]: one for one in pod.spec["volumes"]}
        for container in all_containers(pod):
            for mount in container.get("volumeMounts", []):
                volume = volumes[mount["name"]]
                if "configMap" in volume:
                    assert volume["configMap"]["name"] in installation.kind("ConfigMap")
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]
                    assert claim["claimName"] in installation.kind("PersistentVolumeClaim")
                    if mount["name"] != "cache":
                        assert mount["readOnly"] is claim["readOnly"] is True
                if "secret" in volume:
                    assert mount["readOnly"] is True
                    # Files of root's, that the pod's group may read.
                    assert volume["secret"]["defaultMode"] == 0o440
                    group = 2000 if pod.service == ENGINE else 10001
                    assert pod.spec["securityContext"]["fsGroup"] == group
        if pod in service_pods(installation):
            check_files(pod, volumes)


def check_files(pod: Pod, volumes: dict[str, dict[str, Any]]) -> None:
    mounts = {one["mountPath"]: one["name"] for one in pod.container["volumeMounts"]}
    for name in _PATHS:
        path = pod.variables.get(variable(pod, name))
        if path is None:
            continue
        directory, _, file = path.rpartition("/")
        secret = volumes[mounts[directory]]["secret"]
        if "items" in secret:
            assert file in [item["path"] for item in secret["items"]]
        else:
            kind = "tls" if name in _TLS else "https"
            assert secret["secretName"] == f"optimist-{pod.service}-{kind}"
            assert file in ("tls.crt", "tls.key", "ca.crt")
    model = pod.variables.get(variable(pod, "MODEL"))
    # Another is one of the hub.
    if model is not None and model.startswith("/"):
        assert mounts[model] in volumes


def test_gpus_are_asked_for_where_they_are_used(installation: Installation) -> None:
    for pod in service_pods(installation):
        limits = pod.container["resources"]["limits"]
        is_engine = pod.service == ENGINE
        uses = is_engine or pod.variables.get("OPTIMIST_WORKER_DEVICE") == "cuda"
        assert uses is ("nvidia.com/gpu" in limits)
        # The checkpoint says what it is computed in: the bundled one needs float32.
        assert "OPTIMIST_WORKER_DTYPE" not in pod.variables
        # What weights leave of a GPU's memory is for KV blocks.
        assert not (uses and "OPTIMIST_WORKER_KV_MEMORY_MIB" in pod.variables)
        if uses and not is_engine:
            assert pod.container["image"].endswith("-cuda")
    for pod in installation.pods:
        if "nvidia.com/gpu" in pod.container["resources"]["limits"]:
            assert [one["key"] for one in pod.spec["tolerations"]] == ["nvidia.com/gpu"]
            assert any(key.startswith("nvidia.com/gpu") for key in pod.spec["nodeSelector"])


@pytest.mark.parametrize("stack", STACKS)
def test_a_group_has_a_gpu_for_each_rank(stack: str) -> None:
    installation = render("overlays/tensor-parallel", STACKS[stack])
    (group,) = installation.kind("LeaderWorkerSet").values()
    size = group["spec"]["leaderWorkerTemplate"]["size"]
    roles = {pod.role: pod for pod in installation.pods if pod.service == "worker"}
    started: list[int] = []
    for index in range(size):
        pod = roles["worker" if index == 0 else "worker-rank"]
        # What the set adds.
        environment = {"LWS_LEADER_ADDRESS": "leader", "LWS_GROUP_SIZE": str(size)}
        environment["LWS_WORKER_INDEX"] = str(index)
        tensor_parallel_size = int(pod.variables["OPTIMIST_WORKER_TENSOR_PARALLEL_SIZE"])
        ranks = find_ranks(environment, tensor_parallel_size, pipeline_parallel_size=1)
        assert isinstance(ranks, LocalRanks)
        assert ranks.number == pod.container["resources"]["limits"]["nvidia.com/gpu"]
        started += range(ranks.first_rank, ranks.first_rank + ranks.number)
        variables = image_variables("worker") | pod.variables
        check_ranks(WorkerSettings(**settings_values("worker", variables)), "leader")
    assert started == list(range(tensor_parallel_size))
    # What the ranks compute, they compute alike.
    leader, rank = (roles[role].variables for role in ("worker", "worker-rank"))
    own = {f"OPTIMIST_WORKER_{name}" for name in ("INSECURE", "METRICS_PORT", *_TLS)}
    assert dict(leader.items() ^ rank.items()).keys() <= own
    # The set's own headless Service has its name.
    assert group["metadata"]["name"] not in installation.kind("Service")


@pytest.mark.parametrize("overlay", [*OVERLAYS, ENGINES])
def test_names_that_are_resolved_to_all_addresses_are_headless(overlay: str) -> None:
    services = render(overlay).kind("Service")
    for name, service in services.items():
        is_called_by_all_addresses = not name.startswith(("optimist-gateway", "optimist-redis"))
        assert (service["spec"].get("clusterIP") == "None") is is_called_by_all_addresses


@pytest.mark.parametrize(("overlay", "stack"), PROTECTED)
def test_certificates_name_whatever_is_called(overlay: str, stack: tuple[str, ...]) -> None:
    installation = render(overlay, stack)
    certificates = installation.kind("Certificate")
    issuers = installation.kind("Issuer")
    secrets = {one["spec"]["secretName"]: one["spec"] for one in certificates.values()}
    called = set()
    for pod in service_pods(installation):
        called |= {
            value.split(":")[0]
            for key, value in pod.variables.items()
            if key.endswith(("_SCHEDULERS", "_WORKERS", "_PROPOSERS"))
        }
        for volume in pod.spec["volumes"]:
            if volume["name"] == "tls":
                spec = secrets[volume["secret"]["secretName"]]
                assert {"client auth", "server auth"} <= set(spec["usages"])
                is_probed = any("exec" in probe for probe in probes(pod.container).values())
                assert is_probed is ("127.0.0.1" in spec.get("ipAddresses", []))
    for host in called:
        assert host in secrets[f"optimist-{host.split('-')[1]}-tls"]["dnsNames"]
    for one in certificates.values():
        assert one["spec"]["issuerRef"]["name"] in issuers
    assert issuers["optimist-authority"]["spec"]["ca"]["secretName"] in secrets


@pytest.mark.parametrize("stack", STACKS)
def test_whoever_asks_the_gateway_knows_whether_it_speaks_tls(stack: str) -> None:
    installation = render("base", STACKS[stack])
    (gateway,) = (pod for pod in installation.pods if pod.role == "gateway")
    is_tls = "OPTIMIST_GATEWAY_HTTPS_CERT" in gateway.variables
    assert is_tls is ("https" in STACKS[stack])
    assert gateway.container["readinessProbe"]["httpGet"].get("scheme") == (
        "HTTPS" if is_tls else None
    )
    ports = installation.kind("Service")["optimist-gateway"]["spec"]["ports"]
    protocols = {port["name"]: port.get("appProtocol") for port in ports}
    assert protocols == {"http": None, "grpc": None if is_tls else "kubernetes.io/h2c"}
    for monitor in installation.kind("ServiceMonitor").values():
        assert monitor["spec"]["endpoints"][0].get("scheme") == ("https" if is_tls else None)
    for ingress in installation.kind("Ingress").values():
        annotations = ingress["metadata"]["annotations"]
        assert annotations["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"


def test_nothing_goes_unprotected_with_all_that_protects() -> None:
    for overlay, stack in PROTECTED:
        assert {"mtls", "cert-manager", "api-keys", "strict"} <= set(stack)
        for pod in service_pods(render(overlay, stack)):
            assert (variable(pod, "INSECURE") in pod.variables) is pod.is_rank


_DNS = {"k8s-app": "kube-dns"}
_ANY_PORT = 0
# REST and gRPC.
_GATEWAY = (8000, 50050)
_OUTSIDE = "outside"


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


@pytest.fixture(params=[name for name, (overlay, _) in COMBINATIONS.items() if overlay != VLLM])
def guarded(request: pytest.FixtureRequest) -> Installation:
    return render(*COMBINATIONS[request.param])


def test_the_services_reach_whom_their_settings_name_and_nobody_else(guarded: Installation) -> None:
    assert allowed(guarded, "egress", "to") == needed(guarded)
    incoming = {(b, a, port) for a, b, port in allowed(guarded, "ingress", "from")}
    everybody = {(pod.role, "gateway", port) for pod in guarded.pods for port in _GATEWAY}
    assert incoming - everybody == needed(guarded)


def test_the_world_reaches_the_gateway_alone_and_prometheus_what_it_scrapes(
    guarded: Installation,
) -> None:
    assert reached_from(guarded, _OUTSIDE) == {("gateway", port) for port in _GATEWAY}
    scraped = {("gateway", port) for port in _GATEWAY}
    for monitor in guarded.kind("PodMonitor").values():
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        pods = guarded.selected(monitor["spec"]["selector"])
        found = {(pod.role, pod.ports[endpoint["port"]]) for pod in pods}
        # Engines are scraped as schedulers, and have no workers and proposers.
        assert len(found) == 1 or (not found and any(pod.role == "engine" for pod in guarded.pods))
        scraped |= found
    assert reached_from(guarded, "monitoring") == scraped


def test_all_may_look_up_names_and_engines_models_and_reach_nothing_else_outside(
    guarded: Installation,
) -> None:
    has_engines = any(pod.service == "engine" for pod in guarded.pods)
    for pod in guarded.pods:
        rules = policies(guarded, pod, "egress")
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


VERSIONS = ("1.28", kubernetes_validate.latest_version())
_MONITORING = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
# Kinds that come with an operator, and the module that has the type of their documents.
CUSTOM = {
    "Certificate": "@kubernetes-models/cert-manager/cert-manager.io/v1/Certificate",
    "HTTPRoute": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute",
    "Issuer": "@kubernetes-models/cert-manager/cert-manager.io/v1/Issuer",
    "LeaderWorkerSet": "./leader-worker-set",
    "PodMonitor": f"{_MONITORING}/PodMonitor",
    "PrometheusRule": f"{_MONITORING}/PrometheusRule",
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "ServiceMonitor": f"{_MONITORING}/ServiceMonitor",
}
_OPTIONS = dict.fromkeys(("noEmit", "strict", "skipLibCheck"), True)
_MODULES = dict.fromkeys(("module", "moduleResolution"), "nodenext")


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """All documents of all combinations, each once."""
    # Each component that may stand alone does so, too.
    alone = [("base", (one,)) for one in COMPONENTS if one != "strict"]
    found = {
        json.dumps(document, sort_keys=True): document
        for combination in [*COMBINATIONS.values(), *alone]
        for document in render(*combination).documents
    }
    return list(found.values())


def test_all_follow_the_schemas_of_kubernetes(documents: list[dict[str, Any]]) -> None:
    plain = [one for one in documents if one["kind"] not in CUSTOM]
    for group in (one for one in documents if one["kind"] == "LeaderWorkerSet"):
        for name in ("leaderTemplate", "workerTemplate"):
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "of-a-group"}}
            plain.append(pod | {"template": group["spec"]["leaderWorkerTemplate"][name]})
    assert len(plain) > 80
    assert any(one["kind"] == "PodTemplate" for one in plain)
    for one in plain:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)
    deployment = next(one for one in plain if one["kind"] == "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(
            deployment | {"spec": deployment["spec"] | {"replica": 2}}, VERSIONS[0], strict=True
        )


def test_what_operators_know_follows_their_types(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    custom = [one for one in documents if one["kind"] in CUSTOM]
    assert {one["kind"] for one in custom} == set(CUSTOM)
    assert check_types(custom, tmp_path) == []


def check_types(documents: list[dict[str, Any]], directory: Path) -> list[str]:
    """Lets the TypeScript compiler compare documents with types; returns its errors.

    A literal may have no property that its type does not know.
    """
    (directory / "node_modules").symlink_to(REPOSITORY / "node_modules")
    shutil.copy(Path(__file__).with_name("leader-worker-set.d.ts"), directory)
    kinds = {one["kind"] for one in documents}
    lines = [f'import type {{ I{kind} }} from "{CUSTOM[kind]}";' for kind in sorted(kinds)]
    lines += [
        f"export const document{number}: I{document['kind']} = {json.dumps(document, indent=1)};"
        for number, document in enumerate(documents)
    ]
    (directory / "documents.ts").write_text("\n".join(lines))
    options = {"compilerOptions": _OPTIONS | _MODULES | {"types": []}, "files": ["documents.ts"]}
    (directory / "tsconfig.json").write_text(json.dumps(options))
    (directory / "package.json").write_text('{"type": "commonjs"}')
    compiler = REPOSITORY / "node_modules" / ".bin" / "tsc"
    assert compiler.exists(), "there is no TypeScript: `make lint` provides it"
    command = [str(compiler), "--pretty", "false", "--project", str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    errors = [line for line in result.stdout.splitlines() if "error TS" in line]
    assert (result.returncode == 0) is (not errors), result.stdout + result.stderr
    return errors
