"""Commits the logs of a machine or a pod to their tables: `python -m shortlist.serving.log.committer --help`.

It is a process of its own beside those that write: whatever the disk or the object store does, no answer waits for it.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_random_exponential,
)

from shortlist.contracts import ShortlistError
from shortlist.serving.log.access_log_rotation import rotate_logs
from shortlist.serving.log.log_tables import LogKind, table_address
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.log.table_committer import TableCommitter

_log = logging.getLogger(__name__)

_LONGEST_WAIT_SECONDS: Final = 30.0
_MAINTENANCE_SECONDS: Final = 900.0
_QUIET: Final = "without a new record, before it ends; a server that stops may take 30 s to answer what is under way"


class LogCommitter:
    """Commits several logs, again and again.

    Args:
        committers: One per log.
        maintains: Whether it also puts files together and removes old rows; one process per table does.
        retention: Time that rows are kept; None for ever.
    """

    def __init__(
        self, committers: Sequence[TableCommitter], maintains: bool = False, retention: timedelta | None = None
    ) -> None:
        self._committers, self._maintains, self._retention = committers, maintains, retention
        self._committed_at = self._maintained_at = time.monotonic()
        self.failures = 0
        """Tries that failed."""
        self.problem: str | None = None
        """Why nothing can be committed; None when all is well."""

    def commit(self) -> int:
        """Commit what is new in all logs; return the number of rows.

        Raises:
            ShortlistError: A table cannot be read or written; nothing is lost.
        """
        rows = sum(committer.commit() for committer in self._committers)
        self._committed_at, self.problem = time.monotonic(), None
        return rows

    def maintain(self) -> None:
        """Put files together and remove old rows, and try records again that did not fit.

        Raises:
            ShortlistError: A table cannot be read or written.
        """
        for committer in self._committers:
            committer.retry_unreadable()
            if self._maintains:
                committer.maintain(self._retention)

    def run(self, stop: threading.Event, commit_seconds: float) -> None:
        """Commit and maintain until somebody sets `stop`; while a table is unavailable, less and less often."""
        again = Retrying(
            retry=retry_if_exception_type(ShortlistError),
            stop=stop_when_event_set(stop),
            sleep=sleep_using_event(stop),
            wait=wait_random_exponential(multiplier=max(commit_seconds, 0.1), max=_LONGEST_WAIT_SECONDS),
            after=self._note,
        )
        self._maintained_at = -_MAINTENANCE_SECONDS
        while not stop.wait(commit_seconds):
            with suppress(RetryError):
                again(self.commit)
                if time.monotonic() - self._maintained_at >= _MAINTENANCE_SECONDS:
                    again(self.maintain)
                    self._maintained_at = time.monotonic()

    def drain(self, quiet_seconds: float, longest_seconds: float) -> bool:
        """Commit until nothing new has come for a while; return whether all is committed.

        Args:
            quiet_seconds: The writer, which is told to stop at the same moment, writes its last rows within this time.
            longest_seconds: The whole takes no longer, but for the last try.
        """
        began = quiet = time.monotonic()
        while True:
            is_committed = False
            try:
                quiet = time.monotonic() if self.commit() else quiet
                is_committed = True
            except ShortlistError as error:
                self._fail(error)
                quiet = time.monotonic()
            now = time.monotonic()
            if now - quiet >= quiet_seconds or now - began >= longest_seconds:
                return is_committed
            time.sleep(min(0.2, quiet_seconds))

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        """Return what Prometheus is told."""
        rows = sum(committer.committed for committer in self._committers)
        skipped = sum(committer.skipped for committer in self._committers)
        problems = sum(len(committer.problems) for committer in self._committers)
        behind, prefix = time.monotonic() - self._committed_at, "shortlist_log_committer"
        return [
            CounterMetricFamily(f"{prefix}_rows", "Rows of the logs that were committed to their tables", rows),
            CounterMetricFamily(f"{prefix}_failures", "Commits that failed", self.failures),
            CounterMetricFamily(f"{prefix}_skipped", "Records that do not fit their table, and are left out", skipped),
            GaugeMetricFamily(f"{prefix}_unreadable", "Streams, records and days that cannot be read", problems),
            GaugeMetricFamily(f"{prefix}_behind_seconds", "Time since all rows were in the tables", behind),
            GaugeMetricFamily(f"{prefix}_broken", "1 while nothing can be committed", self.problem is not None),
        ]

    def _note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, ShortlistError):
            self._fail(error)

    def _fail(self, error: ShortlistError) -> None:
        self.failures += 1
        if self.problem != str(error):
            _log.warning("%s", error)
        self.problem = str(error)


def main(arguments: list[str]) -> int:
    """Commit until SIGTERM or SIGINT, and then what is left; return 1 when something is."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asked = _arguments().parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    committers = [_table_committer(asked, kind) for kind in get_args(LogKind)]
    retention = timedelta(seconds=asked.retention_seconds) if asked.retention_seconds else None
    committer = LogCommitter(committers, asked.maintain, retention)
    if asked.metrics_port:
        registry = CollectorRegistry()
        registry.register(committer)
        start_http_server(asked.metrics_port, asked.metrics_host, registry)
    _log.info("%s to %s", asked.folder, asked.objects or asked.folder)
    if asked.rotate:
        threading.Thread(target=rotate_logs, args=(asked.rotate, stop), daemon=True).start()
    committer.run(stop, asked.commit_seconds)
    is_committed = committer.drain(asked.quiet_seconds, asked.grace_seconds)
    _log.info("stopped; %s", "all rows are committed" if is_committed else "some rows are only on this disk")
    return 0 if is_committed else 1


def _table_committer(asked: argparse.Namespace, kind: LogKind) -> TableCommitter:
    folder = asked.folder / kind
    address = table_address(asked.objects, asked.spec, kind) if asked.objects else str(folder)
    return TableCommitter(stream_folder(folder), address, asked.keep_seconds)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shortlist.serving.log.committer", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the logs, with their streams")
    parser.add_argument("--objects", default="", help="s3://bucket/prefix, runtime.objects.url; none: tables are here")
    parser.add_argument("--spec", default="", help="its name, where the tables are in an object store")
    parser.add_argument("--commit-seconds", type=float, default=10.0, help="between two commits")
    parser.add_argument("--keep-seconds", type=float, default=3600.0, help="committed streams stay on the disk so long")
    parser.add_argument("--maintain", action="store_true", help="put files together, and remove old rows")
    parser.add_argument("--retention-seconds", type=float, default=0.0, help="rows are kept so long; 0: for ever")
    rotated = "LOG", "SOCKET"
    parser.add_argument("--rotate", type=Path, nargs=2, action="append", metavar=rotated, help="an access log of Envoy")
    parser.add_argument("--quiet-seconds", type=float, default=35.0, help=_QUIET)
    parser.add_argument("--grace-seconds", type=float, default=50.0, help="longest time for what is left, at the end")
    parser.add_argument("--metrics-port", type=int, default=0, help="of /metrics; 0: none")
    parser.add_argument("--metrics-host", default="127.0.0.1", help="where it listens; 0.0.0.0 inside a pod")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
