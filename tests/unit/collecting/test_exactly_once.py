"""Collectors that are killed at any write or run concurrently collect every row exactly once."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_shop import NOON, Shop, minutes

from shortlist.collecting.live_log import covered_records
from shortlist.contracts import Columns, ShortlistError
from shortlist.data.collected import ROWS, CollectedLog
from shortlist.storage.objects import ObjectStore

OPERATIONS = ("put_folder", "create")


class KilledError(BaseException):
    """Simulates the end of the process."""


class WatchedStore(ObjectStore):
    """A record store that calls a function before and after each write."""

    def __init__(self, folder: Path, on_operation: Callable[[], None]) -> None:
        super().__init__(folder.as_uri())
        self._on_operation = on_operation

    def put_folder(self, folder: Path, key: str) -> str:
        self._on_operation()
        address = super().put_folder(folder, key)
        self._on_operation()
        return address

    def create(self, key: str, content: bytes) -> bool:
        self._on_operation()
        created = super().create(key, content)
        self._on_operation()
        return created


def killed_at(moment: int) -> Callable[[], None]:
    """Return a function that ends the process at its n-th call, counted from 0."""
    countdown = [moment]

    def count_down() -> None:
        countdown[0] -= 1
        if countdown[0] < 0:
            raise KilledError

    return count_down


def served(folder: Path, servers: int, parts: int) -> Shop:
    """Return a shop with some parts per server; every second row was clicked."""
    shop = Shop(folder)
    for server in range(servers):
        for part in range(parts):
            name = f"{server}-{part}"
            shop.answer({"request_id": name, "time": NOON + minutes(part)}, server=server)
            shop.outcome({"request_id": name, "row": 1, "time": NOON + minutes(part + 1)})
    return shop


def watched(shop: Shop, on_operation: Callable[[], None]) -> CollectedLog:
    return CollectedLog(WatchedStore(shop.folder / "runs/stores/objects", on_operation), "shop")


def rows_of(shop: Shop) -> list[Any]:
    """Return the rows in an order that does not depend on their batches."""
    return sorted(shop.rows().drop(Columns.SOURCE_FILE, Columns.SOURCE_LINE).rows(), key=str)


@settings(max_examples=6)
@given(kills=st.lists(st.integers(0, 7), max_size=4), servers=st.integers(1, 2), parts=st.integers(1, 3))
def test_a_killed_collector_loses_and_duplicates_no_row(kills: list[int], servers: int, parts: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shop, calm = served(Path(scratch) / "a", servers, parts), served(Path(scratch) / "b", servers, parts)
        for moment in kills:
            with suppress(KilledError):
                shop.collect(minutes(60), most_rows=2, log=watched(shop, killed_at(moment)))
        shop.collect(minutes(60), most_rows=2)
        calm.collect(minutes(60))
        assert rows_of(shop) == rows_of(calm)
        assert len(rows_of(shop)) == 2 * servers * parts
        spans = sorted((span.writer, span.first, span.last) for batch in shop.log.batches() for span in batch.spans)
        for (writer, _, last), (next_writer, first, _) in itertools.pairwise(spans):
            assert writer != next_writer or last < first  # no record is in two batches


@settings(max_examples=5)
@given(moment=st.integers(0, 7), parts=st.integers(1, 3), has_more_parts=st.booleans())
def test_concurrent_collectors_collect_every_row_once(moment: int, parts: int, has_more_parts: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shop, calm = served(Path(scratch) / "a", 1, parts), served(Path(scratch) / "b", 1, parts)
        countdown = [moment]

        def run_second_collector() -> None:
            """Run the second collector completely at one moment of the first one."""
            countdown[0] -= 1
            if countdown[0] == -1:
                if has_more_parts:  # it sees what came meanwhile
                    shop.answer({"request_id": "new"}, server=9)
                    calm.answer({"request_id": "new"}, server=9)
                shop.collect(minutes(60), most_rows=2)

        shop.collect(minutes(60), most_rows=2, log=watched(shop, run_second_collector))
        shop.collect(minutes(60))
        calm.collect(minutes(60))
        assert rows_of(shop) == rows_of(calm)
        covered, expected = (covered_records(log.batches()) for log in (shop.log, calm.log))
        assert covered["stream"].n_unique() == expected["stream"].n_unique()


def test_readers_see_only_complete_batches(tmp_path: Path) -> None:
    shop, row_counts = served(tmp_path, servers=2, parts=2), []

    def read() -> None:
        batches = shop.log.batches()
        heights = [pl.read_parquet(files / ROWS).height for _, files in shop.log.fetch_batches(batches)]
        assert heights == [batch.counts.rows for batch in batches]
        row_counts.append(len(batches))

    shop.collect(minutes(60), most_rows=2, log=watched(shop, read))
    assert sorted(set(row_counts)) == list(range(len(shop.log.batches()) + 1))  # before, between and after them


def test_the_collector_gives_up_after_losing_every_race(shop: Shop) -> None:
    class Slow(CollectedLog):
        def publish(self, batch: Any, files: Path) -> bool:
            return False

    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    with pytest.raises(ShortlistError, match="50 attempts failed, because other collectors published"):
        shop.collect(log=Slow.open(shop.stores, "shop"))


def test_a_full_disk_is_reported_and_leaves_no_batch(shop: Shop, full_disk: Any) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    with (
        full_disk(shop.folder / "runs/stores/objects"),
        pytest.raises(ShortlistError, match="the disk is full; no incomplete file is left"),
    ):
        shop.collect()
    assert shop.log.batches() == ()
    assert shop.collect().rows == 2


def test_a_full_disk_after_writing_rows_publishes_no_batch(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    moments = iter(range(3))  # before and after the rows, before the record

    def full() -> None:
        if next(moments) == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        shop.collect(log=watched(shop, full))
    assert shop.log.batches() == ()
    assert shop.collect().rows == 2
