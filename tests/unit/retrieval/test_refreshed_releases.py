"""The refresh step with a real registry: which registered versions get a refreshed release."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from retrieval_log import Log, Row, days, declared

from components.release import refresh_releases
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.slates.refreshed_releases import RefreshedRelease, announced_releases
from shortlist.slates.release import write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.filters import Filters
from shortlist.spec.load import canonical_json
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import write_json, write_manifest
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.registry import RELEASE, ModelRegistry
from shortlist.tracking.run_context import RunContext

OLD: list[Row] = [(user, 10 * (1 + user % 3), 0, "home", 1) for user in range(30)]
NEW: list[Row] = [(user, 40, 1, "home", 1) for user in range(30)]


class Shop:
    """A spec whose versions are registered in an MLflow store of its own."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.folder = folder
        self.origin = RunContext(name="shop", stores=str(folder / "stores"))
        (folder / "stores").mkdir()
        self.log = log
        self.events = folder / "events.jsonl"
        model = folder / "model"
        model.mkdir()
        write_json(model / "model.json", {"kind": "xgboost"})
        write_manifest(model)
        lineage = Lineage(spec_digest="s", data_digest="d", days={}, code_version="c", git_commit="g")
        self._run = self.origin.tracker.log_training(model, "xgboost", {}, [], lineage)

    @property
    def registry(self) -> ModelRegistry:
        return self.origin.tracker.registry

    def register(self, name: str, **section: Any) -> tuple[int, str]:
        """Return a version with a release of the first day, and the release's digest."""
        table, sources = self.log.write(OLD), self.folder / f"{name}_sources"
        declared_sources = {"candidates": 2, "sources": {"popular": {"kind": "popular", "window_days": 1}}}
        fit_retrieval(Retrieval.model_validate(declared_sources | section), declared(), table, days(0), sources, 1)
        release = self.folder / name
        sections = Filters(), Ordering(value=f"score + {len(name)}")
        write_release(sources, declared(), *sections, self.log.folder, None, release)
        digest = self.origin.tracker.log_retrieval(self._run, release)
        return self.registry.register(self._run, {RELEASE: digest}), digest

    def refresh(self) -> int:
        self.log.write([*OLD, *NEW])
        release_count: int = refresh_releases(
            name="shop", data=canonical_json(declared()), runtime=canonical_json(Runtime()), log={"location": ""},
            stores=self.origin.stores, code="", valid_log=SimpleNamespace(path=str(self.log.folder)),
            releases=SimpleNamespace(path=str(self.folder / "out"), metadata={}),
        )  # fmt: skip
        return release_count

    @property
    def announced(self) -> dict[str, RefreshedRelease]:
        return announced_releases(spec_feast_store_location(StorageConfig.parse(self.origin.stores), "shop"))

    @property
    def notes(self) -> list[str]:
        events = map(json.loads, self.events.read_text().splitlines())
        return [event["text"] for event in events if event["event"] == "note"]


@pytest.fixture
def shop(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop_instance = Shop(log, tmp_path)
    monkeypatch.setenv(EVENTS_VARIABLE, str(shop_instance.events))
    return shop_instance


def test_champion_and_candidate_releases_are_refreshed(shop: Shop) -> None:
    (champion, of_champion), (candidate, of_candidate) = shop.register("one"), shop.register("another")
    shop.register("forgotten")
    shop.registry.set_alias("champion", champion)
    shop.registry.set_alias("candidate", candidate)
    assert shop.refresh() == 4
    assert set(shop.announced) == {of_champion, of_candidate}
    assert {(release.items, release.last_day.isoformat()) for release in shop.announced.values()} == {(4, "2026-03-02")}
    assert shop.notes == [
        f"Version {version} recommends from 4 items, counted up to 2026-03-02." for version in (champion, candidate)
    ]
    assert shop.registry.tags_of(champion)[RELEASE] == of_champion  # what was blessed stays what it is


@pytest.mark.long
def test_a_version_without_retrieval_is_not_refreshed(shop: Shop) -> None:
    shop.registry.set_alias("champion", shop.registry.register(shop._run))
    assert shop.refresh() == 0
    assert shop.announced == {}


def test_refresh_fails_for_the_champion_and_skips_a_candidate_that_cannot_be_refreshed(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    (champion, of_champion), (candidate, _) = shop.register("one"), shop.register("listed", catalogue="listed")
    shop.registry.set_alias("champion", champion)
    shop.registry.set_alias("candidate", candidate)
    items = {"item_id": [10], "topic": ["x"], "tags": [[]], "price": [1.0], "content": [None]}
    write = shop.log.write
    shop.log.write = lambda rows, **_: write(rows, items=items)  # type: ignore[method-assign]
    shop.refresh()
    assert set(shop.announced) == {of_champion}
    assert shop.notes[-1].startswith(f"The candidates of version {candidate}, which does not serve yet, are not")
    shop.registry.set_alias("champion", candidate)
    with pytest.raises(SystemExit):  # how a step stops
        shop.refresh()
    assert "the items' side tables name 1 items; declare at most 1" in capsys.readouterr().err
    assert set(shop.announced) == {of_champion}
