"""Collecting, refreshing and backfilling with logs, batches and the servers' files in S3."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
from served_shop import DECLARED, Shop

from shortlist.data.collected import CollectedRows
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.feast.feast_store_location import SECOND_SLOT, FeastStoreLocation, spec_feast_store_location
from shortlist.features.feast.store import connect, user_reader
from shortlist.features.fits.backfill import recount
from shortlist.features.fits.fit import fit, fit_incrementally
from shortlist.features.fits.previous_fit import DayRange, newest_fit
from shortlist.features.fits.publish import publish
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.log.log_tables import LogKind, table_address
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.objects import local_copy
from shortlist.storage.storage_config import StorageConfig

pytestmark = pytest.mark.long

RUNTIME = Runtime(engine="cpu")
FEATURES = Features.model_validate({"columns": [{"kind": "target", "key": "user_id", "name": "rate"}]})
LOOSE = {"min_rows": 1, "min_volume_ratio": 0.0, "max_label_rate_change": 1.0, "max_quarantined_share": 0.5}
FIRST = datetime(2026, 2, 26, 12, tzinfo=UTC)
"""The log itself has three days from here on; what is served comes after."""
NOW = datetime(2026, 3, 10, tzinfo=UTC)


class Pods(Shop):
    """A shop whose servers' logs are committed to S3, and whose collectors have no disk in common with them."""

    url: str

    @property
    def stores(self) -> str:
        return str(self.storage)

    @property
    def storage(self) -> StorageConfig:
        return StorageConfig(folder=self.folder / "runs" / "stores", objects=self.url, log_in_objects=True)

    @property
    def place(self) -> FeastStoreLocation:
        return spec_feast_store_location(self.storage, "shop")

    def commit(self) -> None:
        """Commit the logs, and delete the pods' disks: another machine collects."""
        for kind in get_args(LogKind):
            folder = self.paths.root / kind
            TableCommitter(stream_folder(folder), table_address(self.url, "shop", kind)).commit()
        shutil.rmtree(self.paths.root, ignore_errors=True)

    def valid_log(self, name: str, **rules: Any) -> Path:
        """Read the log itself and what was collected, as the graphs' steps do."""
        declared = self.data.model_copy(update={"rules": self.data.rules.model_copy(update=rules)})
        folder = self.folder / name
        collected = CollectedRows.parse(CollectedRows.describe_newest(declared, self.stores, "shop"))
        ingest(declared, self.folder, folder / "raw", RUNTIME, collected=collected)
        validate(declared, folder / "raw", folder / "valid", folder / "quarantine", RUNTIME, NOW)
        return folder / "valid"

    def publish(self, log: Path, fitted: Path, replaces: str = "") -> None:
        publish(
            "shop",
            self.place,
            RUNTIME,
            20,
            log,
            fitted,
            None,
            fitted.with_name(f"{fitted.name}-skew"),
            now=NOW,
            replaces=replaces,
        )


@pytest.fixture
def shop(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pods:
    monkeypatch.setenv("SHORTLIST_CACHE", str(tmp_path / "cache"))
    split = {"warmup_days": 0, "validation_days": 1, "test_days": 1}
    pods = Pods(tmp_path, DECLARED | {"rules": LOOSE, "split": split})
    pods.url = s3.url
    lines = [
        f"{(FIRST + timedelta(days=day, minutes=number)).isoformat()},{number % 3},i{number},home,1.5,,{number % 2}"
        for day in range(3)
        for number in range(6)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["time,user_id,item_id,page,price,seconds,clicked", *lines]) + "\n")
    return pods


def users(shop: Pods) -> dict[str, list[Any]]:
    """Every user's row, as a server on another machine reads it."""
    reader = user_reader(shop.place, "shop", RUNTIME.online_store, "user_id")
    return reader.rows([0, 1, 2], ["by_user_id:rows", "by_user_id:sum_label"])


def counted_at_once(shop: Pods, log: Path, folder: Path) -> pl.DataFrame:
    fit(shop.data, FEATURES, None, RUNTIME, log, folder)
    return ViewIndex.read(folder / "views").snapshot("by_user_id", NOW).sort("user_id")


def test_rows_collected_from_a_bucket_are_refreshed_and_backfilled(shop: Pods, tmp_path: Path) -> None:
    declared = DeclaredSections(shop.data, FEATURES, None)
    log = shop.valid_log("before")
    fit_incrementally(newest_fit(shop.place), *declared, RUNTIME, log, tmp_path / "one")
    shop.publish(log, tmp_path / "one")
    assert users(shop)["by_user_id:rows"] == [6, 6, 6]

    shop.answer({"request_id": "a"}, {"request_id": "b", "price": [9.0, 9.0]})
    shop.outcome({"request_id": "a", "row": 0})
    shop.commit()
    assert shop.collect().rows == 4
    assert shop.collect().rows == 0
    log = shop.valid_log("after")
    served = newest_fit(shop.place)
    assert served.startswith(shop.url)
    assert fit_incrementally(served, *declared, RUNTIME, log, tmp_path / "two")
    shop.publish(log, tmp_path / "two")
    assert users(shop)["by_user_id:rows"] == [6, 10, 6]
    announced = local_copy(shop.place.require_announcement()["views"])
    at_once = counted_at_once(shop, log, tmp_path / "at-once")
    assert ViewIndex.read(announced).snapshot("by_user_id", NOW).sort("user_id").equals(at_once)
    assert folder_digest(tmp_path / "at-once") == folder_digest(tmp_path / "two")

    # A rule was corrected: prices of 9 are no prices. Of the collected day two rows go, and nothing else changes.
    shop.declared = {**shop.declared, "columns": [
        column | ({"max": 5} if column["name"] == "price" else {}) for column in shop.declared["columns"]
    ]}  # fmt: skip
    corrected, day = shop.valid_log("corrected"), datetime(2026, 3, 2, tzinfo=UTC).date()
    served, fit_before = newest_fit(shop.place), users(shop)
    recount(declared, RUNTIME, corrected, tmp_path / "three", served, DayRange(day, day))
    assert users(shop) == fit_before
    shop.publish(corrected, tmp_path / "three", replaces=served)
    assert shop.place.require_announcement()["slot"] == SECOND_SLOT
    assert users(shop)["by_user_id:rows"] == [6, 8, 6]
    feast = connect(local_copy(shop.place.require_announcement()["views"]), shop.place, "shop", RUNTIME.online_store)
    online = feast.online(pl.DataFrame({"user_id": [0, 1, 2]}), ["by_user_id"])
    expected = counted_at_once(shop, corrected, tmp_path / "at-once-again")
    assert online.rename(lambda name: name.removeprefix("by_user_id:")).equals(expected)
