"""A server loads a refreshed release: new items appear, removed ones disappear, and the blessed release is kept."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from recommending_shop import BEST, Shop, outputs, places_of

from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.deployment.slate_explanation import explain, find_answer
from shortlist.features.feast.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.serving.server.inference.service import InferenceResponse
from shortlist.serving.server.server import ServerComponents
from shortlist.slates import refreshed_releases
from shortlist.slates.refreshed_releases import RELEASES, announce_release, announced_releases, refresh_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import folder_digest, write_manifest
from shortlist.storage.tables import DayTable, DayTableWriter

NEW, REMOVED = "brand new", "item 5"
LISTED_STAGES = {
    "candidates": 5, "catalogue": "listed",
    "sources": {"popular": {"kind": "popular", "window_days": None}},
}  # fmt: skip


class Refreshable(Shop):
    """A server's components whose release can be refreshed with a newer log that adds one item and removes another."""

    def __init__(self, published: Any, model: Path, sources: Path, folder: Path, store: Path) -> None:
        super().__init__(
            SimpleNamespace(plan=published.plan, folder=published.folder, store=store), model, sources, folder
        )
        self.place: FeastStoreLocation = feast_store_location(store)
        self.log = folder / "newer_log"
        self._write_new_items(published.folder / "log")

    def _write_new_items(self, log: Path) -> None:
        table = DayTable.open(log, Files.LOG)
        rows = pl.concat([frame for _, frame in table.frames()])
        newest = rows.filter(pl.col(Columns.DAY) == table.days[-1].day)
        later_rows = newest.with_columns(
            pl.lit(NEW).alias("item_id"), pl.lit(1, pl.Int8).alias(Columns.LABEL),
            pl.col(Columns.DAY, Columns.TIME) + timedelta(days=1),
        )  # fmt: skip
        self.log.parent.mkdir(exist_ok=True)
        shutil.copytree(log / "side", self.log / "side")
        items = pl.read_parquet(log / "side" / "items.parquet")
        added = items[-1:].with_columns(pl.lit(NEW).alias("item_id"), pl.lit(2.5).alias("weight"))
        kept_items = items.filter(pl.col("item_id") != REMOVED)
        pl.concat([kept_items, added]).write_parquet(self.log / "side" / "items.parquet")
        writer = DayTableWriter(self.log, Files.LOG, 250_000)
        writer.append(pl.concat([rows, later_rows]))
        writer.close()

    def refresh(self, blessed: Path | None = None) -> str:
        """Refresh the release as the refresh graph does; return the announced digest."""
        out = self.folder / "refreshed"
        refresh_release(blessed or self.folder / "release", self.data, self.log, "", out, 1)
        return announce_release(self.place, out).digest

    def shown_items(self, parts: ServerComponents) -> list[str]:
        (answer,) = self.ask(parts, {"k": 5, "user_id": 1})
        return list(outputs(answer)["item_id"])


@pytest.fixture
def local(published: Any, copied: Any, start: Any, tmp_path: Path) -> Refreshable:
    table = DayTable.open(published.folder / "log", Files.LOG)
    days = frozenset(part.day for part in table.days)
    data = published.plan.declared.data
    fit_retrieval(Retrieval.model_validate(LISTED_STAGES), data, table, days, tmp_path / "sources", 1)
    return Refreshable(published, start.model, tmp_path / "sources", tmp_path / "own", copied.store)


def release_of(parts: ServerComponents) -> Any:
    assert parts.release is not None
    return parts.release


