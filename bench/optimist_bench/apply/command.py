"""The command: which server is asked for which edits."""

import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from optimist_bench.apply.answers import is_exact, show_difference, text_of
from optimist_bench.apply.cases import Case, read_cases
from optimist_bench.apply.report import Key, Measured, Turn, describe, make_rows
from optimist_bench.engines.asking import Asker, Round, asking_engine
from optimist_bench.engines.options import EngineNames, EngineOptions, describe_setup
from optimist_bench.engines.servers import ENGINES
from optimist_bench.harness.command import run_command
from optimist_common.settings import without_passwords

_SERVER = "server"
"""What reports call a server that was there."""
Cases = Mapping[str, Sequence[Case]]
"""Of each kind."""


class ApplySettings(EngineOptions):
    """Measures edits whose answer is the whole file, with the file as prediction and without.

    Most of them merge an edit snippet into a file. The server is that of --url, or those of
    --engines are started with --model.
    """

    section: ClassVar[str] = "bench_apply"

    pairs: str = Field(
        description="JSON lines with `before` and `after`, perhaps `path`, `task`, `kind`, "
        "`in_fence`"
    )
    url: str = Field("", description="server with OpenAI's API to measure; empty to start engines")
    served_model: str = Field(
        "", description="what the server of --url calls the model; empty for the first it names"
    )
    api_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="key that it asks for; better as OPTIMIST_BENCH_APPLY_API_KEY, as flags are "
        "seen by all users of a machine",
    )
    engines: EngineNames = Field(["optimist"], description="engines to measure, with commas")
    limit: int = Field(0, ge=0, description="most pairs of each kind, the first; 0 for all")
    max_tokens: int = Field(
        4096, ge=1, description="most tokens of an answer; less where the right one is shorter"
    )
    wrong: bool = Field(False, description="print wrong answers as diffs, to standard error")

    @model_validator(mode="after")
    def _names_the_server(self) -> "ApplySettings":
        if not self.url and (self.served_model or self.api_key):
            raise ValueError("--served-model and --api-key: need --url")
        return self


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code."""
    return run_command(ApplySettings, arguments, measure, describe)


def measure(settings: ApplySettings) -> dict[str, Any]:
    """Measures the server, or all engines one after the other, and returns the report.

    Raises:
        SetupError: A file is missing or wrong, an engine does not start, or a request fails.
    """
    cases, num_skipped = read_cases(Path(settings.pairs), settings.limit)
    setup, measured = (_measure_server if settings.url else _measure_engines)(settings, cases)
    for refusal in _refusals(measured, cases):
        print(refusal, file=sys.stderr)
    if settings.wrong:
        _print_wrong(measured, cases)
    return {
        **setup,
        "pairs": settings.pairs,
        "limit": settings.limit,
        "max_tokens": settings.max_tokens,
        "skipped": num_skipped,
        **make_rows(measured, cases),
    }


def _measure_server(settings: ApplySettings, cases: Cases) -> tuple[dict[str, Any], Measured]:
    key, model = settings.api_key, settings.served_model
    with closing(Asker(_SERVER, settings.url, api_key=key, model=model)) as asker:
        asker.warm_up(settings.sorted_streams)
        measured = _measure(settings, _SERVER, asker, cases, takes_predictions=True)
    url = without_passwords(settings.url)
    return {"url": url, "model": asker.model, "turns": settings.turns}, measured


def _measure_engines(settings: ApplySettings, cases: Cases) -> tuple[dict[str, Any], Measured]:
    settings.require()
    measured: Measured = {}
    for name in settings.engines:
        takes = ENGINES[name].takes_predictions
        with asking_engine(name, settings) as asker:
            measured |= _measure(settings, name, asker, cases, takes_predictions=takes)
    return describe_setup(settings), measured


def _measure(
    settings: ApplySettings, name: str, asker: Asker, cases: Cases, *, takes_predictions: bool
) -> Measured:
    # A server may remember the prompts of an earlier run; others refuse fields that OpenAI's API
    # does not have.
    run = secrets.token_hex(4)

    def ask(key: Key, turn: int, *, is_predicted: bool) -> Round:
        salt = None if settings.url else f"{run} {turn} {key.kind} {key.streams} {is_predicted}"
        requests = [
            case.chat_request(asker.model, settings.max_tokens, salt, is_predicted=is_predicted)
            for case in cases[key.kind]
        ]
        done = asker.run([[request] for request in requests], key.streams)
        how = "predicted" if is_predicted else "plain"
        print(
            f"{name}, turn {turn} of {settings.turns}: {key.kind}, {key.streams} at a time, {how}: "
            f"{done.seconds:.1f} s",
            file=sys.stderr,
        )
        return done

    measured: Measured = {}
    for turn in range(1, settings.turns + 1):
        for key in [
            Key(name, kind, streams) for streams in settings.sorted_streams for kind in cases
        ]:
            # Each second turn in reverse order: a server without salts remembers the prompts.
            ways = (False, True)[:: 1 if turn % 2 else -1] if takes_predictions else (False,)
            rounds = {way: ask(key, turn, is_predicted=way) for way in ways}
            measured.setdefault(key, []).append(Turn(rounds[False], rounds.get(True)))
    return measured


def _refusals(measured: Measured, cases: Cases) -> list[str]:
    """Returns which edits were refused and why, each once."""
    found = {
        f"{case.name}: {answer.refusal}"
        for key, turns in measured.items()
        for turn in turns
        for case, answer in zip(cases[key.kind], turn.judged.answers, strict=True)
        if answer.refusal
    }
    return sorted(found)


def _print_wrong(measured: Measured, cases: Cases) -> None:
    """Prints the wrong answers of each engine's first turn, with the fewest streams."""
    fewest = min(key.streams for key in measured)
    for key, turns in measured.items():
        if key.streams != fewest:
            continue
        for case, answer in zip(cases[key.kind], turns[0].judged.answers, strict=True):
            text = text_of(answer.text, case.after)
            if not is_exact(text, case.after):
                name = f"{key.engine}, {case.name}"
                print(show_difference(text, case.after, name), file=sys.stderr)
