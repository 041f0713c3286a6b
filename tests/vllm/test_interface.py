import json
from pathlib import Path

import pytest

from optimist_vllm.interface import FIELDS, FUNCTIONS, SUPPORTED, find_faults, read_interface

HERE = Path(__file__).parent
FAKE = HERE / "fake" / "vllm"


def recorded(version: str) -> dict[str, list[str] | None]:
    text = (HERE / "interface" / f"{version}.json").read_text()
    interface: dict[str, list[str] | None] = json.loads(text)
    return interface


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_supported_version_is_as_the_plugin_needs_it(version: str) -> None:
    interface = recorded(version)
    assert set(interface) == {*FUNCTIONS, *FIELDS}
    assert find_faults(interface) == []


def test_the_fake_has_the_signatures_of_the_newest_version() -> None:
    assert read_interface(FAKE) == recorded(SUPPORTED[-1])


def test_names_what_is_missing_and_what_moved(tmp_path: Path) -> None:
    source = "class Scheduler:\n    def add_request(self, other, request): ...\n"
    file = tmp_path / "v1" / "core" / "sched" / "scheduler.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    faults = find_faults(read_interface(tmp_path))
    name = "v1/core/sched/scheduler.py:Scheduler"
    assert f"{name}.add_request takes (self, other, request)" in faults
    assert f"{name}.schedule is missing" in faults
    assert f"{name} has no requests" in faults
    assert "v1/request.py:Request is missing" in faults
