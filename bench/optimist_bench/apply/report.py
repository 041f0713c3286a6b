"""The report of `optimist bench apply`: its rows, and a table of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from optimist_bench.apply.answers import count_kept_lines, is_exact, text_of
from optimist_bench.apply.cases import Case
from optimist_bench.engines.asking import Round
from optimist_bench.engines.report import gain
from optimist_bench.harness.command import format_table


class Key(NamedTuple):
    """What was measured."""

    engine: str
    kind: str
    streams: int


@dataclass(frozen=True)
class Turn:
    """The same edits asked without and with predictions, one right after the other."""

    plain: Round
    predicted: Round | None
    """None if the engine takes no predictions."""

    @property
    def judged(self) -> Round:
        """The answers that are compared with the right texts."""
        return self.predicted or self.plain


Measured = dict[Key, list[Turn]]


def make_rows(
    measured: Mapping[Key, Sequence[Turn]], cases: Mapping[str, Sequence[Case]]
) -> dict[str, Any]:
    """Returns `rows` of all kinds together, and `by_kind` of each.

    Args:
        measured: The turns of each engine, kind and number of streams.
        cases: The edits of each kind, in the order of the answers.
    """
    all_cases = list(chain.from_iterable(cases.values()))
    rows = []
    for engine, streams in dict.fromkeys((key.engine, key.streams) for key in measured):
        of_kinds = [measured[Key(engine, kind, streams)] for kind in cases]
        turns = [_join_turns(kinds) for kinds in zip(*of_kinds, strict=True)]
        rows.append({"engine": engine, "streams": streams, **_figures(all_cases, turns)})
    return {
        "rows": rows,
        "by_kind": [
            {**key._asdict(), **_figures(cases[key.kind], turns)} for key, turns in measured.items()
        ],
    }


def _join_turns(kinds: Sequence[Turn]) -> Turn:
    """Returns a turn of several kinds as if they had been one."""
    predicted = [each.predicted for each in kinds if each.predicted]
    return Turn(_join([each.plain for each in kinds]), _join(predicted) if predicted else None)


def _join(parts: Sequence[Round]) -> Round:
    answers = [answer for part in parts for answer in part.answers]
    seconds = sum(part.seconds for part in parts)
    return Round(seconds, answers, max(part.stolen_share for part in parts))


def _figures(cases: Sequence[Case], turns: Sequence[Turn]) -> dict[str, Any]:
    plain = [turn.plain for turn in turns]
    predicted = [turn.predicted for turn in turns if turn.predicted]
    judged = [
        (case.after, text_of(answer.text, case.after), answer)
        for turn in turns
        for case, answer in zip(cases, turn.judged.answers, strict=True)
    ]
    num_lines = sum(len(after.splitlines()) for after, _, _ in judged)
    num_kept = sum(count_kept_lines(text, after) for after, text, _ in judged)
    return {
        "pairs": len(cases),
        "exact": _share([is_exact(text, after) for after, text, _ in judged]),
        "exact_lines": round(num_kept / num_lines, 4) if num_lines else None,
        "cut": _share([answer.is_cut for _, _, answer in judged]),
        "refused": _share([bool(answer.refusal) for _, _, answer in judged]),
        "texts_equal": _share(_same_texts(turns)),
        "tokens": round(median(turn.judged.num_tokens for turn in turns)),
        "plain_tokens_per_second": _tokens_per_second(plain),
        "predicted_tokens_per_second": _tokens_per_second(predicted),
        "speedup": gain(predicted, plain) if predicted and _num_tokens(plain) else None,
        "plain_tokens_per_pass": _tokens_per_pass(plain),
        "tokens_per_pass": _tokens_per_pass(predicted),
        "accepted_share": _accepted_share(predicted),
        "stolen_share": round(max(turn.stolen_share for turn in (*plain, *predicted)), 4),
    }


def _same_texts(turns: Sequence[Turn]) -> list[bool]:
    return [
        one.text == other.text
        for turn in turns
        if turn.predicted
        for one, other in zip(turn.plain.answers, turn.predicted.answers, strict=True)
    ]


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def _tokens_per_second(rounds: Sequence[Round]) -> float | None:
    return round(median(each.tokens_per_second for each in rounds), 2) if rounds else None


def _tokens_per_pass(rounds: Sequence[Round]) -> float | None:
    """Returns tokens over passes, if the server says for all answers how many these were."""
    num_passes = _total(rounds, lambda usage: usage.get("num_passes"))
    return round(_num_tokens(rounds) / num_passes, 3) if num_passes else None


def _accepted_share(rounds: Sequence[Round]) -> float | None:
    """Returns the share of tokens that were accepted from predictions, if the server says so."""
    num_accepted = _total(
        rounds,
        lambda usage: (usage.get("completion_tokens_details") or {}).get(
            "accepted_prediction_tokens"
        ),
    )
    num_tokens = _num_tokens(rounds)
    return None if num_accepted is None or not num_tokens else round(num_accepted / num_tokens, 4)


def _num_tokens(rounds: Sequence[Round]) -> int:
    return sum(each.num_tokens for each in rounds)


def _total(rounds: Sequence[Round], count: Callable[[Mapping[str, Any]], int | None]) -> int | None:
    """Returns the sum of what the usage of each answer has; None if that of one has it not."""
    counts = [count(answer.usage) for each in rounds for answer in each.answers]
    known = [each for each in counts if each is not None]
    return sum(known) if known and len(known) == len(counts) else None


_COLUMNS = {
    "engine": "engine",
    "kind": "kind",
    "streams": "at a time",
    "pairs": "pairs",
    "exact": "exact",
    "exact_lines": "lines",
    "plain_tokens_per_second": "plain tokens/s",
    "predicted_tokens_per_second": "predicted",
    "speedup": "speedup",
    "tokens_per_pass": "tokens/pass",
    "texts_equal": "equal",
}


def describe(report: Mapping[str, Any]) -> str:
    """Returns a table of all rows: each kind, then all of them together."""
    rows = [*report["by_kind"], *({"kind": "all", **row} for row in report["rows"])]
    cells = [["-" if row[name] is None else row[name] for name in _COLUMNS] for row in rows]
    table = format_table(list(_COLUMNS.values()), cells)
    if not report["skipped"]:
        return table
    return f"{table}\n\n{report['skipped']} pairs were left out: no snippet says their edits"
