"""Every document follows the schema of its kind, with nothing that the schema does not know."""

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.installation import combinations, render, single_components
from tests.deploy.manifest import REPOSITORY

VERSIONS = ("1.28", "1.33", kubernetes_validate.latest_version())
# Kinds that come with an operator, and the module that has the type of their documents.
CUSTOM = {
    "Certificate": "@kubernetes-models/cert-manager/cert-manager.io/v1/Certificate",
    "HTTPRoute": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute",
    "Issuer": "@kubernetes-models/cert-manager/cert-manager.io/v1/Issuer",
    "LeaderWorkerSet": "./leader-worker-set",
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
    "/PrometheusRule",
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
    "/ServiceMonitor",
}
_OPTIONS = {
    "noEmit": True,
    "strict": True,
    "module": "nodenext",
    "moduleResolution": "nodenext",
    "skipLibCheck": True,
    "types": [],
}


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """All documents of all combinations, each once."""
    found = {
        json.dumps(document, sort_keys=True): document
        for combination in [*combinations(), *single_components()]
        for document in render(*combination).documents
    }
    return list(found.values())


def test_all_follow_the_schemas_of_kubernetes(documents: list[dict[str, Any]]) -> None:
    plain = [one for one in documents if one["kind"] not in CUSTOM]
    for template in templates(documents):
        meta = {"name": "of-a-group"}
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template}
        plain.append(pod)
    assert len(plain) > 80
    for document in plain:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def templates(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups = [
        one["spec"]["leaderWorkerTemplate"] for one in documents if one["kind"] == "LeaderWorkerSet"
    ]
    assert groups
    return [one[name] for one in groups for name in ("leaderTemplate", "workerTemplate")]


def test_what_operators_know_follows_their_types(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    custom = [one for one in documents if one["kind"] in CUSTOM]
    assert {one["kind"] for one in custom} == set(CUSTOM)
    assert check_types(custom, tmp_path) == []


def test_a_document_with_a_wrong_field_is_found(
    documents: list[dict[str, Any]], tmp_path: Path
) -> None:
    wrong = [misspell(documents, kind) for kind in sorted(CUSTOM)]
    errors = check_types(wrong, tmp_path)
    assert len(errors) == len(CUSTOM)
    assert all("unknownField" in error for error in errors)


def misspell(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = copy.deepcopy(next(one for one in documents if one["kind"] == kind))
    found["spec"]["unknownField"] = 1
    return found


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
    options = {"compilerOptions": _OPTIONS, "files": ["documents.ts"]}
    (directory / "tsconfig.json").write_text(json.dumps(options))
    (directory / "package.json").write_text('{"type": "commonjs"}')
    compiler = REPOSITORY / "node_modules" / ".bin" / "tsc"
    assert compiler.exists(), "there is no TypeScript: `make lint` provides it"
    command = [str(compiler), "--pretty", "false", "--project", str(directory)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    errors = [line for line in result.stdout.splitlines() if "error TS" in line]
    assert (result.returncode == 0) is (not errors), result.stdout + result.stderr
    return errors
