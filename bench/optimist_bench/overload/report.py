"""What an overload came to: refusals, answers, and what the services keep of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from optimist_bench.harness.command import format_table
from optimist_bench.overload.load import Behaviour, Outcome

REFUSING_STATUSES = frozenset({429, 503})
_MIB = 1 << 20


def report_outcomes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts how requests ended. Each is accepted, refused, has left, or is lost."""
    accepted = [one for one in outcomes if one.status == 200]
    refused = [one for one in outcomes if one.status not in (0, 200)]
    statuses = Counter(one.status for one in refused)
    return {
        "sent": len(outcomes),
        "accepted": len(accepted),
        "accepted_right": sum(one.is_right for one in accepted),
        "accepted_slow": sum(one.behaviour is Behaviour.SLOW for one in accepted),
        "refused": {str(status): count for status, count in sorted(statuses.items())},
        "refused_with_retry_after": sum(one.retry_after is not None for one in refused),
        "refused_with_retry_after_ms": sum(one.retry_after_ms is not None for one in refused),
        "retry_after": _count([one.retry_after for one in refused]),
        "left": sum(one.has_left for one in outcomes),
        "lost": sum(one.status == 0 and not one.has_left for one in outcomes),
        "refusal_ms": _quantiles(_seconds(refused, Behaviour.READS)),
        "latency_ms": _quantiles(_seconds(accepted, Behaviour.READS)),
        "slow_latency_ms": _quantiles(_seconds(accepted, Behaviour.SLOW)),
        "first_token_ms": _quantiles(
            [one.first_seconds for one in accepted if one.first_seconds is not None]
        ),
    }


def find_drain_seconds(outcomes: Sequence[Outcome], seconds: float) -> float:
    """Returns for how long answers still came after the load, which took so many seconds."""
    return round(max((one.begun + one.seconds - seconds for one in outcomes), default=0.0), 2)


def _seconds(outcomes: Sequence[Outcome], behaviour: Behaviour) -> list[float]:
    return [one.seconds for one in outcomes if one.behaviour is behaviour]


def _count(values: Sequence[int | None]) -> dict[str, int]:
    """Returns how often refusals said which number of seconds, the smallest first."""
    counts = Counter(value for value in values if value is not None)
    return {str(value): count for value, count in sorted(counts.items())}


def is_right(counts: Mapping[str, Any]) -> bool:
    """Returns whether what was accepted is complete and right, and refusals say when to retry."""
    num_refused = sum(counts["refused"].values())
    return (
        counts["lost"] == 0
        and counts["accepted_right"] == counts["accepted"]
        and counts["refused_with_retry_after"] == num_refused
        and counts["refused_with_retry_after_ms"] == num_refused
        and REFUSING_STATUSES.issuperset(map(int, counts["refused"]))
    )


def report_memory(samples: Sequence[Mapping[str, int]]) -> dict[str, dict[str, float]]:
    """Returns the memory of each service in MiB, from samples in bytes that are evenly spread.

    `growth` is from the middle to the end: what was only warmed up is warm by then.
    """
    middle = samples[len(samples) // 2]
    return {
        name: {
            "start": _mib(samples[0][name]),
            "middle": _mib(middle[name]),
            "end": _mib(samples[-1][name]),
            "peak": _mib(max(sample[name] for sample in samples)),
            "growth": _mib(samples[-1][name] - middle[name]),
        }
        for name in samples[0]
    }


def describe(report: Mapping[str, Any]) -> str:
    """Returns the report as tables."""
    counts = report["outcomes"]
    refused = ", ".join(f"{count} x {status}" for status, count in counts["refused"].items())
    names = ("sent", "accepted", "accepted_right", "left", "lost")
    times = [
        (name, *counts[name].values())
        for name in ("refusal_ms", "latency_ms", "slow_latency_ms", "first_token_ms")
    ]
    memory, cpu, waits = (
        report[name] for name in ("memory_mib", "cpu_seconds", "cpu_wait_seconds")
    )
    return "\n\n".join(
        (
            f"capacity {report['capacity']} requests/s, offered {report['offered']}, "
            f"the last answer {report['drain_seconds']} s after the load",
            format_table(
                (*names, "refused", "Retry-After"),
                [
                    (
                        *(counts[name] for name in names),
                        refused or 0,
                        counts["refused_with_retry_after"],
                    )
                ],
            ),
            format_table(("", "p50", "p95", "p99", "max"), times),
            f"seconds that refusals said, and how often: {counts['retry_after']}",
            format_table(
                ("MiB", "start", "middle", "end", "peak", "growth"),
                [(name, *values.values()) for name, values in memory.items()],
            ),
            format_table(
                ("", "processor s", "waited for one s"),
                [(name, cpu[name], waits[name]) for name in cpu],
            ),
            f"descriptors {report['descriptors']}, tasks of the gateway {report['tasks']}",
        )
    )


def _quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Returns p50, p95, p99 and the longest time, in milliseconds; None without any."""
    times = sorted(round(1000 * each, 2) for each in seconds)
    if not times:
        return dict.fromkeys(("p50", "p95", "p99", "max"))
    shares = {f"p{share}": times[len(times) * share // 100] for share in (50, 95, 99)}
    return {**shares, "max": times[-1]}


def _mib(num_bytes: int) -> float:
    return round(num_bytes / _MIB, 2)
