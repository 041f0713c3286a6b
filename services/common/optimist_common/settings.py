"""One way to configure a service: flags, then environment variables, then a YAML file."""

import argparse
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticUndefined

from optimist_common.errors import SetupError

S = TypeVar("S", bound="ServiceSettings")


def _split(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


CommaSeparated = Annotated[list[str], BeforeValidator(_split)]
"""A list that a flag or variable writes as `a,b,c`."""


def _alone(value: object) -> object:
    return [value] if isinstance(value, str) else value


Repeated = Annotated[list[str], BeforeValidator(_alone)]
"""A list that takes a flag for each item, which may hold commas; a variable has one item."""


# fmt: off
SECTIONS = frozenset({
    "bench_apply", "bench_edits", "bench_engines", "bench_forms", "bench_graphs", "bench_hybrid",
    "bench_never_worse", "bench_overhead", "bench_overlap", "bench_predictions",
    "bench_quantization", "bench_scheduler", "bench_windows", "complete",
    "convert", "explain", "engine", "gateway", "proposer",
    "replay", "scheduler", "serve", "simulated", "worker",
})
# fmt: on
"""What a file may have settings for; one file serves several services."""


_YEAR_SECONDS = 365 * 24 * 3600
_UNITS = {"seconds": 1.0, "_ms": 1e-3}


class ServiceSettings(BaseModel):
    """Base of every service's settings; a subclass names its section and adds fields.

    A field `max_num_seqs` of section `worker` is the flag `--max-num-seqs`, the variable
    `OPTIMIST_WORKER_MAX_NUM_SEQS` and the key `max_num_seqs` below `worker:` in the YAML file that
    `--config` or `OPTIMIST_CONFIG` names. No number is infinite or NaN, and no time, a field that
    ends with `seconds` or `_ms`, longer than a year: timers cannot wait for ever.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
    section: ClassVar[str]
    arguments: ClassVar[tuple[str, ...]] = ()
    """Settings that the command line also takes by place, without their flags."""

    @field_validator("*")
    @classmethod
    def _ends_within_a_year(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, int | float):
            return value
        for ending, unit in _UNITS.items():
            if str(info.field_name).endswith(ending) and value * unit > _YEAR_SECONDS:
                raise ValueError(f"must be at most {_YEAR_SECONDS / unit:.0f}, which is a year")
        return value

    @classmethod
    def command(cls) -> str:
        """Returns the command whose settings these are: `optimist bench edits` of bench_edits."""
        return f"optimist {cls.section.replace('_', ' ')}"


def load_settings(settings_class: type[S], arguments: list[str]) -> S:
    """Builds the settings of one service; its command line is one of the three sources.

    Raises:
        SetupError: A value is wrong or a name unknown; the message says which and whence.
    """
    flags = parse_flags(option_parser(settings_class), settings_class, arguments)
    return build_settings(settings_class, flags, config_file(arguments))


def build_settings(settings_class: type[S], flags: Mapping[str, Any], config: str | None) -> S:
    """Builds settings of what `parse_flags` returns, the environment and a YAML file."""
    given = {
        **_file_values(settings_class.section, config),
        **_variables(settings_class.section),
        **{name: (flag_of(name), value) for name, value in flags.items()},
    }
    values = {name: value for name, (_, value) in given.items()}
    try:
        return settings_class(**values)
    except ValidationError as error:
        # A wrong value says more than what is missing besides.
        first = min(error.errors(), key=lambda detail: detail["type"] == "missing")
        raise _explained(first, given) from None


def _explained(detail: ErrorDetails, given: Mapping[str, tuple[str, Any]]) -> SetupError:
    """Returns an error of one line that names the setting, and where in its value the fault is."""
    reason = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return SetupError(without_passwords(reason))
    name, *path = detail["loc"]
    origin, _ = given.get(str(name), (flag_of(str(name)), None))
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    if detail["type"] == "missing":
        return SetupError(
            f"{origin}{where} is required" if path else f"{origin} is required (see --help)"
        )
    if detail["type"] == "extra_forbidden":
        return SetupError(f"{origin}{where}: no such setting")
    shown = f", not {detail['input']!r}" if str(name) in given else ""
    return SetupError(f"{origin}{where}: {without_passwords(reason + shown)}")


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns what stands before `--`, and after it the flags of another program."""
    index = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:index]), list(arguments[index + 1 :])


def config_file(arguments: list[str]) -> str | None:
    """Returns the YAML file that a command line or OPTIMIST_CONFIG names; None if neither does."""
    parser = OptionParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    known, _ = parser.parse_known_args(arguments)
    return known.config or os.environ.get("OPTIMIST_CONFIG")


def configured(section: str, name: str, config: str | None) -> Any:
    """Returns what the variable of a setting, or else the file, says; None if neither does.

    The service checks whether it is right.
    """
    variables = _variables(section)
    if name in variables:
        return variables[name][1]
    return _section(section, config).get(name)


def home_directory(environment: Mapping[str, str]) -> Path:
    """Returns where a user's files are: OPTIMIST_HOME, or `~/.optimist` if that is not set."""
    return Path(environment.get("OPTIMIST_HOME") or "~/.optimist").expanduser()


def without_passwords(text: str) -> str:
    """Returns a text as it may be shown: without the user and password of URLs in it."""
    text = re.sub(r":(//)?\S*@", r":\1***@", text)
    return re.sub(r"(password=)[^&\s'\"]+", r"\1***", text)


_BY_PLACE = "by_place_"


