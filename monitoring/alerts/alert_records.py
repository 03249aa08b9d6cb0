"""The newest alert of each name, and the destinations that have not accepted it, below `alerts/` in a record store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydantic import BaseModel, ConfigDict

from monitoring.alerts.alert import Alert
from monitoring.store import record_files
from shortlist.storage.records.store import RecordStore

_FOLDER: Final = "alerts/"


class AlertRecord(BaseModel):
    """An alert and its delivery."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alert: Alert
    waiting: dict[str, str]
    """Why a destination has not accepted it, by the destination's digest; empty before the first attempt.

    Addresses may hold secrets and are not written down.
    """


class AlertRecords:
    """The alerts of a spec.

    Args:
        state: Where they are stored; nothing is made before the first alert.
    """

    def __init__(self, state: RecordStore) -> None:
        self._state = state

    def read(self) -> dict[str, AlertRecord]:
        """Return the newest alert of each name.

        Raises:
            RecordError: A record is torn or was edited.
        """
        texts = self._state.texts(_FOLDER).items()
        records = [
            record_files.parse(text, self._state.where(name), AlertRecord, "an alert")
            for name, text in texts
            if name.endswith(".json")
        ]
        return {record.alert.name: record for record in records}

    def write(self, record: AlertRecord) -> None:
        """Write an alert in place of the earlier one of its name. The caller holds the lock."""
        record_files.replace(self._state, f"{_FOLDER}{record.alert.name}.json", record)

    @contextmanager
    def lock(self, seconds: float) -> Iterator[None]:
        """Be the only process that sends alerts.

        Raises:
            LockedError: Another process still sends alerts after so many seconds.
        """
        with self._state.lock(f"{_FOLDER}sending", seconds):
            yield
