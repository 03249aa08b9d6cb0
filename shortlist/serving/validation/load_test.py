"""Load test of a real Triton with the exported model."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from contextlib import suppress

import numpy as np

from shortlist.evaluation.gates.export_gates import exceeds_limits
from shortlist.evaluation.gates.export_validation import LoadTestResult
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
_BUSY_SHARE = 0.1
"""Share of the machine's cores above which the use by other processes counts as a busy moment."""


def run_load_test(triton: RunningTriton, model: str, batches: list[ServedBatch], limits: Infra) -> LoadTestResult:
    """Return the measurements of a running Triton under the declared load, open loop.

    A measurement above a limit while other processes kept the machine busy is repeated once; the second one counts.

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
    return measure_load(triton, endpoint, build_requests(batches, limits.rows_per_request), limits)


def measure_load(triton: RunningTriton, endpoint: Endpoint, requests: list[Tensors], limits: Infra) -> LoadTestResult:
    """Return the measurements under the declared load; see `run_load_test`."""
    load_test = asyncio.run(_run_load(triton, endpoint, requests, limits))
    if exceeds_limits(load_test, limits) and _was_busy(load_test):
        return asyncio.run(_run_load(triton, endpoint, requests, limits))
    return load_test


def _was_busy(load_test: LoadTestResult) -> bool:
    return (load_test.other_cores or 0) > _BUSY_SHARE * (os.cpu_count() or 1)


async def _run_load(
    triton: RunningTriton, endpoint: Endpoint, requests: list[Tensors], limits: Infra
) -> LoadTestResult:
    not_finite = 0

    def count_not_finite(entry: LedgerEntry, answer: ClientResponse) -> None:
        nonlocal not_finite
        not_finite += answer.scores is not None and not bool(np.isfinite(answer.scores).all())

    load_ended = asyncio.Event()
    started, other_seconds = time.perf_counter(), _other_cpu_seconds(triton)
    peak_memory = asyncio.create_task(_peak_memory_mib(triton, load_ended))
    async with connect(endpoint) as client:
        due_requests = repeat_requests([client.prepare(tensors) for tensors in requests], "infra")
        request_count = math.ceil(limits.requests_per_second * limits.seconds)
        ledger = await Load(client, itertools.islice(due_requests, request_count), on_answer=count_not_finite).run_open(
            limits.requests_per_second, "even"
        )
    load_ended.set()
    memory_mib = await peak_memory
    other_cores = (_other_cpu_seconds(triton) - other_seconds) / (time.perf_counter() - started)
    p50, p99 = percentiles(ledger.latencies_ms(), (50, 99))
    return LoadTestResult(
        rows_per_request=limits.rows_per_request,
        requests_per_second=limits.requests_per_second,
        seconds=limits.seconds,
        requests=len(ledger),
        failed=_count_unanswered(ledger) + not_finite,
        p50_ms=p50,
        p99_ms=p99,
        memory_mib=round(memory_mib, 1),
        cold_start_seconds=round(triton.cold_start_seconds, 3),
        other_cores=round(max(0.0, other_cores), 2),
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


def _other_cpu_seconds(triton: RunningTriton) -> float:
    """Return the processor time since the machine's start of all processes but this one and Triton's."""
    import psutil  # type: ignore[import-untyped]

    total = psutil.cpu_times()
    busy = sum(total) - total.idle - getattr(total, "iowait", 0.0)
    # Time of guests is contained in that of users.
    busy -= getattr(total, "guest", 0.0) + getattr(total, "guest_nice", 0.0)
    return float(busy) - time.process_time() - triton.cpu_seconds()


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
