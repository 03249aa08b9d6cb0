"""A real Triton with the exported model, under the load that a spec declares."""

from __future__ import annotations

import asyncio
import itertools
import math
from contextlib import suppress

import numpy as np

from shortlist.evaluation.export_validation import LoadTestResult
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Entry, Ledger, percentiles
from shortlist.serving.traffic.load import Load, endless
from shortlist.serving.triton.triton import RunningTriton
from shortlist.serving.validation.planted import Tensors
from shortlist.serving.validation.rows import Batch
from shortlist.spec.gates import Infra

_DIFFERENT = 16
"""Requests that differ; then they repeat."""
_LOOK_SECONDS = 0.5


def run_load_test(triton: RunningTriton, model: str, batches: list[Batch], limits: Infra) -> LoadTestResult:
    """Return what a running Triton shows under the declared load, open loop.

    Args:
        triton: The server.
        model: Name of the model.
        batches: Rows of the log; requests are made of them.
        limits: The load.

    Raises:
        StackError: The server died.
    """
    of_row = batches[0].all_references.shape[1]
    endpoint = Endpoint(port=triton.ports.grpc, model=model, protocol="grpc", scores_per_row=of_row)
    return asyncio.run(_put_under_load(triton, endpoint, requests_of(batches, limits.rows_per_request), limits))


async def _put_under_load(
    triton: RunningTriton, endpoint: Endpoint, requests: list[Tensors], limits: Infra
) -> LoadTestResult:
    broken = 0

    def note(entry: Entry, answer: ClientResponse) -> None:
        nonlocal broken
        broken += answer.scores is not None and not bool(np.isfinite(answer.scores).all())

    ended = asyncio.Event()
    memory = asyncio.create_task(_most_memory(triton, ended))
    async with connect(endpoint) as client:
        asks = endless([client.prepare(tensors) for tensors in requests], "infra")
        due = math.ceil(limits.requests_per_second * limits.seconds)
        ledger = await Load(client, itertools.islice(asks, due), on_answer=note).open(
            limits.requests_per_second, "even"
        )
    ended.set()
    p50, p99 = percentiles(ledger.latencies_ms(), (50, 99))
    return LoadTestResult(
        rows_per_request=limits.rows_per_request,
        requests_per_second=limits.requests_per_second,
        seconds=limits.seconds,
        requests=len(ledger),
        failed=_not_answered(ledger) + broken,
        p50_ms=p50,
        p99_ms=p99,
        memory_mib=round(await memory, 1),
        cold_start_seconds=round(triton.cold_start_seconds, 3),
    )


def requests_of(batches: list[Batch], rows: int) -> list[Tensors]:
    """Return a few requests of so many rows each, made of the batches' rows over and over.

    Args:
        batches: Rows of the log.
        rows: Rows of a request.
    """
    largest = max(batches, key=lambda batch: batch.impressions.size)
    there = largest.impressions.size
    starts = range(0, there, rows)[:_DIFFERENT]
    return [
        {name: tensor[np.arange(start, start + rows) % there] for name, tensor in largest.tensors.items()}
        for start in starts
    ]


def _not_answered(ledger: Ledger) -> int:
    return len(ledger) - int(ledger.answered.sum())


async def _most_memory(triton: RunningTriton, ended: asyncio.Event) -> float:
    most = 0.0
    while True:
        most = max(most, await asyncio.to_thread(triton.memory_mib))
        if ended.is_set():
            return most
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_SECONDS)
