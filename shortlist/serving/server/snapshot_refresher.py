"""Keeps the snapshot of views current: a thread looks for newer ones and puts them in place."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shortlist.contracts import ShortlistError
from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.view_index import ViewIndex
from shortlist.serving.server.snapshot import Snapshot, load
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.storage.objects import local_copy

_log = logging.getLogger(__name__)


class SnapshotRefresher:
    """The newest snapshot that could be read."""

    def __init__(
        self,
        assembler: TensorAssembler,
        store: Path | FeastStoreLocation | None,
        seconds: float,
        on_look: Callable[[bool], None] | None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            assembler: Knows what the model needs.
            store: Where newer views are announced; None for a model that looks nothing up.
            seconds: How often to look.
            on_look: Called, in the thread, at every look and before newer views are read; told whether there are any.
        """
        self._assembler = assembler
        self._place = None if store is None else feast_store_location(store)
        self._seconds = seconds
        self._on_look = on_look
        self._known: Mapping[str, Any] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)
        self.problem: str | None = None
        """Why the newest views are not, or not all, in place."""
        self.published: float | None = None
        """When the views in place were announced, in seconds since 1970."""
        self.counted_until: float | None = None
        """The end of the newest tile that the views in place count, likewise."""
        self.current: Snapshot | None = None if assembler.steps else Snapshot({})
        """None until there is one."""

    def start(self) -> None:
        """Begin to read and to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a read under way is left to end by itself."""
        self._stop.set()

    def _run(self) -> None:
        self.poll()
        while not self._stop.wait(self._seconds):
            self.poll()

    def poll(self) -> None:
        """Put newer views in place, if there are any; what cannot be read leaves the ones before."""
        if self._place is None:
            if self._assembler.steps:
                self._fail("the model looks features up, but the settings name no store")
            return
        try:
            announced = self._place.expected()
            if self._on_look is not None:
                self._on_look(announced != self._known)
            if announced != self._known or self.problem is not None:
                self._put_in_place(announced)
        # A thread that ends would leave a server with old features and nobody who says so.
        except Exception as error:
            self._fail(str(error) if isinstance(error, ShortlistError) else f"{type(error).__name__}: {error}")

    def _put_in_place(self, announced: Mapping[str, Any]) -> None:
        with TemporaryDirectory(prefix="shortlist-views-") as fetched:
            index = ViewIndex.read(local_copy(announced["views"], Path(fetched)))
            until = datetime.fromisoformat(announced["until"])
            snapshot = load(self._assembler, index, until, self.current, announced.get("digests"))
        self.current = snapshot
        self.published = datetime.fromisoformat(announced["published"]).timestamp()
        counted_until = announced.get("counted_until", announced["until"])  # not told before there were tiles
        self.counted_until = datetime.fromisoformat(counted_until).timestamp()
        self._known = announced
        if snapshot.broken:
            self._fail("; ".join(f"view '{name}': {reason}" for name, reason in snapshot.broken.items()))
        else:
            self.problem = None
            _log.info("views of %s are in place", announced["until"])

    def _fail(self, problem: str) -> None:
        if self.problem != problem:
            _log.warning("the views are not up to date: %s", problem)
        self.problem = problem