def flag_of(name: str, value: object = None) -> str:
    """Returns the flag of a setting, with a value if there is one."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}" if value is None else f"--{flag}={value}"


class OptionParser(argparse.ArgumentParser):
    """Knows which flags are switches; an error is a SetupError of one line."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Takes what argparse's parser takes."""
        super().__init__(*arguments, **options)
        self.switches: set[str] = set()
        """Flags of what is true or false, without those that begin with `--no-`."""

    def error(self, message: str) -> NoReturn:
        """Raises SetupError."""
        raise SetupError(f"{without_passwords(message)} (see {self.prog} --help)")


def option_parser(settings_class: type[ServiceSettings]) -> OptionParser:
    """Returns a parser of the flags of settings, which `parse_flags` is to be called with."""
    command = settings_class.command()
    places = [_metavar(name, str) for name in settings_class.arguments]
    parser = OptionParser(
        prog=command,
        usage=" ".join([command, *places, "[OPTIONS]"]),
        description=settings_class.__doc__,
        allow_abbrev=False,
    )
    for name, place in zip(settings_class.arguments, places, strict=True):
        parser.add_argument(
            _BY_PLACE + name, nargs="?", metavar=place, help=f"the same as {flag_of(name)}"
        )
    parser.add_argument("--config", metavar="FILE", help="YAML file with a section per service")
    add_options(parser, parser, settings_class, settings_class.model_fields)
    return parser


def add_options(
    parser: OptionParser,
    group: argparse._ActionsContainer,
    settings_class: type[ServiceSettings],
    names: Iterable[str],
) -> None:
    """Adds the flags of some settings to a parser or a group of it; they have no default."""
    for name in names:
        field = settings_class.model_fields[name]
        text, default = field.description or "", field.default
        if isinstance(default, list):
            default = ",".join(default)
        if default not in (PydanticUndefined, None, ""):
            text += f" (default: {default})"
        if field.annotation is bool:
            form: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
            parser.switches.add(flag_of(name))
        elif any(
            isinstance(each, BeforeValidator) and each.func is _alone for each in field.metadata
        ):
            form = {"metavar": _metavar(name, str), "action": "append"}
        else:
            form = {"metavar": _metavar(name, field.annotation)}
        group.add_argument(flag_of(name), help=text.replace("%", "%%"), **form)


def parse_flags(
    parser: OptionParser, settings_class: type[ServiceSettings], arguments: list[str]
) -> dict[str, Any]:
    """Returns what a command line says of each setting that it names; raises SetupError."""
    found = vars(parser.parse_intermixed_args(list(_without_values(arguments, parser.switches))))
    del found["config"]
    for name in settings_class.arguments:
        value = found.pop(_BY_PLACE + name)
        if value is not None and found[name] is not None:
            raise SetupError(f"{flag_of(name)}: is given twice, as {value!r} too")
        found[name] = found[name] if value is None else value
    return {name: value for name, value in found.items() if value is not None}


_TRUTHS = {"true": True, "false": False}


def _without_values(arguments: Iterable[str], switches: Collection[str]) -> Iterator[str]:
    """Yields a command line that has `--page` for `--page true` and `--no-page` for `... false`."""
    waiting = ""
    for word in arguments:
        flag, is_set, value = word.partition("=")
        if waiting:
            said = _TRUTHS.get(word.lower())
            yield f"--no-{waiting[2:]}" if said is False else waiting
            waiting = ""
            if said is not None:
                continue
        if flag not in switches:
            yield word
        elif not is_set:
            waiting = flag
        elif value.lower() in _TRUTHS:
            yield flag if _TRUTHS[value.lower()] else f"--no-{flag[2:]}"
        else:
            raise SetupError(f"{flag}: must be true or false, not {value!r}")
    if waiting:
        yield waiting


def _metavar(name: str, kind: Any) -> str:
    """Returns what stands for the value of a setting in the help."""
    others = [each for each in get_args(kind) if each is not type(None)]
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, others)) + "}"
    if get_origin(kind) is not list and len(others) == 1:
        return _metavar(name, others[0])
    if kind in (int, float):
        return "N"
    word = name.rpartition("_")[2].upper()
    return f"{word},..." if get_origin(kind) is list else word


def _variables(section: str) -> dict[str, tuple[str, Any]]:
    """Returns by each setting's name its variable and what that says."""
    prefix = f"OPTIMIST_{section.upper()}_"
    values: dict[str, tuple[str, Any]] = {}
    for variable, value in os.environ.items():
        if not variable.startswith(prefix):
            continue
        name = variable.removeprefix(prefix).lower()
        # Kubernetes sets OPTIMIST_<SERVICE>_PORT and _SERVICE_HOST for a Service of that name.
        if name.startswith(("service_", "port_")) or value.startswith("tcp://"):
            continue
        values[name] = (variable, value)
    return values


def _file_values(section: str, config: str | None) -> dict[str, tuple[str, Any]]:
    """Returns by each setting's name its place in the file and what that says."""
    return {
        str(name): (f"{config}: {section}.{name}", value)
        for name, value in _section(section, config).items()
    }


def _section(name: str, config: str | None) -> dict[str, Any]:
    """Returns what the file says below a service's name."""
    if config is None:
        return {}
    try:
        content = yaml.safe_load(Path(config).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise SetupError(f"--config: cannot read {config}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SetupError(f"--config: {config} is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise SetupError(f"--config: {config} is not YAML: {reason}") from None
    section = content.get(name) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(section, dict | None):
        raise SetupError(f"--config: {config} must map service names to their settings")
    if unknown := sorted(map(str, content.keys() - SECTIONS - {name})):
        raise SetupError(f"{config}: {unknown[0]}: no such section")
    return section or {}
