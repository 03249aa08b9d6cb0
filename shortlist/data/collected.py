"""The collected part of a log: numbered batches of served rows, each published atomically.

Below `collected/<spec>/` of the object store:

- `batches/00000001.json`: a `CollectedBatch`; creating the next number publishes a batch
- `rows/<...>/`: the files of a batch: `rows.parquet`, `requests/requests.parquet`
- `withdrawn/00000001.json`: when a batch was withdrawn; trainings that start later read the log as if it had not been
- `read_files.json`: files of the prediction log's table whose rows are all in batches, which need not be read again

A batch holds all rows as they were served, including those that break a rule of the log. They are checked when they are
read, by the rules declared then, so that a rule that was too strict loses no rows.

A collector that is killed, or is overtaken by another one, leaves files below `rows/` that no batch names; they are
never read.
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
from shortlist.data.rules.quarantine import QUARANTINE_SCHEMA
from shortlist.spec.data import Data
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.storage_config import StorageConfig

ROWS: Final = "rows.parquet"
ANSWERED: Final = ":answered"
"""Column of `ROWS`: time of the row's answer, by the server's clock."""
_QUARANTINE: Final = "quarantine.parquet"
"""Quarantined rows beside `ROWS`, in batches of earlier versions, which did not keep their values."""
REQUESTS: Final = "requests"
"""Folder with one file: one row per request of the batch, with the fingerprint of its id (`request`)."""
_NUMBER: Final = re.compile(r"(\d{8})\.json")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LogSpan(_Record):
    """Range of records of one stream of the prediction log in a batch, first and last included."""

    writer: str
    """Id of the stream."""
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class _ReadFiles(_Record):
    files: tuple[str, ...]


class _Withdrawal(_Record):
    number: int
    made: datetime


class BatchCounts(_Record):
    """Counts of a batch's requests, rows and outcomes."""

    requests: int = 0
    """Answered requests of users, each once."""
    rows: int = 0
    """Rows that passed all rules of the log as declared then."""
    positives: int = 0
    quarantined: int = 0
    """Rows that broke a rule."""
    without_outcome: int = 0
    """Rows without an outcome in time: negatives, or left out, as declared in the spec."""
    repeated_requests: int = 0
    """Answers of a request that was counted before, because a client or a gateway retried."""
    before_since: int = 0
    """Rows before `data.live.since`."""
    late_outcomes: int = 0
    """Outcomes later than `data.outcome_delay`; they change no row."""
    early_outcomes: int = 0
    """Outcomes before their answer by more than the clock skew; they change no row."""
    repeated_outcomes: int = 0
    """Outcomes of a row with a later one; the last one counts."""
    foreign_outcomes: int = 0
    """Outcomes with another item than their row, or with a row that the request does not have."""


class CollectedBatch(_Record):
    """One published batch: key, digest, coverage and counts of its files."""

    number: int = Field(ge=1)
    """Number of the batch, from 1 without a gap."""
    spec: str
    made: datetime
    folder: str
    """Key of the folder with its files."""
    digest: str
    """SHA-256 of `rows.parquet`."""
    spans: tuple[LogSpan, ...]
    """Records of the prediction log that it covers, by their ends."""
    answered_from: datetime | None
    """Time of its first answer; None without one."""
    answered_to: datetime | None
    first: datetime | None
    """Time of its first row; None without rows."""
    last: datetime | None
    counts: BatchCounts


