"""vLLM has what the plugin relies on."""

import json
from pathlib import Path

import pytest

from optimist_vllm.interface import ENGINE, PLUGIN, SUPPORTED, find_faults, read_interface

HERE = Path(__file__).parent
FAKE = HERE / "fake" / "vllm"


INTERFACES = {"plugin": PLUGIN, "engine": ENGINE}


def recorded(version: str, name: str) -> dict[str, list[str] | None]:
    text = (HERE / "interface" / f"{version}.json").read_text()
    interface: dict[str, list[str] | None] = json.loads(text)[name]
    return interface


@pytest.mark.parametrize("name", INTERFACES)
@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_version_is_as_it_is_needed(version: str, name: str) -> None:
    needed, found = INTERFACES[name], recorded(version, name)
    assert set(found) == {*needed.functions, *needed.fields}
    assert find_faults(needed, found) == []


def test_the_fake_has_the_signatures_of_the_newest_version() -> None:
    assert read_interface(PLUGIN, FAKE) == recorded(SUPPORTED[-1], "plugin")


def test_names_what_is_missing_and_what_moved(tmp_path: Path) -> None:
    source = "class Scheduler:\n    def add_request(self, other, request): ...\n"
    file = tmp_path / "v1" / "core" / "sched" / "scheduler.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    faults = find_faults(PLUGIN, read_interface(PLUGIN, tmp_path))
    name = "v1/core/sched/scheduler.py:Scheduler"
    assert f"{name}.add_request takes (self, other, request)" in faults
    assert f"{name}.schedule is missing" in faults
    assert f"{name} has no requests" in faults
    assert "v1/request.py:Request is missing" in faults
