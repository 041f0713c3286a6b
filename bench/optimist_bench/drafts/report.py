"""The report of `optimist bench drafts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimist_bench.drafts.contender import Role, Score
from optimist_bench.harness.command import format_table
from optimist_bench.peers.process import TokenIds

HOW_PEERS_BATCH = {
    "generate": "batches of 8, padded on the left",
    "prompt_lookup": "one after the other: it takes no batch",
    "assisted": "one after the other: it takes no batch",
    "continuous_batching": "8 at once, a new one as soon as one ends",
    "vllm_cpu": "8 at once, a new one as soon as one ends",
    "ctranslate2": "batches of 8",
    "onnxruntime_genai": "batches of 8, padded on the left",
}
"""How peers answer 8 prompts at a time; ours are 8 requests at once, a new one as one ends."""


@dataclass(frozen=True)
class _Comparison:
    """Knows whether answers are those of the services without speculation."""

    truth: list[TokenIds]
    end_token_id: int

    def is_same(self, answers: Sequence[TokenIds]) -> bool:
        return _without_end(answers, self.end_token_id) == self.truth


def summarise(
    scores: Sequence[Score],
    missing: Mapping[str, str],
    facts: Mapping[str, Any],
    end_token_id: int,
) -> dict[str, Any]:
    """Returns the report.

    Args:
        scores: Of all that ran, the one without speculation among them.
        missing: Why others did not run, by name.
        facts: What the report says of the benchmark itself.
        end_token_id: The token that ends an answer.
    """
    baseline = next(score for score in scores if score.entrant.role == "baseline")
    same = _Comparison(_without_end(baseline.runs[1][0].answers, end_token_id), end_token_id)
    sources = {each.entrant.name: each for each in scores if each.entrant.role == "source"}
    peers = {each.entrant.name: each for each in scores if each.entrant.role == "peer"}
    predicted = _find(scores, "predicted")
    together = _find(scores, "together")
    concurrencies = sorted(baseline.runs)
    best = {each: _find_best(sources, each) for each in concurrencies}
    return {
        **facts,
        "output_tokens": sum(map(len, baseline.runs[1][0].answers)),
        "baseline": _ours(baseline, baseline, same),
        "predicted": predicted and _ours(predicted, baseline, same),
        "together": together and _ours(together, baseline, same),
        "sources": {name: _ours(score, baseline, same) for name, score in sources.items()}
        | {name: None for name in missing if name not in HOW_PEERS_BATCH},
        "peers": {name: _peer(score, same) for name, score in peers.items()}
        | {name: None for name in missing if name in HOW_PEERS_BATCH},
        "how_batch_8": HOW_PEERS_BATCH,
        "missing": dict(missing),
        "best_source": {f"batch_{each}": name for each, name in best.items()},
        "ahead_of_every_peer": bool(peers)
        and all(
            name is not None and sources[name].seconds(each) < peer.seconds(each)
            for each, name in best.items()
            for peer in peers.values()
        ),
    }


def _find(scores: Sequence[Score], role: Role) -> Score | None:
    return next((each for each in scores if each.entrant.role == role), None)


def _find_best(sources: Mapping[str, Score], concurrency: int) -> str | None:
    return min(sources, key=lambda name: sources[name].seconds(concurrency), default=None)


def _without_end(answers: Sequence[TokenIds], end_token_id: int) -> list[TokenIds]:
    """Returns answers without end tokens: engines differ in whether those are part of an answer."""
    return [
        list(answer[:-1]) if answer and answer[-1] == end_token_id else list(answer)
        for answer in answers
    ]


def _ours(score: Score, baseline: Score, same: _Comparison) -> dict[str, Any]:
    run = score.runs[1][-1]
    num_tokens = sum(map(len, run.answers))
    return {
        "tokens_per_pass": round(num_tokens / run.num_passes, 3),
        "acceptance_rate": round(run.num_accepted / run.num_drafted, 4)
        if run.num_drafted
        else None,
        "tokens_by_source": dict(run.tokens_by_source),
        "speedup": round(baseline.seconds(1) / score.seconds(1), 3),
        "speedup_batch_8": round(baseline.seconds(8) / score.seconds(8), 3),
        **_peer(score, same),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _peer(score: Score, same: _Comparison) -> dict[str, Any]:
    runs = [run for some in score.runs.values() for run in some]
    return {
        "identical": all(same.is_same(run.answers) for run in runs),
        "seconds": {f"batch_{each}": round(score.seconds(each), 3) for each in score.runs},
        "cpu_seconds": {
            f"batch_{each}": _rounded(score.best_cpu_seconds(each)) for each in score.runs
        },
    }


def describe(report: Mapping[str, Any]) -> str:
    """Returns the report as a table, a line per contender, and what it comes to."""
    ours = {"no speculation": report["baseline"], **report["sources"]}
    if report["predicted"]:
        ours["predicted (for comparison)"] = report["predicted"]
    if report["together"]:
        ours["predicted, and eagle in the gaps"] = report["together"]
    lines = [*_lines(ours), *_lines(report["peers"])]
    header = (
        *("", "s, 1 at a time", "s, 8 at once", "cpu s, 1", "cpu s, 8"),
        *("speedup, 1", "speedup, 8", "tokens/pass", "accepted", "identical"),
    )
    notes = [f"{name}: not measured: {reason}" for name, reason in report["missing"].items()]
    notes += [f"{name}, 8 at once: {report['how_batch_8'][name]}" for name in report["peers"]]
    best = ", ".join(f"{batch}: {name}" for batch, name in report["best_source"].items())
    return "\n".join(
        [
            f"{report['edits']} unseen edits without prediction, {report['output_tokens']} tokens, "
            f"float32, {report['threads']} threads, best of {report['rounds']} rounds",
            format_table(header, lines),
            *notes,
            f"best source at {best}; ahead of every peer measured: "
            f"{'yes' if report['ahead_of_every_peer'] else 'no'}",
        ]
    )


def _lines(group: Mapping[str, Mapping[str, Any] | None]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            *(_number(one["seconds"].get(f"batch_{each}")) for each in (1, 8)),
            *(_number(one["cpu_seconds"].get(f"batch_{each}")) for each in (1, 8)),
            *(_number(one.get(key)) for key in _FIGURES),
            "yes" if one["identical"] else "NO",
        )
        for name, one in group.items()
        if one is not None
    ]


_FIGURES = ("speedup", "speedup_batch_8", "tokens_per_pass", "acceptance_rate")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
