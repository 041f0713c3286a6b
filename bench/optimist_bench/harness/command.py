"""What the commands of all benchmarks have: settings, and a report as JSON or as a table."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from pydantic import AfterValidator

from optimist_common.settings import ServiceSettings, load_settings

Settings = TypeVar("Settings", bound=ServiceSettings)
ProposerAlgorithm = Literal["auto", "line"]
"""What a proposer can be started with."""


def run_command(
    kind: type[Settings],
    arguments: list[str],
    measure: Callable[[Settings], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
) -> int:
    """Measures and prints the report, as a line of JSON with --json; returns the exit code.

    It is 1 if the report says with `all_right` that something came out wrong.
    """
    report = measure(load_settings(kind, [word for word in arguments if word != "--json"]))
    print(json.dumps(report) if "--json" in arguments else describe(report))
    return 0 if report.get("all_right", True) else 1


def numbers(least: int, most: int) -> AfterValidator:
    """Returns the check of a list of whole numbers; it leaves out what is there twice."""

    def check(values: list[str]) -> list[str]:
        if not values or not all(
            value.isdecimal() and least <= int(value) <= most for value in values
        ):
            raise ValueError(f"must be numbers from {least} to {most}, with commas")
        return list(dict.fromkeys(values))

    return AfterValidator(check)


def names(known: Sequence[str], *, required: bool = False) -> AfterValidator:
    """Returns the check of a list of known names; it leaves out what is there twice."""

    def check(values: list[str]) -> list[str]:
        require_known(values, known)
        if required and not values:
            raise ValueError(f"must name at least one of: {', '.join(known)}")
        return list(dict.fromkeys(values))

    return AfterValidator(check)


def require_known(values: Sequence[str], known: Sequence[str]) -> None:
    """Raises ValueError if one of some names is not known."""
    for value in values:
        if value not in known:
            raise ValueError(f"there is no {value!r}; there are: {', '.join(known)}")


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns lines with columns of equal width; numbers to the right, floats to 3 places."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(value, int | float) for value in rows[0]] if rows else []
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(
                row, widths, numeric or [False] * len(row), strict=True
            )
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
