"""Collecting from an object store: the tables of the logs are there, and batches are written to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

from served_shop import NOON, Shop, minutes

from shortlist.contracts import Columns
from shortlist.serving.log.log_tables import LogKind, table_address
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig


class Pods(Shop):
    """A shop whose servers' streams are committed to tables in an object store."""

    @property
    def stores(self) -> str:
        return str(StorageConfig(folder=self.folder / "runs" / "stores", log_in_objects=True))

    def commit(self) -> None:
        """Commit the streams, and delete the pods' disks."""
        objects = open_object_store(StorageConfig.parse(self.stores)).root
        for kind in get_args(LogKind):
            folder = self.paths.root / kind
            TableCommitter(stream_folder(folder), table_address(objects, "shop", kind)).commit()
        shutil.rmtree(self.paths.root, ignore_errors=True)


def test_logs_in_an_object_store_are_collected_once_on_another_machine(tmp_path: Path) -> None:
    shop = Pods(tmp_path)
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    shop.commit()
    assert shop.collect().rows == 2
    shop.answer({"request_id": "b"}, {"request_id": "a", "time": NOON + minutes(1)})
    shop.commit()
    (batch,) = shop.collect(minutes(20)).batches
    assert (batch.number, batch.counts.rows, batch.counts.repeated_requests) == (2, 2, 1)
    assert shop.collect(minutes(20)).batches == []
    assert sorted(shop.rows()[Columns.LABEL].to_list()) == [0, 0, 0, 1]
    assert len(list((tmp_path / "runs/stores/objects/collected/shop/batches").glob("*.json"))) == 2
