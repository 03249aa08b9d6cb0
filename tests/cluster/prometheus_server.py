"""A stand-in for Prometheus over real HTTP, which answers only queries of Envoy's metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from listening import listening

_QUERY = re.compile(
    r"sum by \((envoy_response_code_class|le)\) "
    r"\(increase\((envoy_cluster_upstream_rq_xx|envoy_cluster_upstream_rq_time_bucket)"
    r'\{envoy_cluster_name=~"([^"]+)"\}\[(\d+)s\]\)\)'
)


@dataclass
class Counted:
    """At one backend."""

    classes: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, float] = field(default_factory=dict)


class PrometheusServer:
    def __init__(self) -> None:
        self.clusters: dict[str, Counted] = {}
        """By Envoy's own names."""
        self.broken = ""
        """A status, or the text that every answer is."""
        self.queries: list[str] = []
        self.values: dict[str, list[float]] = {}
        """Values of other queries, by their text."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def tell(self, track: str, answered: int, failed: int = 0, slow: int = 0, refused: int = 0) -> None:
        """Count requests of a track, those of the canary at two places.

        Args:
            track: stable or canary.
            answered: With 2xx.
            failed: With 5xx.
            slow: Those of the answered ones that took longer than a second.
            refused: With 4xx.
        """
        for place, part in ((0, 4), (2, 4)) if track == "canary" else ((1, 4), (3, 4)):
            first = place in (0, 1)
            numbers = [value // part if first else value - value // part for value in (answered, failed, slow, refused)]
            self._tell(f"httproute/ml/shortlist-demo/rule/0/backend/{place}", *numbers)

    def _tell(self, cluster: str, answered: int, failed: int, slow: int, refused: int) -> None:
        buckets = {"50": answered - slow, "250": answered - slow, "1000": answered - slow, "+Inf": answered}
        errors_by_class = {name: count for name, count in (("4", refused), ("5", failed)) if count}
        self.clusters[cluster] = Counted({"2": answered, **errors_by_class}, buckets)

    def answer(self, query: str) -> dict[str, Any]:
        self.queries.append(query)
        if query in self.values:
            samples = [{"metric": {}, "value": [1_800_000_000.0, str(value)]} for value in self.values[query]]
            return {"status": "success", "data": {"resultType": "vector", "result": samples}}
        match = _QUERY.fullmatch(query)
        if match is None:
            raise ValueError(f"parse error: {query}")
        label, metric, track, _ = match.groups()
        sums: dict[str, float] = {}
        for cluster, counted in self.clusters.items():
            if re.fullmatch(track, cluster):
                for name, value in (counted.classes if metric.endswith("_xx") else counted.buckets).items():
                    sums[name] = sums.get(name, 0.0) + value
        result = [{"metric": {label: name}, "value": [1_800_000_000.0, str(value)]} for name, value in sums.items()]
        return {"status": "success", "data": {"resultType": "vector", "result": result}}


@contextmanager
def running() -> Iterator[PrometheusServer]:
    """Run a server on a free port while the block runs."""
    state = PrometheusServer()

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            status, body = 200, state.broken
            if state.broken.isdigit() or parts.path != "/api/v1/query":
                status = int(state.broken or 404)
            elif not state.broken:
                try:
                    body = json.dumps(state.answer(parse_qs(parts.query)["query"][0]))
                except ValueError as error:
                    status, body = 400, json.dumps({"status": "error", "error": str(error)})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with listening(server) as state.port:
        yield state
