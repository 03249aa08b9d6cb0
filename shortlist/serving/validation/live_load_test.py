"""The declared load on a version's own running servers, before users see them."""

from __future__ import annotations

import asyncio
import itertools
import math
from pathlib import Path

from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, percentiles
from shortlist.serving.traffic.load import Load, endless
from shortlist.serving.traffic.sessions import Session, Sessions
from shortlist.spec.data import Data
from shortlist.spec.gates import Infra

_SESSIONS = 64
"""Requests that differ; then they repeat."""
_WARMING = 10
"""Requests before those that count: the first ones of a process are slow, and no user gets them."""
_TRIES = 3


def live_load_failures(
    port: int, model: str, data: Data, log: Path, limits: Infra, host: str = "127.0.0.1"
) -> list[str]:
    """Return what speaks against a version whose servers run; empty when they bear the load.

    Answers that are too slow are measured again, twice at most: users share the machine, and a moment in which it was
    busy is not the candidate's fault. A request that was not answered is.

    Args:
        port: HTTP port of the version's own server; nobody's requests go there yet.
        model: Name of the model.
        data: The log's declaration.
        log: Folder of the valid log; requests are made of its newest day.
        limits: The load, and the longest answers allowed.
        host: Of the server.
    """
    sessions = list(itertools.islice(Sessions(data, log, 1, limits.rows_per_request), _SESSIONS))
    slow: list[str] = []
    for _ in range(_TRIES):
        ledger = asyncio.run(_load(Endpoint(host=host, port=port, model=model), sessions, limits))
        failed = len(ledger) - int(ledger.answered.sum())
        if failed or not len(ledger):
            return [f"{failed} of {len(ledger)} requests were not answered"]
        slow = _too_slow(ledger, limits)
        if not slow:
            return []
    return slow


def _too_slow(ledger: Ledger, limits: Infra) -> list[str]:
    found = zip(("p50", "p99"), percentiles(ledger.latencies_ms(), (50, 99)), strict=True)
    longest = {"p50": limits.max_p50_ms, "p99": limits.max_p99_ms}
    load = f"at {limits.requests_per_second:g} requests per second"
    return [
        f"{name} {value:.1f} ms > {longest[name]:g} ms (gates.infra.max_{name}_ms) {load}"
        for name, value in found
        if value is not None and value > longest[name]
    ]


async def _load(endpoint: Endpoint, sessions: list[Session], limits: Infra) -> Ledger:
    async with connect(endpoint) as client:
        asks = [client.prepare(session.inputs) for session in sessions]
        await Load(client, itertools.islice(endless(asks, "warming"), _WARMING)).closed(1)
        due = math.ceil(limits.requests_per_second * limits.seconds)
        load = Load(client, itertools.islice(endless(asks, "proving"), due))
        return await load.open(limits.requests_per_second, "even")
