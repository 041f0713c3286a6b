"""bench/gpu.py from end to end, with tiny shapes on the CPU."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_measure.parts import kind_of

SCRIPT = Path(__file__).resolve().parents[3] / "bench" / "gpu.py"
# A machine with a GPU may have none of these; then only the services are left out.
BARE = """
import runpy, sys
for name in ("grpc", "pydantic", "redis", "fastapi", "httpx", "google.protobuf", "rapidfuzz"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
KEYS = {
    *("device", "dtype", "is_tiny", "torch", "cuda", "transformers", "seconds"),
    *("ceilings", "rows", "targets", "skipped", "errors"),
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    command = [sys.executable, "-c", BARE, str(SCRIPT), "--device", "cpu", "--tiny", "--json", "-"]
    folder = tmp_path_factory.mktemp("gpu")
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def report(output: str) -> Any:
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_every_section_has_rows_or_says_why_not(report: Any) -> None:
    assert set(report) == KEYS
    assert report["errors"] == {}
    sections = {row["section"] for row in report["rows"]}
    assert sections == {*("ceilings", "kernel", "exactness", "grid", "overlap", "edits")}
    assert "the services need it" in report["skipped"]["services"]
    assert report["skipped"]["parts"] == "needs CUDA"
    assert all("CUDA" in why for what, why in report["skipped"].items() if what != "services")


@pytest.mark.slow
def test_rows_have_floors_and_notes(report: Any) -> None:
    grid = [row for row in report["rows"] if row["section"] == "grid"]
    assert all(row["ratio"] == pytest.approx(row["measured"] / row["floor"]) for row in grid)
    verified = [row for row in grid if "drafts 3" in row["what"]]
    # All drafts are right, and each step has a token of its own.
    assert verified
    assert all(row["note"].startswith("4.0 tokens a row") for row in verified)
    # Texts do not depend on their predictions.
    for row in report["rows"]:
        if row["section"] == "exactness":
            assert row["measured"] == 3
        if "speedup" in row["what"]:
            assert row["note"].count("identical") == 2
        if "differ alone" in row["what"]:
            assert row["measured"] == 0


@pytest.mark.slow
def test_the_table_comes_last_and_targets_are_for_real_shapes(output: str, report: Any) -> None:
    assert output.index("services: at most") < output.index("\nwhat ") < output.index("\ntargets")
    assert {target["name"] for target in report["targets"]} == {f"T{i}" for i in range(1, 8)}
    assert {target["met"] for target in report["targets"]} == {None}


@pytest.fixture
def _paths_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    # The script puts the checkout there.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")


@pytest.mark.usefixtures("_paths_as_before")
def test_services_find_all_that_they_import_in_the_checkout() -> None:
    runpy.run_path(str(SCRIPT))
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    found = {path.name for folder in filter(None, folders) for path in Path(folder).iterdir()}
    services = ("scheduler", "worker", "common", "aligner", "cli", "bench")
    assert found >= {"optimist", *(f"optimist_{name}" for name in services)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_sm90_tst_64x8_64x16_2x1_v_bx_splitK_TNT", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "products"),
        ("combine_parts", "attention"),
        ("choose_of_part", "other kernels of ours"),
        ("void at::native::index_elementwise_kernel<128, 4>", "small operations"),
    ],
)
def test_kernels_have_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.usefixtures("_paths_as_before")
def test_what_cannot_be_measured_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--sections", "grid,rid", "--device", "cpu"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "--sections: there is no rid" in capsys.readouterr().err
