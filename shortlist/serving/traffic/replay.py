"""Simulates user traffic: replays the log's newest days at a declared rate, and writes their outcomes.

Rows that were collected from live traffic are never replayed: they would be collected once more.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.contracts import ShortlistError
from shortlist.serving.log.logs import item_type, outcome_columns, outcome_name, outcome_schema
from shortlist.serving.log.outcome_writer import OutcomeWriter
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.server.requests.headers import recommend_model
from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Client, Endpoint, connect
from shortlist.serving.traffic.ledger import Ledger, LedgerEntry
from shortlist.serving.traffic.load import DueRequest, Load
from shortlist.serving.traffic.requests import Array
from shortlist.serving.traffic.sessions import Session, Sessions, SlateRequests
from shortlist.spec.data import Data
from shortlist.spec.serving import ReplayTraffic
from shortlist.storage.artefacts import read_json, write_json

LEDGER = "ledger.parquet"
SUMMARY = "summary.json"
LOCK = "replay.lock"
WHILE_STDIN_IS_OPEN = "--while-stdin-is-open"
"""Option that ends the program when its standard input is closed, also by a killed parent."""
_TICK_SECONDS = 0.05
_SLATE_SHARE: Final = 0.03
"""Requests for recommendations of a replay, as a share of the others: each scores many times as many rows."""


class ReplaySettings(BaseModel):
    """Settings of a replay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Data
    """Declared columns of the log."""
    log: Path
    """Folder of the valid log."""
    traffic: ReplayTraffic
    endpoint: Endpoint
    outcomes: Path
    """Folder of the outcome log."""
    out: Path
    """Folder for `ledger.parquet` and `summary.json`, created if missing."""
    rows: int = Field(default=20, ge=1)
    """Most rows of a request."""
    seed: int = Field(default=17, ge=0)
    """Seed of the arrivals."""
    id_prefix: str = ""
    """Start of the requests' ids."""
    seconds: float | None = Field(default=None, gt=0)
    """Duration of the replay; None to run until it is stopped, or for `rounds`."""
    rounds: int | None = Field(default=None, ge=1)
    """Number of times the log is replayed; None for no limit."""
    slates: SlateRequests | None = None
    """Requests for recommendations that are sent beside the others, without outcomes; None: none."""
    max_under_way: int = Field(default=1_000, ge=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the settings in a file.

        Raises:
            ShortlistError: The settings are invalid.
        """
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            raise ShortlistError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def replay(settings: ReplaySettings, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Replay the log repeatedly; return the summary, which is also written to a file.

    Args:
        settings: Settings of the replay.
        stop: Ends the replay when it returns true; open requests are completed, and their outcomes written.
    """
    return asyncio.run(_Replay(settings, stop).play())


class _Replay:
    def __init__(self, settings: ReplaySettings, stop: Callable[[], bool]) -> None:
        traffic = settings.traffic
        self._settings, self._stop = settings, stop
        self._sessions = Sessions(settings.data, settings.log, traffic.days, settings.rows, leaves_out_collected=True)
        self._name = f"{settings.id_prefix}{uuid.uuid4().hex[:10]}"
        self._pending_sessions: dict[str, Session] = {}
        self._rounds = 0
        self._sent_session: Session | None = None
        self._next_session: Session | None = None
        self._asks_for_slates = settings.slates is not None

    async def play(self) -> dict[str, Any]:
        settings = self._settings
        settings.out.mkdir(parents=True, exist_ok=True)
        schema = outcome_schema(item_type(settings.data), outcome_columns(settings.data))
        columns = tuple(map(outcome_name, outcome_columns(settings.data)))
        with closing(OutcomeWriter(stream_folder(settings.outcomes), schema)) as log:
            self._outcomes = DelayedOutcomes(settings.traffic.outcome_delay_seconds, columns, log.append)
            ledger, slates = await self._load()
        summary = {
            **ledger.summary(),
            "slates_sent": len(slates),
            "slates_answered": int(slates.answered.sum()),
            "wanted_rate": settings.traffic.rate,
            "rounds": self._rounds,
            "ended_within_day": self._end_within_day(),
            "first_day": min(self._sessions.rows_by_day).isoformat(),
            "last_day": max(self._sessions.rows_by_day).isoformat(),
            "log_rows": sum(self._sessions.rows_by_day.values()),
            "collected_rows": self._sessions.collected_rows,
            "outcomes": log.written,
            "outcomes_dropped": log.failed,
        }
        with FileLock(settings.out / LOCK):  # the replay of a killed controller may be ending at the same time
            ledger.write(settings.out / LEDGER)
            write_json(settings.out / SUMMARY, summary)
        return summary

    async def _load(self) -> tuple[Ledger, Ledger]:
        """Return the ledgers of the sessions and of the requests for recommendations."""
        settings, traffic = self._settings, self._settings.traffic
        async with connect(settings.endpoint) as client:
            load = Load(client, self._iter_requests(client), settings.seconds, self._stop, self._record_response)
            clock, slates = asyncio.create_task(self._release_outcomes()), asyncio.create_task(self._load_slates())
            try:
                ledger = await load.run_open(traffic.rate, "poisson", settings.seed, settings.max_under_way)
            finally:
                clock.cancel()
                self._asks_for_slates = False
            self._outcomes.release(float("inf"))
            return ledger, await slates

    async def _load_slates(self) -> Ledger:
        settings = self._settings
        if settings.slates is None:
            return Ledger()
        model = recommend_model(settings.endpoint.model)
        endpoint = settings.endpoint.model_copy(update={"model": model, "scores_per_row": None})
        async with connect(endpoint) as client:
            requests = self._iter_slates(client, settings.slates)
            has_ended = lambda: not self._asks_for_slates or self._stop()  # noqa: E731
            load = Load(client, requests, settings.seconds, has_ended, self._record_slate)
            rate = _SLATE_SHARE * settings.traffic.rate
            return await load.run_open(rate, "poisson", settings.seed + 1, settings.max_under_way)

    def _record_slate(self, entry: LedgerEntry, _: ClientResponse) -> None:
        if entry.status == HTTPStatus.NOT_FOUND:  # a version on the port has no slates: that is no fault of it
            self._asks_for_slates = False

    def _iter_slates(self, client: Client, slates: SlateRequests) -> Iterator[DueRequest]:
        for number, session in enumerate(itertools.chain.from_iterable(itertools.repeat(self._sessions))):
            user = None if session.user is None else self._settings.data.user
            yield DueRequest(client.prepare(slates.inputs(session, user)), f"{self._name}-slate-{number}", session.user)

    def _iter_requests(self, client: Client) -> Iterator[DueRequest]:
        while self._settings.rounds is None or self._rounds < self._settings.rounds:
            self._rounds += 1
            for number, session in enumerate(self._sessions):
                name = f"{self._name}-{self._rounds}-{number}"
                self._pending_sessions[name] = self._next_session = session
                yield DueRequest(client.prepare(session.inputs), name, session.user)
                self._sent_session = session  # the load asks for another request once this one is due
            self._sent_session = self._next_session = None  # a whole round

    def _end_within_day(self) -> str | None:
        """Return the log's time of the first session that was not sent; None where whole days were."""
        sent, following = self._sent_session, self._next_session
        return None if not sent or not following or sent.day != following.day else following.time.isoformat()

    def _record_response(self, entry: LedgerEntry, answer: ClientResponse) -> None:
        session = self._pending_sessions.pop(entry.id)
        if answer.scores is not None:
            self._outcomes.expect(entry.id, session, entry.answered)

    async def _release_outcomes(self) -> None:
        while True:
            self._outcomes.release(asyncio.get_running_loop().time())
            await asyncio.sleep(_TICK_SECONDS)


def describe(summary: dict[str, Any]) -> str:
    """Return the summary as a line, with the replayed days and the first distinct reasons of failures below it."""
    failed = ", ".join(f"{count} {track}" for track, count in summary["failed_by_track"].items() if count) or "none"
    latency = "" if summary["p50_ms"] is None else f", p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
    slates = f", {summary['slates_answered']} of {summary['slates_sent']} slates" if summary["slates_sent"] else ""
    return (
        f"replayed {summary['sent']} requests in {summary['seconds']:.0f} s ({summary['rate']} of"
        f" {summary['wanted_rate']:g} wanted per second): {summary['answered']} answered{slates}, failed {failed},"
        f" {summary['refused']} refused, {summary['lost']} lost{latency}, {summary['outcomes']} outcomes\n"
        + _describe_days(summary)
        + "".join(
            f"  {reason['requests']} x {reason['status'] or 'no answer'}: {reason['message']}\n"
            for reason in summary["reasons"]
        )
    )


def _describe_days(summary: dict[str, Any]) -> str:
    first, last, collected = summary["first_day"], summary["last_day"], summary["collected_rows"]
    left_out = f"; {collected:,} rows collected from live traffic are not replayed" if collected else ""
    days = first if first == last else f"{first} to {last}"
    return f"  days of the log: {days}, {summary['log_rows']:,} rows{left_out}\n"


def describe_end(summary: dict[str, Any]) -> str:
    """Return a line about the day of the log within which a replay ended; empty where it replayed whole days."""
    if summary["ended_within_day"] is None:
        return ""
    end = datetime.fromisoformat(summary["ended_within_day"])
    return (
        f"It ended within {end:%Y-%m-%d} of the log, at {end:%H:%M} (round {summary['rounds']}). `shortlist watch`"
        " judges this part as the whole window, and may report columns that vary with the hour as drift; --rounds 1"
        " replays whole days.\n"
    )


def main() -> int:
    """Run as a program: `python -m shortlist.serving.traffic.replay SETTINGS.json [--while-stdin-is-open]`."""
    path, *options = sys.argv[1:]
    stopped = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stopped.set())
    if WHILE_STDIN_IS_OPEN in options:
        threading.Thread(target=_stop_with_stdin, args=(stopped,), daemon=True).start()
    try:
        sys.stdout.write(describe(replay(ReplaySettings.read(Path(path)), stopped.is_set)))
    except ShortlistError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _stop_with_stdin(stopped: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4_096):
        pass
    stopped.set()


