"""The report of `optimist bench engines`: rows, and as a table."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from optimist_bench.engines.asking import Round
from optimist_bench.engines.servers import ENGINES
from optimist_bench.engines.workloads import sent_workload


class Key(NamedTuple):
    """What was measured."""

    engine: str
    workload: str
    """As it was sent."""
    streams: int


Measured = dict[Key, list[Round]]
"""A round of each turn."""


def make_rows(
    measured: Mapping[Key, Sequence[Round]],
    engines: Sequence[str],
    workloads: Sequence[str],
    streams: Sequence[int],
) -> list[dict[str, Any]]:
    """Returns a row for each engine, workload and number of streams.

    Args:
        measured: All rounds.
        engines: Names of the engines.
        workloads: As they were asked for.
        streams: From the smallest.
    """
    return [
        _row(measured, workload, Key(engine, _sent(engine, workload), each), streams[0])
        for workload in workloads
        for each in streams
        for engine in engines
    ]


def _sent(engine: str, workload: str) -> str:
    return sent_workload(workload, takes_predictions=ENGINES[engine].takes_predictions)


def _row(
    measured: Mapping[Key, Sequence[Round]], workload: str, key: Key, fewest_streams: int
) -> dict[str, Any]:
    rounds = measured[key]
    reference = ENGINES[key.engine].without_drafts
    reference_key = Key(reference, _sent(reference, workload), fewest_streams)
    seconds = [each.seconds for each in rounds]
    rates = [each.tokens_per_second for each in rounds]
    fronts = [cost for each in rounds if (cost := each.front_us_per_token) is not None]
    return {
        "engine": key.engine,
        "workload": workload,
        "streams": key.streams,
        "sent": key.workload,
        "requests": len(rounds[0].answers),
        "tokens": round(median(each.num_tokens for each in rounds)),
        "seconds": round(median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "tokens_per_second": round(median(rates), 2),
        "tokens_per_second_min": round(min(rates), 2),
        "tokens_per_second_max": round(max(rates), 2),
        "time_to_first_token_ms": _milliseconds(median(each.first_seconds for each in rounds)),
        "front_us_per_token": round(median(fronts), 1) if fronts else None,
        **_compare(rounds, measured.get(reference_key), reference, is_itself=key == reference_key),
        "rounds": [_round(turn, each) for turn, each in enumerate(rounds, 1)],
    }


def _compare(
    rounds: Sequence[Round], reference: Sequence[Round] | None, name: str, *, is_itself: bool
) -> dict[str, Any]:
    """Returns the share of answers with the same text as those of the engine without drafts.

    These are of its first round with the fewest streams; there it is compared with nothing, and
    requests that only rounds with more streams have are left out.
    """
    if is_itself or reference is None:
        reason = "these are the answers to compare with" if is_itself else f"{name} was not run"
        return {"same_text": None, "same_text_reason": reason}
    texts = [answer.text for answer in reference[0].answers]
    same = [
        answer.text == text
        for each in rounds
        for answer, text in zip(each.answers, texts, strict=False)
    ]
    return {"same_text": round(sum(same) / len(same), 4), "same_text_reason": None}


def _round(turn: int, each: Round) -> dict[str, Any]:
    return {
        "turn": turn,
        "tokens": each.num_tokens,
        "seconds": round(each.seconds, 3),
        "tokens_per_second": round(each.tokens_per_second, 2),
        "time_to_first_token_ms": _milliseconds(each.first_seconds),
        "stolen_share": round(each.stolen_share, 4),
    }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)


def describe(report: Mapping[str, Any]) -> str:
    """Returns the report as a table in Markdown, below a line that says what was measured."""
    header = (
        *("workload", "streams", "engine", "tokens", "seconds", "tokens/s (min to max)"),
        *("first token, ms", "front, us/token", "same text"),
    )
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    stolen = max(each["stolen_share"] for row in report["rows"] for each in row["rounds"])
    return "\n".join(
        [
            f"{report['model']}, {report['dtype']}, {report['cpu']}, {report['threads']} threads, "
            f"{report['turns']} turns, answers of at most {report['max_tokens']} tokens; "
            f"{versions}; the host took up to {stolen:.1%} of the processors",
            "",
            _line(header),
            _line(["---"] * len(header)),
            *(_line(_cells(row)) for row in report["rows"]),
        ]
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["tokens_per_second_min"], row["tokens_per_second_max"]
    same, front = row["same_text"], row["front_us_per_token"]
    return [
        row["workload"],
        str(row["streams"]),
        row["engine"],
        str(row["tokens"]),
        f"{row['seconds']:.1f}",
        f"{row['tokens_per_second']:.1f} ({low:.1f} to {high:.1f})",
        f"{row['time_to_first_token_ms']:.0f}",
        "" if front is None else f"{front:.0f}",
        "" if same is None else f"{same:.0%}",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
