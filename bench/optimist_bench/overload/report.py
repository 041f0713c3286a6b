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
        "refused_with_retry_after": sum(one.has_retry_after for one in refused),
        "refused_with_retry_after_ms": sum(one.has_retry_after_ms for one in refused),
        "left": sum(one.has_left for one in outcomes),
        "lost": sum(one.status == 0 and not one.has_left for one in outcomes),
        "refusal_ms": _quantiles([one for one in refused if one.behaviour is Behaviour.READS]),
        "latency_ms": _quantiles([one for one in accepted if one.behaviour is Behaviour.READS]),
        "slow_latency_ms": _quantiles([one for one in accepted if one.behaviour is Behaviour.SLOW]),
    }


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
        (name, *(counts[name][quantile] for quantile in ("p50", "p99", "max")))
        for name in ("refusal_ms", "latency_ms", "slow_latency_ms")
    ]
    memory, cpu, waits = (
        report[name] for name in ("memory_mib", "cpu_seconds", "cpu_wait_seconds")
    )
    return "\n\n".join(
        (
            f"capacity {report['capacity']} requests/s, offered {report['offered']}",
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
            format_table(("", "p50", "p99", "max"), times),
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


def _quantiles(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Returns p50, p99 and the longest time, in milliseconds; None without any."""
    times = sorted(round(1000 * one.seconds, 2) for one in outcomes)
    if not times:
        return dict.fromkeys(("p50", "p99", "max"))
    return {
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "max": times[-1],
    }


def _mib(num_bytes: int) -> float:
    return round(num_bytes / _MIB, 2)
