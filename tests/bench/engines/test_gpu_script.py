"""bench/gpu.py from end to end, with tiny shapes on the CPU."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from tests.command import run

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
    *("ceilings", "rows", "skipped", "errors"),
}


@pytest.mark.slow
def test_every_section_has_rows_or_says_why_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BARE, str(SCRIPT), "--device", "cpu", "--tiny", "--json", "-"]
    output = run(*command, cwd=tmp_path, timeout=280)
    report = json.loads(output.splitlines()[-1])
    assert set(report) == KEYS
    assert report["errors"] == {}
    sections = {row["section"] for row in report["rows"]}
    assert sections == {*("ceilings", "kernel", "exactness", "grid", "overlap", "edits")}
    assert "the services need it" in report["skipped"].pop("services")
    assert report["skipped"]["parts"] == "needs CUDA"
    assert all("CUDA" in why for why in report["skipped"].values())
    grid = [row for row in report["rows"] if row["section"] == "grid"]
    assert all(row["ratio"] == pytest.approx(row["measured"] / row["floor"]) for row in grid)
    # All drafts are right, and each step has a token of its own.
    verified = [row["note"] for row in grid if "drafts 3" in row["what"]]
    assert verified
    assert all(note.startswith("4.0 tokens a row") for note in verified)
    # Texts do not depend on their predictions.
    for row in report["rows"]:
        if row["section"] == "exactness":
            assert row["measured"] == 3
        if "speedup" in row["what"]:
            assert row["note"].count("identical") == 2
        if "differ alone" in row["what"]:
            assert row["measured"] == 0
    # The table comes last.
    assert output.index("services: at most") < output.index("\nwhat ")


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
