"""Keeps the snapshot of views current: a thread polls for newer views and loads them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shortlist.features.feast.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.server.features.refresher import Refresher
from shortlist.serving.server.features.snapshot import Snapshot, load_snapshot
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.storage.objects import local_copy

_log = logging.getLogger(__name__)


class SnapshotRefresher(Refresher):
    """The newest snapshot that could be read."""

    def __init__(
        self,
        assembler: TensorAssembler,
        store: Path | FeastStoreLocation | None,
        poll_seconds: float,
        on_poll: Callable[[bool], None] | None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            assembler: Contains the model's requirements.
            store: Where newer views are announced; None for a model that looks nothing up.
            poll_seconds: Time between two polls.
            on_poll: Called in the thread at every poll, before newer views are read; receives whether there are any.
        """
        super().__init__("views", poll_seconds)
        self._assembler = assembler
        self._store_location = None if store is None else feast_store_location(store)
        self._on_poll = on_poll
        self._announcement: Mapping[str, Any] | None = None
        self.published: float | None = None
        """Publication time of the loaded views, in seconds since 1970."""
        self.counted_until: float | None = None
        """End of the newest tile that the loaded views count, in seconds since 1970."""
        self.current: Snapshot | None = None if assembler.steps else Snapshot({})
        """The newest snapshot; None until one was loaded."""

    def _refresh(self) -> None:
        if self._store_location is None:
            if self._assembler.steps:
                self._fail("the model looks features up, but the settings name no store")
            return
        announcement = self._store_location.require_announcement()
        if self._on_poll is not None:
            self._on_poll(announcement != self._announcement)
        if announcement != self._announcement or self.problem is not None:
            self._load(announcement)

    def _load(self, announcement: Mapping[str, Any]) -> None:
        with TemporaryDirectory(prefix="shortlist-views-") as folder:
            index = ViewIndex.read(local_copy(announcement["views"], Path(folder)))
            until = datetime.fromisoformat(announcement["until"])
            snapshot = load_snapshot(self._assembler, index, until, self.current, announcement.get("digests"))
        self.current = snapshot
        self.published = datetime.fromisoformat(announcement["published"]).timestamp()
        # Announcements of versions without tiles have no "counted_until".
        counted_until = announcement.get("counted_until", announcement["until"])
        self.counted_until = datetime.fromisoformat(counted_until).timestamp()
        self._announcement = announcement
        if snapshot.broken:
            self._fail("; ".join(f"view '{name}': {reason}" for name, reason in snapshot.broken.items()))
        else:
            self.problem = None
            _log.info("loaded the views of %s", announcement["until"])
