"""Refreshed candidates for servers on other machines: published to S3, fetched, verified, and memory-mapped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from retrieval_log import Log, Row, days, declared

from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.slates.recommender import SlateRequest
from shortlist.slates.refreshed_releases import (
    announce_release,
    announced_releases,
    find_kept_folder,
    open_refreshed,
    refresh_release,
)
from shortlist.slates.release import write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import IntegrityError, folder_digest
from shortlist.storage.objects import CACHE_VARIABLE
from shortlist.storage.storage_config import StorageConfig

OLD: list[Row] = [(user, 10 * (1 + user % 3), 0, "home", 1) for user in range(30)]
LATER_ROWS: list[Row] = [(user, 40, 1, "home", 1) for user in range(30)]


def test_a_refreshed_release_travels_through_the_object_store(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    log, data, blessed = Log(tmp_path / "log"), declared(), tmp_path / "blessed"
    section = Retrieval.model_validate({"candidates": 2, "sources": {"popular": {"kind": "popular", "window_days": 1}}})
    fit_retrieval(section, data, log.write(OLD), days(0), tmp_path / "sources", 1)
    write_release(tmp_path / "sources", data, Filters(), Ordering(), log.folder, None, blessed)
    log.write([*OLD, *LATER_ROWS])
    place = spec_feast_store_location(StorageConfig(folder=tmp_path / "stores", objects=s3.url), "shop")
    for name in ("once", "twice"):  # published folders never change, and the same is no other
        refresh_release(blessed, data, log.folder, "", tmp_path / name, 1)
        made = announce_release(place, tmp_path / name)
        assert made.folder == f"{s3.url}/feast/shop/releases/{made.digest}"
    (announced,) = announced_releases(place).values()
    stages = open_refreshed(announced, folder_digest(blessed), data)
    # What was fetched is gone again, and what is mapped of it is still read.
    request = SlateRequest("r", 1, 2, datetime(2026, 3, 3, tzinfo=UTC))
    assert stages.find(request).rows["item"].to_list() == [40]
    assert (stages.digest, folder_digest(find_kept_folder(place, made.digest))) == (made.digest, made.digest)
    lying = announced.model_copy(update={"digest": "0" * 16})
    with pytest.raises(IntegrityError, match=rf"digest {made.digest}, but {'0' * 16} was announced; refresh again"):
        open_refreshed(lying, folder_digest(blessed), data)
