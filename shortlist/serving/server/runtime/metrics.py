"""Prometheus metrics of a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

WENT_AWAY: Final = 499
"""nginx's status for a client that disconnected before the response; it is never sent."""
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "shortlist_requests",
            "Requests by protocol, status and outcome: answered, refused (the client's mistake), failed, gone",
            ["protocol", "status", "outcome"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "shortlist_request_seconds", "Time inside the server", buckets=_BUCKETS, registry=self._registry
        )
        self.rows = Counter("shortlist_rows", "Rows scored", registry=self._registry)
        self.degraded = Counter(
            "shortlist_degraded_answers", "Answers for which features counted as unknown", registry=self._registry
        )

        self.passed_over = Counter(
            "shortlist_inputs_passed_over",
            "Requests with an input that another version on the port knows and this one does not, by input", ["input"],
            registry=self._registry,
        )  # fmt: skip
        self.slates = Counter("shortlist_slates", "Slates answered", registry=self._registry)
        self.short_slates = Counter(
            "shortlist_short_slates", "Slates of fewer items than were asked for", registry=self._registry
        )
        self.empty_slates = Counter(
            "shortlist_empty_slates",
            "Slates without any item, by reason: no_candidates, filtered, no_value (no candidate's is a number)",
            ["reason"],
            registry=self._registry,
        )
        self.candidates = Counter(
            "shortlist_candidates", "Candidates after filters, by the source that ranked each highest", ["source"],
            registry=self._registry,
        )  # fmt: skip
        self.removed = Counter(
            "shortlist_removed_candidates", "Candidates removed, by the filter that removed each first", ["filter"],
            registry=self._registry,
        )  # fmt: skip
        self.fallbacks = Counter(
            "shortlist_fallbacks", "Slates for which a source was asked for more, by source", ["source"],
            registry=self._registry,
        )  # fmt: skip

        self.events = Counter(
            "shortlist_reported_events",
            "Events that arrived: accepted, unknown_answer (accepted, of an answer that this server does not know), and"
            " refused ones by what was wrong: form, item, index, outcome, time",
            ["result"],
            registry=self._registry,
        )

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed at every scrape."""
        Gauge(name, description, registry=self._registry).set_function(value)

    def count(self, protocol: str, status: int, seconds: float) -> None:
        """Count a request; the duration is observed only for answered and failed requests."""
        outcome = _outcome(status)
        self.requests.labels(protocol, str(status), outcome).inc()
        if outcome in ("answered", "failed"):
            self.seconds.observe(seconds)

    def count_events(self, counts: Mapping[str, int]) -> None:
        """Count reported events by what became of them."""
        for event_result, count in counts.items():
            self.events.labels(event_result).inc(count)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def _outcome(status: int) -> str:
    if status == WENT_AWAY:
        return "gone"
    return "answered" if status < 400 else "refused" if status < 500 else "failed"


def age_seconds(since: float | None) -> float:
    """Return the seconds since a time of `time.time()`; infinity for None."""
    return time.time() - since if since is not None else float("inf")