class CollectedLog:
    """The collected batches of a spec.

    Args:
        objects: Store of the batches.
        spec: Name of the spec.
    """

    def __init__(self, objects: ObjectStore, spec: str) -> None:
        self._objects = objects
        self._spec = spec
        self._root = f"collected/{spec}"

    @classmethod
    def open(cls, stores: str, spec: str) -> Self:
        """Return the collected log of a spec in the stores of the graphs' parameter `stores`."""
        return cls(open_object_store(StorageConfig.parse(stores)), spec)

    def batches(self, newest: int | None = None) -> tuple[CollectedBatch, ...]:
        """Return the published batches by number.

        Args:
            newest: Number of the last batch to return; None: all.

        Raises:
            DataError: A batch is missing or not readable.
        """
        names = (key.rpartition("/")[2] for key in self._objects.keys(f"{self._root}/batches/"))
        numbers = sorted(int(match[1]) for name in names if (match := _NUMBER.fullmatch(name)))
        batch_count = len(numbers) if newest is None else newest
        if numbers[:batch_count] != list(range(1, batch_count + 1)):
            missing_number = next(number for number in range(1, batch_count + 1) if number not in numbers)
            raise DataError(
                f"{self._objects.url(self._batch_key(missing_number))}: missing, though batches of collected rows are"
                " numbered without a gap; restore it from a backup, or remove the spec's collected rows altogether and"
                " collect again"
            )
        return tuple(self._read_batch(number) for number in numbers[:batch_count])

    def withdraw(self, number: int, now: datetime) -> CollectedBatch:
        """Withdraw a batch, for good: later readers leave it out, and its requests are not collected again.

        Raises:
            ShortlistError: There is no such batch, or the store is unavailable.
        """
        batches = self.batches()
        if not 1 <= number <= len(batches):
            published = f"wanted 1 to {len(batches)}" if batches else "none was collected yet"
            raise ShortlistError(f"batch {number}: there is no such batch of spec '{self._spec}'; {published}")
        withdrawal = _Withdrawal(number=number, made=now).model_dump_json().encode()
        self._objects.create(f"{self._withdrawn}{number:08d}.json", withdrawal)
        return batches[number - 1]

    def withdrawn(self) -> tuple[int, ...]:
        """Return the numbers of the withdrawn batches."""
        names = (key.rpartition("/")[2] for key in self._objects.keys(self._withdrawn))
        return tuple(sorted(int(match[1]) for name in names if (match := _NUMBER.fullmatch(name))))

    @property
    def _withdrawn(self) -> str:
        return f"{self._root}/withdrawn/"

    def publish(self, batch: CollectedBatch, files: Path) -> bool:
        """Publish a batch; return False, without publishing, when its number was published by another collector.

        Args:
            batch: Batch with the next number.
            files: Folder with its files.

        Raises:
            ShortlistError: The store is unavailable, refuses or is full; nothing is published.
        """
        self._objects.put_folder(files, batch.folder)
        return self._objects.create(self._batch_key(batch.number), batch.model_dump_json(indent=2).encode())

    def files_key(self, number: int, token: str) -> str:
        """Return a key for the files of a batch to publish, unique per attempt."""
        return f"{self._root}/rows/{number:08d}-{token}"

    def read_files(self) -> frozenset[str]:
        """Return the files of the prediction log's table that need not be read again; none where that is unknown."""
        try:
            return frozenset(_ReadFiles.model_validate_json(self._objects.read(self._files_key) or b"").files)
        except ValidationError:
            return frozenset()

    def keep_read_files(self, files: frozenset[str]) -> None:
        """Keep which files need not be read again; the batches name the records, whatever is kept here.

        Raises:
            ShortlistError: The store is unavailable or refuses.
        """
        self._objects.write(self._files_key, _ReadFiles(files=tuple(sorted(files))).model_dump_json().encode())

    @property
    def _files_key(self) -> str:
        return f"{self._root}/read_files.json"

    def fetch_batches(self, batches: tuple[CollectedBatch, ...]) -> Iterator[tuple[CollectedBatch, Path]]:
        """Yield batches with a temporary folder of their verified files, which is removed before the next batch.

        Raises:
            DataError: A file is missing or changed.
        """
        for batch in batches:
            with TemporaryDirectory(prefix="shortlist-collected-") as scratch:
                yield batch, self._objects.fetch_folder(batch.folder, Path(scratch) / "files")

    def read_request_fingerprints(self, batch: CollectedBatch) -> pl.Series:
        """Return the fingerprints of a batch's requests.

        Raises:
            DataError: The file is missing or changed.
        """
        with TemporaryDirectory(prefix="shortlist-collected-") as scratch:
            folder = self._objects.fetch_folder(batch.folder, Path(scratch) / "files", REQUESTS)
            return pl.read_parquet(folder / f"{REQUESTS}.parquet")["request"]

    def _read_batch(self, number: int) -> CollectedBatch:
        key = self._batch_key(number)
        try:
            return CollectedBatch.model_validate_json(self._objects.read(key) or b"")
        except ValidationError as error:
            raise DataError(
                f"{self._objects.url(key)}: not a batch of collected rows ({error.errors()[0]['msg']}); restore it"
            ) from None

    def _batch_key(self, number: int) -> str:
        return f"{self._root}/batches/{number:08d}.json"


class CollectedRows(BaseModel):
    """The batches that a training reads, as a parameter of its graph; an empty text stands for none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stores: str
    spec: str
    batches: int
    """Number of the newest batch."""
    digest: str
    """Digest of all batches that are read, so that a training is not cached when rows change."""
    withdrawn: tuple[int, ...] = ()
    """Numbers of the batches that are not read."""

    @classmethod
    def describe_newest(cls, data: Data, stores: str, spec: str) -> str:
        """Return the present batches as text; empty where the spec collects nothing.

        Raises:
            ShortlistError: The store is unavailable, or a batch is missing.
        """
        if not data.live.collect:
            return ""
        log = CollectedLog.open(stores, spec)
        batches, withdrawn = log.batches(), log.withdrawn()
        read_digests = (batch.digest for batch in batches if batch.number not in withdrawn)
        digest = hashlib.sha256("".join(read_digests).encode()).hexdigest()[:16]
        return cls(stores=stores, spec=spec, batches=len(batches), digest=digest, withdrawn=withdrawn).model_dump_json()

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text of `describe_newest`; None for an empty text.

        Raises:
            ShortlistError: The text is not valid.
        """
        if not text:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ShortlistError(f"collected: {error.errors()[0]['msg']} in {text[:200]!r}") from None

    def holds(self, number: int) -> bool:
        """Whether a batch is among those that are read."""
        return number <= self.batches and number not in self.withdrawn

    def iter_frames(self) -> Iterator[tuple[int, pl.DataFrame, pl.DataFrame]]:
        """Yield number and rows of the batches in order, with the quarantined rows of a batch of an earlier version.

        Raises:
            DataError: A batch is missing or changed.
        """
        log = CollectedLog.open(self.stores, self.spec)
        read_batches = tuple(batch for batch in log.batches(self.batches) if self.holds(batch.number))
        for batch, files in log.fetch_batches(read_batches):
            quarantine_path = files / _QUARANTINE
            yield (
                batch.number,
                pl.read_parquet(files / ROWS),
                pl.read_parquet(quarantine_path)
                if quarantine_path.exists()
                else pl.DataFrame(schema=QUARANTINE_SCHEMA),
            )
