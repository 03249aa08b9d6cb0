"""What is said of requests that were lost while parts of the system died."""

from __future__ import annotations

import random
from typing import Any

import polars as pl

from benchmarks.harm import Fault, NotPossibleError, do_harm
from benchmarks.soak_faults import Loss, losses


def test_a_request_is_lost_by_the_fault_during_which_it_was_due_or_failed() -> None:
    requests = [
        # due, answered, status, resent
        (1.0, 1.1, 200, False),
        (9.0, 11.0, 0, True),  # under way when the server was killed
        (10.5, 14.5, 503, False),
        (11.0, 13.0, 200, True),
        (11.5, 11.6, 400, False),  # a client's mistake is an answer
        (31.0, 31.1, 200, False),
        (40.0, 40.1, 500, False),  # nothing was done then
    ]
    ledger = pl.DataFrame(requests, ["due", "answered", "status", "resent"], orient="row")
    faults = [Fault("server", 10.0, 15.0), Fault("Envoy", 20.0, 22.0), Fault("server", 30.0, 35.0)]
    assert losses(ledger, faults) == [
        Loss("Envoy", times=1, requests=0, lost=0, worst=0, outage_seconds=0.0, slowest_seconds=0.0, resent=0),
        Loss("server", times=2, requests=4, lost=2, worst=2, outage_seconds=5.5, slowest_seconds=2.0, resent=1),
    ]


def test_every_kind_of_harm_is_done_at_least_once_or_reported_as_impossible(monkeypatch: Any) -> None:
    done: list[str] = []

    def impossible() -> None:
        raise NotPossibleError("no file system of its own can be mounted")

    class Harm:
        def __init__(self) -> None:
            self.kinds = {"a": lambda: done.append("a"), "b": lambda: done.append("b"), "full disk": impossible}

        def wait_ready(self) -> None:
            done.append("ready")

    monkeypatch.setattr("benchmarks.harm.SETTLE_SECONDS", 0.0)
    said: list[str] = []
    harm: Any = Harm()
    faults = do_harm(harm, seconds=0, chance=random.Random(1), report=said.append)
    assert sorted(fault.name for fault in faults) == ["a", "b"]
    assert sorted(set(done)) == ["a", "b", "ready"]
    assert "full disk: not possible here (no file system of its own can be mounted)" in said