_PendingOutcomes = tuple[float, int, str, Sequence[Any] | None, Array, Sequence[Sequence[Any]]]


@dataclass
class DelayedOutcomes:
    """Holds outcomes until they are due, then writes them.

    All impressions of a log were shown, so every row of a session has its outcome, however a model orders the rows.
    Readers that need what users would see of a model take the rows that it ranks first.
    """

    delay_seconds: float
    columns: Sequence[str]
    """Names of the outcome log's columns for `Session.after_columns`."""
    write: Callable[[Sequence[Mapping[str, Any]]], object]
    """Called with the outcomes of all rows that are due, by column of the outcome log."""
    _pending: list[_PendingOutcomes] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def expect(self, request_id: str, session: Session, now: float) -> None:
        """Schedule the outcomes of an answered session; only its items and outcomes are kept."""
        due = now + self.delay_seconds
        heapq.heappush(
            self._pending, (due, next(self._order), request_id, session.items, session.labels, session.after_columns)
        )

    def release(self, now: float) -> None:
        """Write every outcome that is due at `now`, which may be infinite."""
        due_rows: list[Mapping[str, Any]] = []
        while self._pending and self._pending[0][0] <= now:
            _, _, request_id, items, labels, after_columns = heapq.heappop(self._pending)
            moment = datetime.now(UTC)
            due_rows += [
                {
                    "time": moment,
                    "request_id": request_id,
                    "item": None if items is None else items[row],
                    "row": row,
                    "label": label,
                    **{name: values[row] for name, values in zip(self.columns, after_columns, strict=True)},
                }
                for row, label in enumerate(labels.tolist())
            ]
        if due_rows:
            self.write(due_rows)


if __name__ == "__main__":
    sys.exit(main())
