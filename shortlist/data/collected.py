"""The collected part of a log: numbered batches of rows that were served, each published at once or not at all.

Below `collected/<spec>/` of the object store:

- `batches/00000001.json`: a `Batch`; whoever creates the next number has published a batch
- `rows/<...>/`: the files of a batch: `rows.parquet`, `requests/requests.parquet`

A batch holds every row as it was served, those that break a rule of the log too: whoever reads it judges them by the
rules of that day, so that a rule that was too strict has lost nothing.


A collector that is killed, or that another one overtakes, leaves files below `rows/` which no batch names; nobody reads
them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.contracts import DataError, ShortlistError
from shortlist.data.quarantine import QUARANTINE_SCHEMA
from shortlist.spec.data import Data
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig

ROWS: Final = "rows.parquet"
ANSWERED: Final = ":answered"
"""Column of `ROWS`: when the row was answered, by the server's clock."""
_QUARANTINE: Final = "quarantine.parquet"
"""Beside `ROWS` in batches of earlier versions, which did not keep the values of such rows."""
REQUESTS: Final = "requests"
"""Folder with one file: a row per request of the batch, the fingerprint of its id (`request`)."""
_NUMBER: Final = re.compile(r"(\d{8})\.json")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LogSpan(_Record):
    """Parts of one writer of the prediction log that a batch holds, first and last included."""

    writer: str
    """Folder of the parts."""
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class BatchCounts(_Record):
    """What became of the requests of a batch, and of the outcomes that belong to them."""

    requests: int = 0
    """Answered requests of users, each once."""
    rows: int = 0
    """Rows that kept every rule of the log as it was declared then, and may be trained on."""
    positives: int = 0
    quarantined: int = 0
    """Rows that broke one."""
    without_outcome: int = 0
    """Rows whose outcome did not come in time: negatives, or left out, as the spec declares."""
    repeated_requests: int = 0
    """Answers of a request that was counted before: a client, or a gateway, asked again."""
    before_since: int = 0
    """Rows before `data.live.since`."""
    late_outcomes: int = 0
    """Outcomes that came after `data.outcome_delay`; they change no row."""
    early_outcomes: int = 0
    """Outcomes from before their answer, by more than clocks may differ; they change no row."""
    repeated_outcomes: int = 0
    """Outcomes of a row that has a later one; the last one counts."""
    foreign_outcomes: int = 0
    """Outcomes that name another item than their row, or a row that the request does not have."""


class Batch(_Record):
    """One batch: where its files are, and what they hold."""

    number: int = Field(ge=1)
    """From 1, without a gap."""
    spec: str
    made: datetime
    folder: str
    """Key of its files."""
    digest: str
    """SHA-256 of `rows.parquet`."""
    spans: tuple[LogSpan, ...]
    """Parts of the prediction log that it covers."""
    answered_from: datetime | None
    """Time of its first answer; None without one."""
    answered_to: datetime | None
    first: datetime | None
    """Of its rows' times; None without rows."""
    last: datetime | None
    counts: BatchCounts


