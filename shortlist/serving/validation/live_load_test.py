"""Load test of a version's running servers before they get user traffic: scores, and slates."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shortlist.serving.server.requests.headers import recommend_model
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, percentiles
from shortlist.serving.traffic.load import Load, repeat_requests
from shortlist.serving.traffic.requests import Array
from shortlist.serving.traffic.sessions import Sessions, SlateRequests
from shortlist.slates.release import released_retrieval
from shortlist.spec.data import Data
from shortlist.spec.gates import Infra

_DISTINCT_REQUESTS = 64
"""Number of different requests; they are repeated."""
_WARM_UP_REQUESTS = 10
"""Requests before the measured ones: the first ones of a process are slow."""
_MAX_MEASUREMENTS = 3
_ROW_SECONDS = 5.0
"""Longest wait for the score of a single row."""
_ROW_PATIENCE_SECONDS = 1.0
"""How long connecting is tried for a single row."""


class _LiveLoad(NamedTuple):
    """A load, and the latency limits."""

    endpoint: Endpoint
    inputs: Sequence[Mapping[str, Array]]
    subject: str
    """Used in messages and in the names of the limits: `slate`, or empty for scores."""
    per_second: float
    seconds: float
    max_ms: Mapping[str, float]


def live_load_failures(
    port: int, model: str, data: Data, log: Path, limits: Infra, release: Path | None, host: str = "127.0.0.1"
) -> list[str]:
    """Return the reasons why a version's running servers fail the load test; empty when they pass.

    Slow responses are measured again, at most twice, because the machine also serves users and may have been busy. An
    unanswered request fails at once.

    Args:
        port: HTTP port of the version's own server, which gets no user traffic yet.
        model: Name of the model.
        data: Declared columns of the log.
        log: Folder of the valid log; requests are built from its newest day.
        limits: The load, and the latency limits.
        release: Folder of the release; None when the version serves scores only.
        host: Host of the server.
    """
    sessions = list(itertools.islice(Sessions(data, log, 1, limits.rows_per_request), _DISTINCT_REQUESTS))
    endpoint = Endpoint(host=host, port=port, model=model)
    max_ms = {"p50": limits.max_p50_ms, "p99": limits.max_p99_ms}
    inputs = [session.inputs for session in sessions]
    failures = _failures(_LiveLoad(endpoint, inputs, "", limits.requests_per_second, limits.seconds, max_ms))
    if failures or release is None:
        return failures
    slates = SlateRequests.from_section(released_retrieval(release))
    endpoint = Endpoint(host=host, port=port, model=recommend_model(model), scores_per_row=None)
    max_ms = {"p50": limits.max_slate_p50_ms, "p99": limits.max_slate_p99_ms}
    inputs = [slates.inputs(session) for session in sessions]  # without users: no history contains their items
    return _failures(_LiveLoad(endpoint, inputs, "slate", limits.slates_per_second, limits.seconds, max_ms))


def live_row(data: Data, log: Path) -> Mapping[str, Array]:
    """Return the inputs of a request for the score of one row of the log's newest day."""
    return next(iter(Sessions(data, log, 1, 1))).inputs


def live_row_failures(port: int, model: str, inputs: Mapping[str, Array], host: str = "127.0.0.1") -> list[str]:
    """Return why running servers do not score a row now; empty when they do.

    Args:
        port: HTTP port of the servers.
        model: Name of the model.
        inputs: Inputs of the row, from `live_row`.
        host: Host of the servers.
    """
    endpoint = Endpoint(
        host=host, port=port, model=model, timeout_seconds=_ROW_SECONDS, patience_seconds=_ROW_PATIENCE_SECONDS
    )
    answer = asyncio.run(_ask(endpoint, inputs))
    if answer.status == 200 and not answer.error:
        return []
    return [f"{host}:{port} does not score a row: {answer.error or f'status {answer.status}'}"]


async def _ask(endpoint: Endpoint, inputs: Mapping[str, Array]) -> ClientResponse:
    async with connect(endpoint) as client:
        return await client.ask(client.prepare(inputs), "checking-0")


def _failures(live_load: _LiveLoad) -> list[str]:
    slow: list[str] = []
    for _ in range(_MAX_MEASUREMENTS):
        ledger = asyncio.run(_load(live_load))
        unanswered = len(ledger) - int(ledger.answered.sum())
        if unanswered or not len(ledger):
            return [f"{unanswered} of {len(ledger)} {'slates' if live_load.subject else 'requests'} were not answered"]
        slow = _too_slow(ledger, live_load)
        if not slow:
            return []
    return slow


def _too_slow(ledger: Ledger, live_load: _LiveLoad) -> list[str]:
    latencies = zip(("p50", "p99"), percentiles(ledger.latencies_ms(), (50, 99)), strict=True)
    prefix, key = (f"{live_load.subject} ", f"{live_load.subject}_") if live_load.subject else ("", "")
    load = f"at {live_load.per_second:g} {'slates' if live_load.subject else 'requests'} per second"
    return [
        f"{prefix}{name} {value:.1f} ms > {live_load.max_ms[name]:g} ms (gates.infra.max_{key}{name}_ms) {load}"
        for name, value in latencies
        if value is not None and value > live_load.max_ms[name]
    ]


async def _load(live_load: _LiveLoad) -> Ledger:
    async with connect(live_load.endpoint) as client:
        requests = [client.prepare(inputs) for inputs in live_load.inputs]
        await Load(client, itertools.islice(repeat_requests(requests, "warming"), _WARM_UP_REQUESTS)).run_closed(1)
        request_count = math.ceil(live_load.per_second * live_load.seconds)
        load = Load(client, itertools.islice(repeat_requests(requests, "load_testing"), request_count))
        return await load.run_open(live_load.per_second, "even")
