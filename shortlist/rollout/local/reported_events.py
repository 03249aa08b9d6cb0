"""Events that the servers of a stack took since they started, by what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from shortlist.serving.processes.probe import get_body
from shortlist.serving.server.inference.event_receiver import ACCEPTED, UNKNOWN_ANSWER

_METRIC: Final = "shortlist_reported_events_total"


def count_reported_events(health_ports: Iterable[int]) -> Mapping[str, int]:
    """Return the number of events by what became of them, of all servers that answer; see `EventReceiver`.

    Args:
        health_ports: Ports of the servers for health and metrics.
    """
    counts = Counter[str]()
    for port in health_ports:
        text = (get_body(port, "/metrics") or b"").decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _METRIC:
                    counts[sample.labels["result"]] += int(sample.value)
    return counts


def describe_reported_events(counts: Mapping[str, int]) -> str:
    """Return how many events arrived, were accepted and were refused, and by which rule.

    >>> describe_reported_events({"accepted": 7, "item": 2, "time": 1})
    'Events since the servers started: 10 arrived; 7 accepted; 3 refused: 2 by item, 1 by time.'
    """
    refused = {rule: count for rule, count in counts.items() if rule not in (ACCEPTED, UNKNOWN_ANSWER)}
    if not sum(counts.values()):
        return "Events since the servers started: none arrived; POST /v1/events takes what users saw and did."
    unknown = counts.get(UNKNOWN_ANSWER, 0)
    accepted_text = f"{counts.get(ACCEPTED, 0) + unknown:,} accepted"
    if unknown:
        accepted_text += f", {unknown:,} of them of answers that their server does not know"
    refused_text = f"{sum(refused.values()):,} refused"
    if refused:
        refused_text += f": {', '.join(f'{count:,} by {rule}' for rule, count in sorted(refused.items()))}"
    return f"Events since the servers started: {sum(counts.values()):,} arrived; {accepted_text}; {refused_text}."
