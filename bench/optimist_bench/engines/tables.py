"""Reports of `optimist bench engines` as tables in Markdown: as the documentation has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimist_bench.engines.workloads import SAMPLED
from optimist_common.errors import SetupError

Report = Mapping[str, Any]
_COMMON = ("model", "dtype", "cpu", "threads", "max_tokens")


def combine(reports: Sequence[Report]) -> dict[str, Any]:
    """Returns several reports of different engines as one.

    Raises:
        SetupError: They had other models, processors or requests.
    """
    first = reports[0]
    for other in reports[1:]:
        for name in _COMMON:
            if other[name] != first[name]:
                raise SetupError(f"--report: {name} is {first[name]} and {other[name]}")
        for workload, digest in other["prompts_digest"].items():
            if first["prompts_digest"].get(workload, digest) != digest:
                raise SetupError(f"--report: the requests of {workload} are not the same")
    versions = {name: value for each in reports for name, value in each["versions"].items()}
    rows = [row for each in reports for row in each["rows"]]
    return {**first, "versions": versions, "rows": rows}


def describe(report: Report) -> str:
    """Returns what was measured, a table of all of it, and a smaller one with a row an engine."""
    return "\n\n".join(
        [
            _facts(report),
            "\n".join(_rates(report["rows"])),
            _same_texts(report["rows"]),
            "\n".join(_summary(report["rows"])),
        ]
    )


def _facts(report: Report) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    rounds = [row["rounds"] for row in report["rows"]]
    fewest, most = min(map(len, rounds)), max(map(len, rounds))
    turns = str(most) if fewest == most else f"{fewest} to {most}"
    stolen = max(each["stolen_share"] for row in rounds for each in row)
    return (
        f"{Path(report['model']).name}, {report['dtype']}, {report['cpu']}, "
        f"{report['threads']} threads, {turns} turns, answers of at most "
        f"{report['max_tokens']} tokens; {versions}; "
        f"the host took up to {stolen:.1%} of the processors"
    )


def _rates(rows: Sequence[Report]) -> Iterator[str]:
    """Yields the tokens per second; in brackets the gain over the same engine without drafts."""
    engines = _values(rows, "engine")
    yield from _head(["workload", "at a time", *engines])
    for workload in _values(rows, "workload"):
        for streams in _values(rows, "streams"):
            found = _by_engine(rows, workload, streams)
            if found:
                cells = (_rate(found.get(engine), found) for engine in engines)
                yield _line([workload, str(streams), *cells])


def _rate(row: Report | None, compared: Mapping[str, Report]) -> str:
    if row is None:
        return ""
    rate = _number(row["tokens_per_second"])
    if row["tokens_per_second"] == max(each["tokens_per_second"] for each in compared.values()):
        rate = f"**{rate}**"
    return rate if row["gain"] is None else f"{rate} ({row['gain']:.2f})"


def _summary(rows: Sequence[Report]) -> Iterator[str]:
    """Yields the tokens per second, those of all numbers of streams in a cell."""
    workloads, streams = _values(rows, "workload"), _values(rows, "streams")
    yield from _head([f"tokens/s, {_listed(map(str, streams))} at a time", *workloads])
    for engine in _values(rows, "engine"):
        found = {
            (row["workload"], row["streams"]): f"{row['tokens_per_second']:.0f}"
            for row in rows
            if row["engine"] == engine
        }
        cells = (_listed(found.get((each, number), "") for number in streams) for each in workloads)
        yield _line([engine, *cells])


def _same_texts(rows: Sequence[Report]) -> str:
    """Returns the smallest shares of the same text by engine, greedy and sampled."""
    shares = []
    for engine in _values(rows, "engine"):
        compared = [row for row in rows if row["engine"] == engine and row["same_text"] is not None]
        of_kind = {
            kind: [row["same_text"] for row in compared if (row["sent"] in SAMPLED) is is_sampled]
            for kind, is_sampled in (("greedy", False), ("sampled", True))
        }
        found = [f"{min(each):.0%} {kind}" for kind, each in of_kind.items() if each]
        if found:
            shares.append(f"{engine} {_listed(found)}")
    return f"Same text as without drafts, at least: {'; '.join(shares) or 'not compared'}."


def _by_engine(rows: Sequence[Report], workload: str, streams: int) -> dict[str, Report]:
    asked = (workload, streams)
    return {row["engine"]: row for row in rows if (row["workload"], row["streams"]) == asked}


def _values(rows: Sequence[Report], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
