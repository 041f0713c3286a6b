"""Prometheus metrics: served over HTTP, and what drafts were worth."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    start_http_server,
)

from optimist_common.columns import Int32Column
from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError
from optimist_common.network.endpoints import join_address

NUM_POSITIONS = 16
"""Positions of accepted drafts that are counted one by one."""

_POSITIONS = [*(str(number) for number in range(1, NUM_POSITIONS + 1)), "more"]
_RATES = (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
_TOKENS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 32, 64)


def show_build(service: str, registry: CollectorRegistry = REGISTRY) -> None:
    """Adds what the process is to its metrics."""
    labels = {"service": service, "version": version("optimist")}
    text = "1, with the release as a label"
    Gauge("optimist_build_info", text, labels, registry=registry).labels(**labels).set(1)


def serve_metrics(service: str, host: str, port: int) -> None:
    """Serves the metrics of a service at http://host:port/metrics; port 0 serves none.

    Raises:
        SetupError: The port is taken or the host unknown.
    """
    if port == 0:
        return
    try:
        start_http_server(port, addr=host)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {join_address(host, port)} for metrics: {error.strerror}; "
            "choose another --metrics-port"
        ) from None
    show_build(service)


@dataclass
class DraftTotals:
    """Totals since the start."""

    num_rows: int = 0
    """Rows of passes that had drafts."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_accepted_at: list[int] = field(default_factory=lambda: [0] * NUM_POSITIONS)
    """Drafts accepted as the first, second and so on of their row and pass, `[NUM_POSITIONS]`."""


class _Series(NamedTuple):
    """What is counted of one source."""

    rows: Counter
    drafted: Counter
    accepted: list[Counter]
    """See `_POSITIONS`."""
    rate: Histogram
    tokens: Histogram


class DraftMetrics:
    """Counters and histograms of one service, with a series for each source."""

    def __init__(self, prefix: str) -> None:
        """Registers them, with names of a prefix."""
        labels = ["source"]
        self._rows = Counter(f"{prefix}_drafted_rows", "Rows of passes that had drafts", labels)
        self._drafted = Counter(f"{prefix}_drafted_tokens", "Drafts that were verified", labels)
        self._accepted = Counter(
            f"{prefix}_accepted_tokens",
            "Drafts that were accepted, by their position in their row: 1 to 16 or more",
            ["source", "position"],
        )
        share = "Accepted share of the drafts of a pass"
        self._rate = Histogram(f"{prefix}_draft_acceptance_rate", share, labels, buckets=_RATES)
        self._tokens = Histogram(
            f"{prefix}_tokens_per_step",
            "New tokens per row that drafts, mean of a pass, by where its drafts came from",
            labels,
            buckets=_TOKENS,
        )
        self._series: dict[DraftSource, _Series] = {}
        self.totals = DraftTotals()
        """All sources together."""

    def observe(
        self,
        sources: Int32Column,
        drafted: Int32Column,
        accepted: Int32Column,
        emitted: Int32Column,
    ) -> None:
        """Counts the rows of a pass, `[num_rows]` each.

        Of each row these are its DraftSource, the drafts that were verified, how many of them were
        accepted, and the new tokens.
        """
        for source in np.flatnonzero(np.bincount(sources)).tolist():
            if source == DraftSource.TARGET:
                continue
            rows = sources == source
            series = self._find_series(DraftSource(source))
            self._observe(series, drafted[rows], accepted[rows], emitted[rows])

    def _find_series(self, source: DraftSource) -> _Series:
        # Labels take longer to look up than numbers to add.
        if source not in self._series:
            label = source.label
            self._series[source] = _Series(
                self._rows.labels(label),
                self._drafted.labels(label),
                [self._accepted.labels(label, position) for position in _POSITIONS],
                self._rate.labels(label),
                self._tokens.labels(label),
            )
        return self._series[source]

    def _observe(
        self, series: _Series, drafted: Int32Column, accepted: Int32Column, emitted: Int32Column
    ) -> None:
        num_drafted, num_accepted = int(drafted.sum()), int(accepted.sum())
        series.rows.inc(len(drafted))
        series.drafted.inc(num_drafted)
        series.rate.observe(num_accepted / num_drafted)
        series.tokens.observe(float(emitted.mean()))
        self.totals.num_rows += len(drafted)
        self.totals.num_drafted += num_drafted
        self.totals.num_accepted += num_accepted
        # A row that has accepted n drafts has accepted one at each position up to n.
        ends = np.bincount(accepted, minlength=NUM_POSITIONS + 2)
        reached = ends[::-1].cumsum()[::-1][1:].tolist()
        for index, count in enumerate([*reached[:NUM_POSITIONS], sum(reached[NUM_POSITIONS:])]):
            if count:
                series.accepted[index].inc(count)
                if index < NUM_POSITIONS:
                    self.totals.num_accepted_at[index] += count
