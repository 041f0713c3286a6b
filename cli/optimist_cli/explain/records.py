"""The records of a log as a list in YAML, for people and for programs."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import yaml

from optimist_cli.explain.log import Header, Step, StepError, read_log


class _Dumper(yaml.SafeDumper):
    """Writes what holds no records on one line, and what a terminal cannot print in quotes."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return (
        dumper.represent_str(text)
        if text.isprintable()
        else dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
    )


def _list(dumper: _Dumper, items: list[Any]) -> yaml.SequenceNode:
    is_flat = not any(isinstance(item, dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_flat)


def _mapping(dumper: _Dumper, values: dict[str, Any]) -> yaml.MappingNode:
    is_flat = not any(isinstance(value, dict | list) for value in values.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", values, flow_style=is_flat)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(dict, _mapping)


def _shown(values: object) -> str:
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    # What is not printed stands between double quotes, where each character may be escaped.
    return "".join(
        each if each.isprintable() or each == "\n" else f"\\U{ord(each):08x}" for each in text[:-1]
    )


def records(file: BinaryIO, number: int | None = None) -> Iterator[str]:
    """Iterates over the records of a log in YAML; together they are a list.

    Args:
        file: The log.
        number: Number of the only step to show; None for all records.

    Raises:
        LogError: The file is no log.
        StepError: It lacks the step.
    """
    is_found = number is None
    for record in read_log(file):
        if number is not None and not (isinstance(record, Step) and record.step == number):
            continue
        is_found = True
        values = record.model_dump()
        if isinstance(record, Header) and record.predictions is None:
            # An opening before this one has them.
            del values["predictions"], values["num_prompt_tokens"]
        yield _shown([values])
    if not is_found:
        raise StepError(f"it has no step {number}")
