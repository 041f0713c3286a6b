"""Flags beat environment variables, which beat the YAML file; whatever is wrong is named."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import Field, field_validator

from optimist_common.errors import SetupError
from optimist_common.settings import (
    SECTIONS,
    CommaSeparated,
    Repeated,
    ServiceSettings,
    load_settings,
)
from tests.stack import REPOSITORY


class ExampleSettings(ServiceSettings):
    """An example."""

    section: ClassVar[str] = "example"
    arguments: ClassVar[tuple[str, ...]] = ("name",)

    name: str = Field(description="a name")
    port: int = Field(1, ge=1, le=65535, description="a port, at 100% of its range")
    peers: CommaSeparated = Field([], description="addresses")
    store: str = Field("memory", description="memory alone")
    texts: Repeated = Field([], description="texts")
    is_open: bool = Field(True, description="open to all")
    mode: Literal["fast", "slow"] = Field("fast", description="how fast")

    @field_validator("store")
    @classmethod
    def _is_memory(cls, value: str) -> str:
        if value != "memory":
            raise ValueError(f"must be memory, and {value} is not")
        return value


def file_with(tmp_path: Path, text: str, encoding: str = "utf-8") -> list[str]:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding)
    return ["--config", str(path)]


def test_each_source_beats_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = file_with(tmp_path, "example: {name: file, port: 3, peers: [x]}\nworker: {a: 1}")
    assert load_settings(ExampleSettings, config).name == "file"
    monkeypatch.setenv("OPTIMIST_EXAMPLE_NAME", "variable")
    settings = load_settings(ExampleSettings, config)
    assert (settings.name, settings.port, settings.peers) == ("variable", 3, ["x"])
    assert load_settings(ExampleSettings, [*config, "--name", "flag"]).name == "flag"
    monkeypatch.setenv("OPTIMIST_CONFIG", config[1])
    assert load_settings(ExampleSettings, []).port == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--name is required"),
        (["--name", "n", "--port", "0"], "--port: "),
        (["--name", "n", "--port", "many"], "--port: .*'many'"),
        (["--name", "n", "--prt", "1"], "--prt"),
        (["--name", "n", "--config", "/nowhere/x.yaml"], "/nowhere/x.yaml"),
    ],
)
def test_wrong_flags_are_named(arguments: list[str], text: str) -> None:
    with pytest.raises(SetupError, match=text):
        load_settings(ExampleSettings, arguments)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"settings\.yaml is not UTF-8 text"),
        ("example: {name: n, prot: 1}", "example.prot: no such setting"),
        ("example: {name: n, port: x}", "example.port: .*'x'"),
        ("example: {name: 2020-99-99}", "not YAML: month must be"),
        ("- example", "must map"),
        ("example: {name: n}\nwroker: {port: 1}", "wroker: no such section"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        load_settings(ExampleSettings, file_with(tmp_path, text, "utf-8" if text else "utf-16"))


@pytest.mark.parametrize(
    "url",
    [
        "reddis://user:s3cret@one:1,two:2/db",
        "redis://:s3,c/r@s3cret@host",
        "redis+sentinel://host/service?sentinel_password=s3cret",
    ],
)
def test_passwords_are_not_shown(url: str) -> None:
    for flag in ("--port", "--store", "--no-such-flag"):
        with pytest.raises(SetupError, match=flag) as raised:
            load_settings(ExampleSettings, ["--name", "n", flag, url])
        assert "s3cret" not in str(raised.value)


def test_a_command_line_as_people_write_it() -> None:
    words = ["--port", "3", "n", "--no-is-open", "--texts", "a,b", "--texts", "c"]
    settings = load_settings(ExampleSettings, words)
    assert (settings.name, settings.port, settings.is_open) == ("n", 3, False)
    assert settings.texts == ["a,b", "c"]
    assert load_settings(ExampleSettings, ["n", "--is-open"]).is_open
    with pytest.raises(SetupError, match="--name: is given twice, as 'm' too"):
        load_settings(ExampleSettings, ["m", "--name", "n"])
    for shut in (["--is-open", "false"], ["--is-open=false"]):
        assert not load_settings(ExampleSettings, [*shut, "n"]).is_open
    for opened in (["--is-open", "True"], ["--is-open=true"]):
        assert load_settings(ExampleSettings, ["--no-is-open", *opened, "n"]).is_open
    assert load_settings(ExampleSettings, ["--is-open", "n"]).name == "n"
    with pytest.raises(SetupError, match="--is-open: must be true or false, not 'perhaps'"):
        load_settings(ExampleSettings, ["n", "--is-open=perhaps"])


def every_settings_class() -> list[type[ServiceSettings]]:
    """Returns the settings of all services and commands."""
    folders = ("services", "cli", "bench", "engines/vllm")
    for path in (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        if re.search(r"section: ClassVar.* = ", path.read_text(encoding="utf-8")):
            top = next(one for one in path.parents if not (one / "__init__.py").exists())
            importlib.import_module(".".join(path.relative_to(top).with_suffix("").parts))
    return sorted(set(_named(ServiceSettings)), key=lambda each: each.section)


def _named(base: type[ServiceSettings]) -> Iterator[type[ServiceSettings]]:
    for each in base.__subclasses__():
        if each.__module__.startswith("optimist_") and hasattr(each, "section"):
            yield each
        yield from _named(each)


def refusal(settings_class: type[ServiceSettings], name: str, value: str, config: Path) -> str:
    """Returns why a value is refused, as a flag and in a file."""
    config.write_text(f"{settings_class.section}: {{{name}: {value}}}")
    flag = f"--{name.replace('_', '-')}"
    messages = []
    for origin, arguments in (
        (f"{flag}: ", [f"{flag}={value}"]),
        (f"{config}: {settings_class.section}.{name}: ", ["--config", str(config)]),
    ):
        with pytest.raises(SetupError) as raised:
            load_settings(settings_class, arguments)
        assert str(raised.value).startswith(origin)
        messages.append(str(raised.value).removeprefix(origin))
    return " ".join(messages)


def test_no_setting_of_any_service_is_infinite_or_no_number(tmp_path: Path) -> None:
    floats, times = [], []
    for each in every_settings_class():
        assert each.section in SECTIONS
        for name, field in each.model_fields.items():
            if field.annotation in (float, float | None):
                floats.append((each, name))
            if name.endswith(("seconds", "_ms")):
                times.append((each, name))
    assert {"gateway", "scheduler", "worker", "proposer", "engine", "complete"} <= {
        each.section for each, _ in floats
    }
    config = tmp_path / "settings.yaml"
    for each, name in floats:
        for value in ("-inf", "nan", "1e400"):
            assert refusal(each, name, value, config).count("finite number") == 2
    for each, name in times:
        assert re.search("at most 31536000|less than", refusal(each, name, "1" + 14 * "0", config))
        assert refusal(each, name, "-1", config).count("greater than") == 2
