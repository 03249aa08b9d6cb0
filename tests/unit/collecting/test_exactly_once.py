"""Collectors that are killed at any write, start over, and run two at once: every row once, none lost, none half."""

from __future__ import annotations

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

from shortlist.collecting.live_log import covered_parts
from shortlist.contracts import Columns, ShortlistError
from shortlist.data.collected import ROWS, CollectedLog
from shortlist.storage.objects_folder import FolderObjectStore

OPERATIONS = ("put_folder", "create")


class KilledError(BaseException):
    """The process ends here."""


class WatchedStore(FolderObjectStore):
    """Calls somebody before and after each write."""

    def __init__(self, folder: Path, seen: Callable[[], None]) -> None:
        super().__init__(folder)
        self._seen = seen

    def put_folder(self, folder: Path, key: str) -> str:
        self._seen()
        address = super().put_folder(folder, key)
        self._seen()
        return address

    def create(self, key: str, content: bytes) -> bool:
        self._seen()
        created = super().create(key, content)
        self._seen()
        return created


def killed_at(moment: int) -> Callable[[], None]:
    """Return what ends the process at one of the moments before and after writes, counted from 0."""
    left = [moment]

    def seen() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError

    return seen


def served(folder: Path, servers: int, parts: int) -> Shop:
    """Return a shop whose servers wrote so many parts each; every second row was clicked."""
    shop = Shop(folder)
    for server in range(servers):
        for part in range(parts):
            name = f"{server}-{part}"
            shop.answer({"request_id": name, "time": NOON + minutes(part)}, server=f"v{server}")
            shop.outcome({"request_id": name, "row": 1, "time": NOON + minutes(part + 1)})
    return shop


def watched(shop: Shop, seen: Callable[[], None]) -> CollectedLog:
    return CollectedLog(WatchedStore(shop.folder / "runs/stores/objects", seen), "shop")


def rows_of(shop: Shop) -> list[Any]:
    """Return the rows in an order that does not depend on how they were cut into batches."""
    return sorted(shop.rows().drop(Columns.SOURCE_LINE).rows(), key=str)


@settings(max_examples=6)
@given(kills=st.lists(st.integers(0, 7), max_size=4), servers=st.integers(1, 2), parts=st.integers(1, 3))
def test_killed_anywhere_and_run_again_no_row_is_lost_or_doubled(kills: list[int], servers: int, parts: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shop, calm = served(Path(scratch) / "a", servers, parts), served(Path(scratch) / "b", servers, parts)
        for moment in kills:
            with suppress(KilledError):
                shop.collect(minutes(60), most_rows=2, log=watched(shop, killed_at(moment)))
        shop.collect(minutes(60), most_rows=2)
        calm.collect(minutes(60))
        assert rows_of(shop) == rows_of(calm)
        assert len(rows_of(shop)) == 2 * servers * parts
        spans = [span for batch in shop.log.batches() for span in batch.spans]
        assert sum(span.last - span.first + 1 for span in spans) == servers * parts  # no part is in two batches


@settings(max_examples=5)
@given(moment=st.integers(0, 7), parts=st.integers(1, 3), more=st.booleans())
def test_two_collectors_at_once_leave_one_result(moment: int, parts: int, more: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shop, calm = served(Path(scratch) / "a", 1, parts), served(Path(scratch) / "b", 1, parts)
        left = [moment]

        def other() -> None:
            """The second collector does all of its work at one moment of the first one's."""
            left[0] -= 1
            if left[0] == -1:
                if more:  # it sees what came meanwhile
                    shop.answer({"request_id": "new"}, server="v9")
                    calm.answer({"request_id": "new"}, server="v9")
                shop.collect(minutes(60), most_rows=2)

        shop.collect(minutes(60), most_rows=2, log=watched(shop, other))
        shop.collect(minutes(60))
        calm.collect(minutes(60))
        assert rows_of(shop) == rows_of(calm)
        assert covered_parts(shop.log.batches()) == covered_parts(calm.log.batches())


def test_whoever_reads_while_batches_are_published_sees_whole_ones_only(tmp_path: Path) -> None:
    shop, seen = served(tmp_path, servers=2, parts=2), []

    def read() -> None:
        batches = shop.log.batches()
        heights = [pl.read_parquet(files / ROWS).height for _, files in shop.log.fetch_batches(batches)]
        assert heights == [batch.counts.rows for batch in batches]
        seen.append(len(batches))

    shop.collect(minutes(60), most_rows=2, log=watched(shop, read))
    assert sorted(set(seen)) == list(range(len(shop.log.batches()) + 1))  # before, between and after them


def test_a_store_that_always_has_another_batch_first_ends_with_a_message(shop: Shop) -> None:
    class Slow(CollectedLog):
        def publish(self, batch: Any, files: Path) -> bool:
            return False

    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    with pytest.raises(ShortlistError, match="other collectors published 50 batches meanwhile; run again"):
        shop.collect(log=Slow.open(shop.stores, "shop"))


def test_a_full_disk_is_said_in_words_and_leaves_nothing_that_looks_like_a_batch(shop: Shop, full_disk: Any) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    with (
        full_disk(shop.folder / "runs/stores/objects"),
        pytest.raises(ShortlistError, match="the disk is full; nothing half-written is left"),
    ):
        shop.collect()
    assert shop.log.batches() == ()
    assert shop.collect().rows == 2


def test_a_disk_that_is_full_after_the_rows_were_written_publishes_no_batch(shop: Shop) -> None:
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
