"""The declared load on a version's own running servers, before users see them: scores, and whole slates."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shortlist.recommending.release import released_retrieval
from shortlist.serving.server.headers import recommend_model
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, percentiles
from shortlist.serving.traffic.load import Load, endless
from shortlist.serving.traffic.requests import Array
from shortlist.serving.traffic.sessions import Session, Sessions
from shortlist.spec.data import Data
from shortlist.spec.gates import Infra
from shortlist.spec.retrieval import RECENT_ITEMS, K, Retrieval

_SESSIONS = 64
"""Requests that differ; then they repeat."""
_WARMING = 10
"""Requests before those that count: the first ones of a process are slow, and no user gets them."""
_TRIES = 3
_PLACES = 10
"""Items of a slate."""


class _Asked(NamedTuple):
    """A load, and the longest answers allowed."""

    endpoint: Endpoint
    inputs: Sequence[Mapping[str, Array]]
    what: str
    """In messages, and in the names of the limits: empty for scores."""
    per_second: float
    seconds: float
    max_ms: Mapping[str, float]


def live_load_failures(
    port: int, model: str, data: Data, log: Path, limits: Infra, release: Path | None, host: str = "127.0.0.1"
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
        release: Folder of the stages that are released with the model; None: it only scores.
        host: Of the server.
    """
    sessions = list(itertools.islice(Sessions(data, log, 1, limits.rows_per_request), _SESSIONS))
    endpoint = Endpoint(host=host, port=port, model=model)
    longest = {"p50": limits.max_p50_ms, "p99": limits.max_p99_ms}
    inputs = [session.inputs for session in sessions]
    found = _failures(_Asked(endpoint, inputs, "", limits.requests_per_second, limits.seconds, longest))
    if found or release is None:
        return found
    section = released_retrieval(release)
    endpoint = Endpoint(host=host, port=port, model=recommend_model(model), scores_per_row=None)
    longest = {"p50": limits.max_slate_p50_ms, "p99": limits.max_slate_p99_ms}
    inputs = [_slate_inputs(session, section) for session in sessions]
    return _failures(_Asked(endpoint, inputs, "slate", limits.slates_per_second, limits.seconds, longest))


def _slate_inputs(session: Session, section: Retrieval) -> dict[str, Array]:
    """Return a request for recommendations: of nobody, so that no user counts as having been shown its items."""
    recent = [item for item in session.items or () if item is not None][: section.recent_items]
    texts = bool(recent) and isinstance(recent[0], str)
    context = {name: session.inputs[name][:1] for name in section.context if name in session.inputs}
    known = {RECENT_ITEMS: np.array(recent, object if texts else np.int64)} if recent else {}
    return {K: np.array([min(_PLACES, section.candidates)]), **context, **known}


def _failures(asked: _Asked) -> list[str]:
    slow: list[str] = []
    for _ in range(_TRIES):
        ledger = asyncio.run(_load(asked))
        failed = len(ledger) - int(ledger.answered.sum())
        if failed or not len(ledger):
            return [f"{failed} of {len(ledger)} {'slates' if asked.what else 'requests'} were not answered"]
        slow = _too_slow(ledger, asked)
        if not slow:
            return []
    return slow


def _too_slow(ledger: Ledger, asked: _Asked) -> list[str]:
    found = zip(("p50", "p99"), percentiles(ledger.latencies_ms(), (50, 99)), strict=True)
    prefix, key = (f"{asked.what} ", f"{asked.what}_") if asked.what else ("", "")
    load = f"at {asked.per_second:g} {'slates' if asked.what else 'requests'} per second"
    return [
        f"{prefix}{name} {value:.1f} ms > {asked.max_ms[name]:g} ms (gates.infra.max_{key}{name}_ms) {load}"
        for name, value in found
        if value is not None and value > asked.max_ms[name]
    ]


async def _load(asked: _Asked) -> Ledger:
    async with connect(asked.endpoint) as client:
        asks = [client.prepare(inputs) for inputs in asked.inputs]
        await Load(client, itertools.islice(endless(asks, "warming"), _WARMING)).closed(1)
        due = math.ceil(asked.per_second * asked.seconds)
        load = Load(client, itertools.islice(endless(asks, "load_testing"), due))
        return await load.open(asked.per_second, "even")
