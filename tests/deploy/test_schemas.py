"""Every document follows the schema of its kind, with nothing that the schema does not know."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.installation import COMPONENTS, combinations, render
from tests.deploy.manifest import REPOSITORY

VERSIONS = ("1.28", "1.33", kubernetes_validate.latest_version())
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
        for combination in [*combinations(), *alone]
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
    for document in plain:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
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
