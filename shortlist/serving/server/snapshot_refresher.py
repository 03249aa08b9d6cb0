"""Keeps the snapshot of views current: a thread looks for newer ones and puts them in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.view_index import ViewIndex
from shortlist.serving.server.refresher import Refresher
from shortlist.serving.server.snapshot import Snapshot, load
from shortlist.serving.server.tensor_assembler import TensorAssembler
from shortlist.storage.objects import local_copy

_log = logging.getLogger(__name__)


class SnapshotRefresher(Refresher):
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
        super().__init__("views", seconds)
        self._assembler = assembler
        self._place = None if store is None else feast_store_location(store)
        self._on_look = on_look
        self._known: Mapping[str, Any] | None = None
        self.published: float | None = None
        """When the views in place were announced, in seconds since 1970."""
        self.counted_until: float | None = None
        """The end of the newest tile that the views in place count, likewise."""
        self.current: Snapshot | None = None if assembler.steps else Snapshot({})
        """None until there is one."""

    def _refresh(self) -> None:
        if self._place is None:
            if self._assembler.steps:
                self._fail("the model looks features up, but the settings name no store")
            return
        announced = self._place.expected()
        if self._on_look is not None:
            self._on_look(announced != self._known)
        if announced != self._known or self.problem is not None:
            self._put_in_place(announced)

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
