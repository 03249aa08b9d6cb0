"""Loads against a real server, and their complete ledger."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import polars as pl
import pytest

from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Client, Endpoint, connect
from shortlist.serving.traffic.ledger import OPEN, Ledger, LedgerEntry, percentiles
from shortlist.serving.traffic.load import DueRequest, Load, repeat_requests
from shortlist.serving.traffic.requests import PreparedRequest
from shortlist.serving.triton.triton import RunningTriton

ONE_ROW = PreparedRequest(b"", {}, 1)


class Stalling(Client):
    """Responds after a pause, which is long for one of the requests."""

    def __init__(self, pause: float, stall: float = 0.0, at: int = -1) -> None:
        super().__init__(Endpoint(port=1, model="m"))
        self._pause, self._stall, self._at = pause, stall, at
        self._numbers = itertools.count()
        self._gate = asyncio.Lock()
        self.under_way = self.most_under_way = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def _send(self, request: PreparedRequest, headers: dict[str, str]) -> ClientResponse:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(self._stall if next(self._numbers) == self._at else self._pause)
        self.under_way -= 1
        return ClientResponse(200, np.zeros(1, np.float32), "3", "stable")


def some_requests(count: int) -> Iterator[DueRequest]:
    return itertools.islice(repeat_requests([ONE_ROW], "r"), count)


def run(client: Client, play: Callable[[Load], object], asks: Iterator[DueRequest], **changed: object) -> Ledger:
    load = Load(client, asks, **changed)  # type: ignore[arg-type] # what a test changes
    asyncio.run(play(load))  # type: ignore[arg-type]
    return load.ledger


@pytest.mark.parametrize("protocol", ["http", "json", "grpc"])
def test_a_closed_loop_records_every_request(triton: RunningTriton, protocol: str) -> None:
    port = triton.ports.grpc if protocol == "grpc" else triton.ports.http
    endpoint = Endpoint(port=port, model="twice", protocol=protocol)
    scores: dict[str, float] = {}

    def note(entry: LedgerEntry, answer: ClientResponse) -> None:
        assert answer.scores is not None
        scores[entry.id] = float(answer.scores[0])

    async def story() -> Ledger:
        async with connect(endpoint) as client:
            requests = [client.prepare({"x": np.full((5, 1), float(value))}) for value in range(10)]
            return await Load(client, itertools.islice(repeat_requests(requests, "r"), 200), on_answer=note).run_closed(
                8
            )

    ledger = asyncio.run(story())
    assert len(ledger) == 200
    assert (ledger.answered.sum(), ledger.failed.sum(), ledger.lost, ledger.rows) == (200, 0, 0, 1_000)
    assert scores == {f"r-{number}": 2.0 * (number % 10) for number in range(200)}  # nobody got another's answer
    assert {entry.version for entry in ledger.entries} == {"3"}


def test_failures_are_counted_not_raised(triton: RunningTriton) -> None:
    async def story() -> Ledger:
        async with connect(Endpoint(port=triton.ports.http, model="twice")) as client:
            good, bad = (client.prepare({"x": np.full((1, 1), value)}) for value in (1.0, -1.0))
            return await Load(client, itertools.islice(repeat_requests([good, bad, good], "r"), 30)).run_closed(3)

    summary = asyncio.run(story()).summary()
    assert (summary["sent"], summary["answered"], summary["failed"], summary["lost"]) == (30, 20, 10, 0)


def test_an_open_loop_does_not_wait_for_a_stalled_server() -> None:
    # The third of 30 requests, one each 5 ms, takes 0.3 s: the 27 others come and go meanwhile.
    ledger = run(Stalling(0.0, 0.3, at=2), lambda load: load.run_open(200, "even"), some_requests(30))
    latencies = ledger.latencies_ms()
    assert len(ledger) == 30
    assert latencies[2] >= 290
    assert np.delete(latencies, 2).max() < 290
    assert ledger.waited == 0


def test_a_stall_counts_in_the_latency_of_every_delayed_request() -> None:
    # One at a time: those due during the stall leave after it. They were sent late through no fault of their own, and a
    # client that counted from the sending would see one slow answer and a row of fast ones.
    ledger = run(Stalling(0.0, 0.3, at=2), lambda load: load.run_open(200, "even", max_under_way=1), some_requests(30))
    latencies = ledger.latencies_ms()
    late = latencies[3:30]
    assert ledger.waited >= 20
    assert late.max() >= 250
    assert np.all(np.diff(late) < 0.5)  # each was due 5 ms later, so it waited that much less
    assert percentiles(latencies, [50])[0] > 100
    assert max(entry.answered - entry.sent for entry in ledger.entries[3:]) < 0.2


def test_never_more_requests_are_under_way_than_allowed() -> None:
    client = Stalling(0.02)
    run(client, lambda load: load.run_open(2_000, "even", max_under_way=5), some_requests(50))
    assert client.most_under_way == 5


def test_poisson_arrivals_have_the_declared_rate_and_are_reproducible() -> None:
    def due(seed: int) -> np.ndarray:
        ledger = run(Stalling(0.0), lambda load: load.run_open(1_000, "poisson", seed), some_requests(400))
        return np.array([entry.due - ledger.started for entry in ledger.entries])

    first, repeated, other_seed = due(1), due(1), due(2)
    np.testing.assert_allclose(first, repeated, atol=1e-9)
    assert not np.allclose(first, other_seed)
    gaps = np.diff(first)
    assert gaps.mean() == pytest.approx(1e-3, rel=0.2)  # standard error: 1e-3 / sqrt(399) = 5 %
    assert gaps.std() == pytest.approx(1e-3, rel=0.3)  # an exponential's deviation is its mean


def test_a_load_ends_after_its_seconds_and_awaits_open_requests() -> None:
    ledger = run(Stalling(0.05), lambda load: load.run_open(100, "even"), endless_rows(), seconds=0.2)
    assert 15 <= len(ledger) <= 20
    assert ledger.answered.all()
    closed = run(Stalling(0.01), lambda load: load.run_closed(2), endless_rows(), seconds=0.1)
    assert 2 <= len(closed) <= 22
    assert closed.answered.all()


def test_a_load_stops_even_while_it_waits_for_the_next_request() -> None:
    @dataclass
    class Soon:
        calls: int = field(default=0)

        def __call__(self) -> bool:
            self.calls += 1
            return self.calls > 2

    ledger = run(Stalling(0.0), lambda load: load.run_open(0.01, "even"), endless_rows(), stop=Soon())
    assert len(ledger) == 0


def test_a_ledger_counts_lost_requests() -> None:
    ledger = Ledger([LedgerEntry("a", "ann", 3, 0.0), LedgerEntry("b", None, 3, 0.0)], started=0.0, ended=1.0)
    ledger.entries[0].close(ClientResponse(200, np.zeros(3, np.float32), "3", "canary"), now=0.25)
    assert ledger.status.tolist() == [200, OPEN]
    assert ledger.summary() == {
        "sent": 2,
        "answered": 1,
        "answered_by_track": {"unknown": 0, "canary": 1},
        "refused": 0,
        "failed": 1,
        "failed_by_track": {"unknown": 1, "canary": 0},
        "lost": 1,
        "reasons": [],
        "retried": 0,
        "held_back": 0,
        "p50_ms": 250.0,
        "p99_ms": 250.0,
        "seconds": 1.0,
        "rate": 1.0,
    }


def test_a_ledger_has_the_first_distinct_reasons_of_failures() -> None:
    ledger = Ledger([LedgerEntry(str(number), None, 3, 0.0) for number in range(10)])
    answers = [(503, "busy"), (400, "no 'page'"), (503, "busy"), (200, ""), (0, "not sent: refused")]
    answers += [(500, f"bug {number}") for number in range(4)]
    for entry, (status, error) in zip(ledger.entries, answers, strict=False):  # the last one is open
        entry.close(ClientResponse(status, error=error), now=0.25)
    reasons = [(reason["requests"], reason["status"], reason["message"]) for reason in ledger.summary()["reasons"]]
    assert reasons == [
        (2, 503, "busy"), (1, 400, "no 'page'"), (1, 0, "not sent: refused"), (1, 500, "bug 0"), (1, 500, "bug 1"),
    ]  # fmt: skip


def test_a_ledger_is_written_as_a_table(tmp_path: Path) -> None:
    ledger = Ledger([LedgerEntry("a", "ann", 3, 0.0), LedgerEntry("b", None, 3, 0.0)])
    ledger.entries[0].close(ClientResponse(503, error="gone", retries=2), now=0.25)
    ledger.write(tmp_path / "ledger.parquet")
    assert pl.read_parquet(tmp_path / "ledger.parquet").select("id", "user", "status", "retries", "error").rows() == [
        ("a", "ann", 503, 2, "gone"),
        ("b", None, OPEN, 0, ""),
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], [None, None]), ([4.0], [4.0, 4.0]), (range(1, 101), [50.0, 99.0]), (range(1, 1_001), [500.0, 990.0])],
)
def test_percentiles_are_values_that_were_measured(values: list[float], expected: list[float | None]) -> None:
    assert percentiles(np.array(values, np.float64), (50, 99)) == expected


def endless_rows() -> Iterator[DueRequest]:
    return repeat_requests([ONE_ROW], "r")


class Growing(list[LedgerEntry]):
    """Entries of a running load: each read finds one more."""

    def __iter__(self) -> Iterator[LedgerEntry]:
        self.append(LedgerEntry("later", None, 1, 0.0))
        return super().__iter__()


def test_a_ledger_can_be_read_while_its_load_runs() -> None:
    assert Ledger(Growing([LedgerEntry("a", "ann", 3, 0.0)])).frame()["id"].to_list() == ["a"]
