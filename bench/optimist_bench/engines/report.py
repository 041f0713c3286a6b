"""The report of `optimist bench engines`: its rows."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from optimist_bench.engines.asking import Answer, Round
from optimist_bench.engines.servers import ENGINES
from optimist_bench.engines.workloads import sent_workload


class Key(NamedTuple):
    """What was measured: how an engine was asked."""

    engine: str
    workload: str
    streams: int


def sent_key(engine: str, workload: str, streams: int) -> Key:
    """Returns how an engine is asked: what is the same to it is measured once."""
    takes = ENGINES[engine]
    return Key(
        engine,
        sent_workload(workload, takes_predictions=takes.takes_predictions),
        streams if takes.takes_batches else 1,
    )


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
        _row(measured, engine, workload, each, streams)
        for workload in workloads
        for each in streams
        for engine in engines
    ]


def _row(
    measured: Mapping[Key, Sequence[Round]],
    engine: str,
    workload: str,
    streams: int,
    all_streams: Sequence[int],
) -> dict[str, Any]:
    key, plain = sent_key(engine, workload, streams), ENGINES[engine].without_drafts
    rounds, plain_rounds = measured[key], measured.get(sent_key(plain, workload, streams))
    expected = _plain_answers(measured, plain, workload, all_streams)
    seconds = [each.seconds for each in rounds]
    rates = [each.tokens_per_second for each in rounds]
    fronts = [cost for each in rounds if (cost := each.front_us_per_token) is not None]
    return {
        "engine": engine,
        "workload": workload,
        "streams": streams,
        "sent": key.workload,
        "sent_streams": key.streams,
        "requests": len(rounds[0].answers),
        "tokens": round(median(each.num_tokens for each in rounds)),
        "seconds": round(median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "tokens_per_second": round(median(rates), 2),
        "tokens_per_second_mean": round(fmean(rates), 2),
        "tokens_per_second_min": round(min(rates), 2),
        "tokens_per_second_max": round(max(rates), 2),
        "gain": None if engine == plain or plain_rounds is None else gain(rounds, plain_rounds),
        "time_to_first_token_ms": _milliseconds(median(each.first_seconds for each in rounds)),
        "front_us_per_token": round(median(fronts), 1) if fronts else None,
        **_compare(rounds, expected, plain),
        "rounds": [_round(turn, each) for turn, each in enumerate(rounds, 1)],
    }


def gain(rounds: Sequence[Round], plain_rounds: Sequence[Round]) -> float:
    """Returns the tokens per second over those without drafts in the same turn, the median."""
    pairs = zip(rounds, plain_rounds, strict=True)
    return round(
        median(each.tokens_per_second / plain.tokens_per_second for each, plain in pairs), 3
    )


def _plain_answers(
    measured: Mapping[Key, Sequence[Round]], plain: str, workload: str, streams: Sequence[int]
) -> list[Answer]:
    """Returns the answers without drafts: of each request those with the fewest streams."""
    answers: list[Answer] = []
    for each in streams:
        for first in measured.get(sent_key(plain, workload, each), ())[:1]:
            answers += first.answers[len(answers) :]
    return answers


def _compare(rounds: Sequence[Round], expected: Sequence[Answer], plain: str) -> dict[str, Any]:
    """Returns the share of answers with the same text as those of the engine without drafts."""
    same = [
        answer.text == other.text
        for each in rounds
        for answer, other in zip(each.answers, expected, strict=False)
        if answer is not other
    ]
    if same:
        return {"same_text": round(sum(same) / len(same), 4), "same_text_reason": None}
    reason = "these are the answers to compare with" if expected else f"{plain} was not run"
    return {"same_text": None, "same_text_reason": reason}


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