def test_new_items_appear_and_removed_ones_disappear_without_a_training(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    assert not release_of(parts).has_polled and parts.service.recommending is not None
    assert not parts.service.recommending.is_ready  # items that were removed must not be answered after a restart
    release_of(parts).poll()
    assert parts.service.recommending.is_ready
    old_items, blessed = local.shown_items(parts), release_of(parts).current.digest
    assert REMOVED in old_items and NEW not in old_items
    digest = local.refresh()
    release_of(parts).poll()
    new_items = local.shown_items(parts)
    assert NEW in new_items and REMOVED not in new_items
    assert blessed == folder_digest(local.folder / "release") != digest
    assert [row["slate:release"] for row in local.logged(parts)] == [blessed, digest]
    assert parts.service.recommending.index_age_seconds >= 0


def test_the_same_log_gives_the_same_release(local: Refreshable) -> None:
    local.release()
    assert local.refresh() == local.refresh()


@pytest.mark.parametrize("dies", ["write_release", "_keep"])
def test_a_killed_refresh_has_no_effect(local: Refreshable, dies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = local.parts(ordering=BEST)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(refreshed_releases, dies, die)
        with pytest.raises(KeyboardInterrupt):
            local.refresh()
    release_of(parts).poll()
    assert announced_releases(local.place) == {} and release_of(parts).problem is None
    assert REMOVED in local.shown_items(parts)
    local.refresh()
    release_of(parts).poll()
    assert NEW in local.shown_items(parts)


def test_files_other_than_the_announced_ones_are_refused(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    digest = local.refresh()
    release_folder = local.place.folder / "releases" / digest  # type: ignore[operator] # there is a folder
    (release_folder / "slates.json").write_text((release_folder / "slates.json").read_text() + " ")
    release_of(parts).poll()
    assert "slates.json: changed after it was written" in release_of(parts).problem
    write_manifest(release_folder)  # whole in itself, and still not what was announced
    release_of(parts).poll()
    assert f"but {digest} was announced; refresh again" in release_of(parts).problem
    assert REMOVED in local.shown_items(parts)
    assert "shortlist_release_broken 1.0" in parts.service.metrics.text().decode()
    assert "was announced" in parts.service.problems()["candidates"]
    local.refresh()  # writes the folder anew
    release_of(parts).poll()
    assert release_of(parts).problem is None and NEW in local.shown_items(parts)


def test_a_refresh_of_another_release_is_ignored(local: Refreshable) -> None:
    other_folder = local.folder / "other"
    shutil.copytree(local.release(ordering={"value": "2 * score"}), other_folder)
    parts = local.parts(ordering=BEST)
    assert folder_digest(other_folder) != release_of(parts).current.digest
    local.refresh(other_folder)
    release_of(parts).poll()
    assert release_of(parts).problem is None and REMOVED in local.shown_items(parts)
    (announced,) = announced_releases(local.place).values()
    announcement = refreshed_releases._ANNOUNCED.dump_json({release_of(parts).current.digest: announced})
    local.place.objects.write(RELEASES, announcement)
    release_of(parts).poll()
    assert f"brings release {folder_digest(other_folder)} up to date, not" in release_of(parts).problem


def test_an_unreadable_announcement_is_reported(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    local.place.objects.write(RELEASES, b"{")
    release_of(parts).poll()
    assert "refresh again to write it anew" in release_of(parts).problem


def test_a_slate_uses_one_release_throughout(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    blessed, score = release_of(parts).current.digest, parts.service.score

    async def refreshed_meanwhile(*request: Any) -> Any:
        local.refresh()
        release_of(parts).poll()
        return await score(*request)

    parts.service.score = refreshed_meanwhile  # type: ignore[assignment, method-assign]
    (answer,) = local.ask(parts, {"k": 5, "user_id": 1})
    assert isinstance(answer, InferenceResponse) and REMOVED in outputs(answer)["item_id"]
    (row,) = local.logged(parts)
    assert row["slate:release"] == blessed != release_of(parts).current.digest


def test_why_names_the_files_used_and_recomputes_the_slate(local: Refreshable, start: Any) -> None:
    ordering = {"explore": {"kind": "gumbel", "temperature": 2.0}}
    parts = local.parts(ordering=ordering, log={"feature_sampling": 1.0})
    digest = local.refresh()
    release_of(parts).poll()
    assert NEW in local.shown_items(parts)
    local.logged(parts)
    version = local.folder / "versions" / "v3"
    shutil.copytree(start.model, version / "model")
    shutil.copytree(local.folder / "release", version / "release")
    places = places_of(local)
    text = "\n".join(explain(places, "r0", local.place))
    blessed = folder_digest(version / "release")
    assert f"release    {digest}, a refresh of {blessed}, the training's; 8 items, days up to " in text
    assert "candidates, filters, order and propensities are the same, bit by bit" in text
    assert find_answer(places, "r0")["slate:release"] == digest
    shutil.rmtree(local.place.folder / "releases" / digest)  # type: ignore[operator] # there is a folder
    with pytest.raises(ShortlistError, match=rf"{digest}: missing; of refreshed releases the newest 20 are kept"):
        list(explain(places, "r0", local.place))


def test_old_releases_are_removed_except_announced_releases(
    local: Refreshable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshed_releases, "_MAX_FOLDERS", 1)
    local.release()
    first = local.refresh()
    local.release(ordering={"value": "2 * score"})
    second = local.refresh()
    assert [release.digest for release in announced_releases(local.place).values()] == [second] != [first]
    assert [path.name for path in (local.place.folder / "releases").iterdir()] == [second]  # type: ignore[operator]


def test_a_release_that_reads_a_removed_column_is_not_refreshed(local: Refreshable) -> None:
    release = local.release({"rules": [{"kind": "where", "keep": "weight > 0"}]})
    items = local.data.side_tables[1]
    lighter = items.model_copy(update={"columns": tuple(column for column in items.columns if column.name != "weight")})
    data = local.data.model_copy(update={"side_tables": (local.data.side_tables[0], lighter)})
    none = data.model_copy(update={"side_tables": ()})
    for changed, lacks in ((data, "'weight'"), (none, "no side table has the key 'item_id'")):
        with pytest.raises(ShortlistError, match=rf"{lacks}.* The released stages read it: declare it again, or train"):
            refresh_release(release, changed, local.log, "", local.folder / "refreshed", 1)
    assert not (local.folder / "refreshed").exists()


def test_a_server_polls_for_releases(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST, refresh_seconds=0.05)
    release_of(parts).start()

    async def wait() -> None:
        for _ in range(200):
            if release_of(parts).current.digest == digest:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the refreshed release was not taken over")

    digest = local.refresh()
    try:
        asyncio.run(wait())
    finally:
        release_of(parts).stop()