class CollectedLog:
    """The batches of a spec.

    Args:
        objects: Where they are.
        spec: Name of the spec.
    """

    def __init__(self, objects: ObjectStore, spec: str) -> None:
        self._objects = objects
        self._spec = spec
        self._root = f"collected/{spec}"

    @classmethod
    def open(cls, stores: str, spec: str) -> Self:
        """Return the batches of a spec in the stores that the graphs' parameter `stores` names."""
        return cls(open_object_store(StorageConfig.parse(stores)), spec)

    def batches(self, newest: int | None = None) -> tuple[Batch, ...]:
        """Return the published batches by number.

        Args:
            newest: Number of the last one wanted; None: all there are.

        Raises:
            DataError: One is missing or not readable.
        """
        names = (key.rpartition("/")[2] for key in self._objects.keys(f"{self._root}/batches/"))
        numbers = sorted(int(match[1]) for name in names if (match := _NUMBER.fullmatch(name)))
        wanted = len(numbers) if newest is None else newest
        if numbers[:wanted] != list(range(1, wanted + 1)):
            lost = next(number for number in range(1, wanted + 1) if number not in numbers)
            raise DataError(
                f"{self._objects.url(self._key(lost))}: missing, though batches of collected rows are numbered without"
                " a gap; restore it from a backup, or remove the spec's collected rows altogether and collect again"
            )
        return tuple(self._batch(number) for number in numbers[:wanted])

    def publish(self, batch: Batch, files: Path) -> bool:
        """Publish a batch; return False when its number was taken meanwhile, and nothing is published.

        Args:
            batch: Its number is the next one.
            files: Folder with its files.

        Raises:
            ShortlistError: The store is unavailable, refuses or is full; nothing is published.
        """
        self._objects.put_folder(files, batch.folder)
        return self._objects.create(self._key(batch.number), batch.model_dump_json(indent=2).encode())

    def folder_of(self, number: int, token: str) -> str:
        """Return a key for the files of a batch that is to get a number; no two attempts share one."""
        return f"{self._root}/rows/{number:08d}-{token}"

    def fetched(self, batches: tuple[Batch, ...]) -> Iterator[tuple[Batch, Path]]:
        """Give batches with a folder of their verified files, one after another; each goes when the next one comes.

        Raises:
            DataError: A file of theirs is missing or changed.
        """
        for batch in batches:
            with TemporaryDirectory(prefix="shortlist-collected-") as scratch:
                yield batch, self._objects.fetch_folder(batch.folder, Path(scratch) / "files")

    def requests(self, batch: Batch) -> pl.Series:
        """Return the fingerprints of a batch's requests.

        Raises:
            DataError: The file is missing or changed.
        """
        with TemporaryDirectory(prefix="shortlist-collected-") as scratch:
            folder = self._objects.fetch_folder(batch.folder, Path(scratch) / "files", REQUESTS)
            return pl.read_parquet(folder / f"{REQUESTS}.parquet")["request"]

    def _batch(self, number: int) -> Batch:
        key = self._key(number)
        try:
            return Batch.model_validate_json(self._objects.read(key) or b"")
        except ValidationError as error:
            raise DataError(
                f"{self._objects.url(key)}: not a batch of collected rows ({error.errors()[0]['msg']}); restore it"
            ) from None

    def _key(self, number: int) -> str:
        return f"{self._root}/batches/{number:08d}.json"


class CollectedRows(BaseModel):
    """The batches that a training reads, as its graph tells the step that reads them; empty text for none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stores: str
    spec: str
    batches: int
    """Number of the newest one."""
    digest: str
    """Of all of them: other rows, another training."""

    @classmethod
    def newest(cls, data: Data, stores: str, spec: str) -> str:
        """Return the batches that there are now, as text; empty where the spec collects nothing.

        Raises:
            ShortlistError: The store is unavailable, or a batch is missing.
        """
        if not data.live.collect:
            return ""
        found = CollectedLog.open(stores, spec).batches()
        digest = hashlib.sha256("".join(batch.digest for batch in found).encode()).hexdigest()[:16]
        return cls(stores=stores, spec=spec, batches=len(found), digest=digest).model_dump_json()

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what `newest` gave; None for an empty text.

        Raises:
            ShortlistError: It is something else.
        """
        if not text:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ShortlistError(f"collected: {error.errors()[0]['msg']} in {text[:200]!r}") from None

    def frames(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Give the rows of every batch, in order, with the quarantined rows of a batch that did not keep them.

        Raises:
            DataError: A batch is missing or changed.
        """
        log = CollectedLog.open(self.stores, self.spec)
        for _, files in log.fetched(log.batches(self.batches)):
            lost = files / _QUARANTINE
            yield (
                pl.read_parquet(files / ROWS),
                pl.read_parquet(lost) if lost.exists() else pl.DataFrame(schema=QUARANTINE_SCHEMA),
            )
