"""Load test of a real Triton with the exported model."""

from __future__ import annotations

import asyncio
import itertools
import math
from contextlib import suppress

import numpy as np

from shortlist.evaluation.export_validation import LoadTestResult
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, LedgerEntry, percentiles
from shortlist.serving.traffic.load import Load, repeat_requests
from shortlist.serving.triton.triton import RunningTriton
from shortlist.serving.validation.edge_cases import Tensors
from shortlist.serving.validation.served_rows import ServedBatch
from shortlist.spec.gates import Infra

_DISTINCT_REQUESTS = 16
"""Number of different requests; they are repeated."""
_MEMORY_POLL_SECONDS = 0.5


def run_load_test(triton: RunningTriton, model: str, batches: list[ServedBatch], limits: Infra) -> LoadTestResult:
    """Return the measurements of a running Triton under the declared load, open loop.

    Args:
        triton: The server.
        model: Name of the model.
        batches: Rows of the log, from which requests are built.
        limits: The load.

    Raises:
        StackError: The server died.
    """
    scores_per_row = batches[0].all_references.shape[1]
    endpoint = Endpoint(port=triton.ports.grpc, model=model, protocol="grpc", scores_per_row=scores_per_row)
    return asyncio.run(_run_load(triton, endpoint, build_requests(batches, limits.rows_per_request), limits))


async def _run_load(
    triton: RunningTriton, endpoint: Endpoint, requests: list[Tensors], limits: Infra
) -> LoadTestResult:
    not_finite = 0

    def count_not_finite(entry: LedgerEntry, answer: ClientResponse) -> None:
        nonlocal not_finite
        not_finite += answer.scores is not None and not bool(np.isfinite(answer.scores).all())

    load_ended = asyncio.Event()
    peak_memory = asyncio.create_task(_peak_memory_mib(triton, load_ended))
    async with connect(endpoint) as client:
        due_requests = repeat_requests([client.prepare(tensors) for tensors in requests], "infra")
        request_count = math.ceil(limits.requests_per_second * limits.seconds)
        ledger = await Load(client, itertools.islice(due_requests, request_count), on_answer=count_not_finite).run_open(
            limits.requests_per_second, "even"
        )
    load_ended.set()
    p50, p99 = percentiles(ledger.latencies_ms(), (50, 99))
    return LoadTestResult(
        rows_per_request=limits.rows_per_request,
        requests_per_second=limits.requests_per_second,
        seconds=limits.seconds,
        requests=len(ledger),
        failed=_count_unanswered(ledger) + not_finite,
        p50_ms=p50,
        p99_ms=p99,
        memory_mib=round(await peak_memory, 1),
        cold_start_seconds=round(triton.cold_start_seconds, 3),
    )


def build_requests(batches: list[ServedBatch], rows: int) -> list[Tensors]:
    """Return a few requests of `rows` rows each, built from repeated rows of the batches.

    Args:
        batches: Rows of the log.
        rows: Rows of a request.
    """
    largest = max(batches, key=lambda batch: batch.impressions.size)
    row_count = largest.impressions.size
    starts = range(0, row_count, rows)[:_DISTINCT_REQUESTS]
    return [
        {name: tensor[np.arange(start, start + rows) % row_count] for name, tensor in largest.tensors.items()}
        for start in starts
    ]


def _count_unanswered(ledger: Ledger) -> int:
    return len(ledger) - int(ledger.answered.sum())


async def _peak_memory_mib(triton: RunningTriton, load_ended: asyncio.Event) -> float:
    peak_mib = 0.0
    while True:
        peak_mib = max(peak_mib, await asyncio.to_thread(triton.memory_mib))
        if load_ended.is_set():
            return peak_mib
        with suppress(TimeoutError):
            await asyncio.wait_for(load_ended.wait(), _MEMORY_POLL_SECONDS)
