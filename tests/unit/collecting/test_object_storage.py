"""Collecting from an object store: logs are fetched from it, and batches are written to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from served_shop import NOON, Shop, minutes

from shortlist.contracts import Columns
from shortlist.serving.log.log_keys import log_key
from shortlist.serving.log.log_shipper import LogShipper
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig

KINDS: tuple[Literal["predictions", "outcomes"], ...] = ("predictions", "outcomes")


class Shipped(Shop):
    """A shop whose collectors read shipped logs."""

    @property
    def stores(self) -> str:
        return str(StorageConfig(folder=self.folder / "runs" / "stores", log_in_objects=True))

    def ship(self) -> None:
        """Ship the logs, and delete the servers' disks."""
        objects = open_object_store(StorageConfig.parse(self.stores))
        for kind in KINDS:
            folder = self.paths.root / kind
            LogShipper(folder, objects, log_key("shop", kind), "pod-1", keep_seconds=3_600).ship()
            shutil.rmtree(folder, ignore_errors=True)


def test_shipped_logs_are_collected_once_on_another_machine(tmp_path: Path) -> None:
    shop = Shipped(tmp_path)
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    shop.ship()
    assert shop.collect().rows == 2
    shop.answer({"request_id": "b"}, {"request_id": "a", "time": NOON + minutes(1)}, server="v3-2")
    shop.ship()
    shutil.rmtree(shop.paths.mirror.root)  # another machine
    (batch,) = shop.collect(minutes(20)).batches
    assert (batch.number, batch.counts.rows, batch.counts.repeated_requests) == (2, 2, 1)
    assert shop.collect(minutes(20)).batches == []
    assert sorted(shop.rows()[Columns.LABEL].to_list()) == [0, 0, 0, 1]
    assert len(list((tmp_path / "runs/stores/objects/collected/shop/batches").glob("*.json"))) == 2
