"""Copying a log's finished parts to an object store: `python -m shortlist.serving.log.log_shipper --help`.

It is a process of its own beside the one that writes: whatever the store does, no answer waits for it. What was shipped
is marked beside the part, so that a killed shipper goes on where it was; a part that is shipped twice has the same key
and the same content.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

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
from shortlist.serving.log.log_keys import log_key, part_key
from shortlist.serving.log.log_reader import files_of, parts
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig

_log = logging.getLogger(__name__)

_SHIPPED: Final = ".shipped"
"""Behind the name of a part: an empty file that says so."""
_LONGEST_WAIT_SECONDS: Final = 30.0
_QUIET: Final = "without a new part, before it ends; a server that stops may take 30 s to answer what is under way"


class LogShipper:
    """Ships the parts of one folder.

    Args:
        folder: Of the log; others write there, and a part under its own name is whole.
        objects: Where to.
        key: Of the log; see `log_key`.
        writer: Name of this pod or machine.
        keep_seconds: So long a shipped part stays on this disk.
    """

    def __init__(self, folder: Path, objects: ObjectStore, key: str, writer: str, keep_seconds: float) -> None:
        self._folder, self._objects, self._key = folder, objects, key
        self._writer, self._keep_seconds = writer, keep_seconds
        self.shipped = 0
        """Parts that this process shipped."""
        self.failures = 0
        """Tries that failed."""
        self.problem: str | None = None
        """Why nothing can be shipped; None when all is well."""

    def waiting(self) -> list[Path]:
        """Return the parts that are only on this disk."""
        return [path for path in parts(self._folder) if not _mark(path).exists()]

    def ship(self) -> int:
        """Ship what waits, each writer's parts in their order; return how many.

        Raises:
            ShortlistError: The store is unavailable or refuses; what was shipped is marked.
        """
        before = self.shipped
        for path in self.waiting():
            with suppress(FileNotFoundError):  # its owner removed it
                self._objects.put_file(path, f"{self._key}/{part_key(path, self._folder, self._writer)}")
                _mark(path).touch()
                self.shipped += 1
        self.problem = None
        return self.shipped - before

    def tidy(self) -> None:
        """Remove what was shipped long enough ago from this disk."""
        for path in parts(self._folder):
            with suppress(FileNotFoundError):
                if time.time() - _mark(path).stat().st_mtime >= self._keep_seconds:
                    path.unlink()
        for mark in files_of(self._folder, f"**/*{_SHIPPED}"):
            if not mark.with_name(mark.name.removesuffix(_SHIPPED)).exists():
                mark.unlink(missing_ok=True)

    def run(self, stop: threading.Event, poll_seconds: float) -> None:
        """Ship and tidy until somebody sets `stop`; while the store is unavailable, less and less often."""
        again = Retrying(
            retry=retry_if_exception_type(ShortlistError),
            stop=stop_when_event_set(stop),
            sleep=sleep_using_event(stop),
            wait=wait_random_exponential(multiplier=max(poll_seconds, 0.1), max=_LONGEST_WAIT_SECONDS),
            after=self._note,
        )
        while not stop.wait(poll_seconds):
            with suppress(RetryError):
                again(self.ship)
            self.tidy()

    def drain(self, quiet_seconds: float, longest_seconds: float) -> int:
        """Ship until nothing new has come for a while; return how many parts are left.

        Args:
            quiet_seconds: The writer, which is told to stop at the same moment, writes its last part within this time.
            longest_seconds: The whole takes no longer, but for the last try.
        """
        began = quiet = time.monotonic()
        while True:
            try:
                quiet = time.monotonic() if self.ship() else quiet
            except ShortlistError as error:
                self._fail(error)
                quiet = time.monotonic()
            now = time.monotonic()
            if now - quiet >= quiet_seconds or now - began >= longest_seconds:
                return len(self.waiting())
            time.sleep(min(0.2, quiet_seconds))

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        """Return what Prometheus is told."""
        waiting = self.waiting()
        oldest = 0.0
        with suppress(FileNotFoundError):
            oldest = max((time.time() - path.stat().st_mtime for path in waiting), default=0.0)
        name, prefix = "Parts of the log", "shortlist_log_shipper"
        return [
            CounterMetricFamily(f"{prefix}_parts", f"{name} that were shipped", self.shipped),
            CounterMetricFamily(f"{prefix}_failures", "Tries that failed", self.failures),
            GaugeMetricFamily(f"{prefix}_waiting", f"{name} that are only on this disk", len(waiting)),
            GaugeMetricFamily(f"{prefix}_oldest_seconds", "Age of the oldest of them", oldest),
            GaugeMetricFamily(f"{prefix}_broken", "1 while the store takes nothing", self.problem is not None),
        ]

    def _note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, ShortlistError):
            self._fail(error)

    def _fail(self, error: ShortlistError) -> None:
        self.failures += 1
        if self.problem != str(error):
            _log.warning("%s: %d parts wait: %s", self._folder, len(self.waiting()), error)
        self.problem = str(error)


def main(arguments: list[str]) -> int:
    """Ship until SIGTERM or SIGINT, and then what is left; return 1 when something is."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asked = _arguments().parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        objects = open_object_store(StorageConfig(objects=asked.objects))
    except ShortlistError as error:
        _log.error("%s", error)
        return 1
    shipper = LogShipper(asked.folder, objects, log_key(asked.spec, asked.kind), asked.writer, asked.keep_seconds)
    if asked.metrics_port:
        registry = CollectorRegistry()
        registry.register(shipper)
        start_http_server(asked.metrics_port, asked.metrics_host, registry)
    _log.info("%s to %s/%s", asked.folder, asked.objects, log_key(asked.spec, asked.kind))
    shipper.run(stop, asked.poll_seconds)
    left = shipper.drain(asked.quiet_seconds, asked.grace_seconds)
    _log.info("stopped; %d parts are only on this disk", left)
    return 1 if left else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shortlist.serving.log.log_shipper", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the log")
    parser.add_argument("--objects", required=True, help="s3://bucket/prefix, runtime.objects.url")
    parser.add_argument("--spec", required=True, help="its name")
    parser.add_argument("--kind", choices=["predictions", "outcomes"], default="predictions")
    parser.add_argument("--writer", default=socket.gethostname(), help="of this pod; the host's name by default")
    parser.add_argument("--keep-seconds", type=float, default=3600.0, help="a shipped part stays on the disk so long")
    parser.add_argument("--poll-seconds", type=float, default=2.0, help="between two looks for new parts")
    parser.add_argument("--quiet-seconds", type=float, default=35.0, help=_QUIET)
    parser.add_argument("--grace-seconds", type=float, default=50.0, help="longest time for what is left, at the end")
    parser.add_argument("--metrics-port", type=int, default=0, help="of /metrics; 0: none")
    parser.add_argument("--metrics-host", default="127.0.0.1", help="where it listens; 0.0.0.0 inside a pod")
    return parser


def _mark(path: Path) -> Path:
    return path.with_name(path.name + _SHIPPED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
