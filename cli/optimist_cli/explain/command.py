"""`optimist explain LOG`: what was drafted for one request, step by step."""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

from pydantic import Field

from optimist_cli.explain.log import Header, LogError, StepError, read_log
from optimist_cli.explain.page import closing, continuation, heading, step_block, step_detail
from optimist_cli.explain.records import records
from optimist_cli.explain.story import Story, Summary
from optimist_cli.explain.text import Style
from optimist_common.errors import SetupError
from optimist_common.settings import ServiceSettings, load_settings


class ExplainSettings(ServiceSettings):
    """Explains a request's log: optimist explain LOG [--json | --yaml] [--step N] [OPTIONS].

    A proposer or an engine with --request-log writes such logs. Text is coloured by where it
    came from; --json prints only what the log comes to, --yaml every record of it.
    """

    section: ClassVar[str] = "explain"
    arguments: ClassVar[tuple[str, ...]] = ("log",)

    log: str = Field(description="the log")
    step: int | None = Field(
        None, ge=0, description="shows only this step, with every token that was proposed in it"
    )
    yaml: bool = Field(False, description="prints the log's records as a list in YAML")
    color: Literal["auto", "always", "never"] = Field(
        "auto",
        description="auto is on a terminal unless NO_COLOR is set",
    )
    width: int = Field(0, ge=0, le=10_000, description="columns; 0 is the terminal's width")


def main(arguments: list[str]) -> int:
    """Explains a log; returns the exit code."""
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    settings = load_settings(ExplainSettings, words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character shows its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    style = choose_style(settings, os.environ, is_terminal=sys.stdout.isatty())
    try:
        with Path(settings.log).open("rb") as file:
            if as_json:
                lines: Iterable[str] = [json.dumps(summarise(file).values())]
            elif settings.yaml:
                lines = records(file, settings.step)
            else:
                lines = page(file, style, settings.step)
            _print(lines)
    except LogError as error:
        raise SetupError(f"{settings.log} is no request log: {error}") from None
    except StepError:
        raise SetupError(f"--step: {settings.log} has no step {settings.step}") from None
    except BrokenPipeError:
        # The reader has seen enough; nothing may be written to the pipe when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise SetupError(f"cannot explain {settings.log}: {error.strerror}") from None
    return 0


def choose_style(
    settings: ExplainSettings, environment: Mapping[str, str], *, is_terminal: bool
) -> Style:
    """Returns how the page is to look; see https://no-color.org."""
    is_coloured = settings.color == "always" or (
        settings.color == "auto" and is_terminal and not environment.get("NO_COLOR")
    )
    return Style(is_coloured, settings.width or shutil.get_terminal_size((100, 24)).columns)


def summarise(file: BinaryIO) -> Summary:
    """Returns what a log comes to; raises LogError."""
    story = Story()
    for record in read_log(file):
        story.take(record)
    return story.finish()


def page(file: BinaryIO, style: Style, number: int | None = None) -> Iterator[str]:
    """Iterates over the lines of the page.

    Args:
        file: The log.
        style: How the page looks.
        number: Number of the only step to show; None for all.

    Raises:
        LogError: The file is no log.
        StepError: It lacks the step.
    """
    story = Story()
    has_heading = has_step = False
    for record in read_log(file):
        step = story.take(record)
        if isinstance(record, Header):
            show = continuation if has_heading else heading
            has_heading = True
            yield from show(story.summary, record, style)
        if step is not None and number in (None, step.number):
            has_step = True
            yield from step_block(step, story, style)
            if number is not None:
                yield from step_detail(step, story.lines, style)
    if number is None:
        yield from closing(story.finish(), style)
    elif not has_step:
        raise StepError(f"it has no step {number}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
