"""A server takes a refreshed release over: new items enter, removed ones are gone, and what was blessed stays known."""

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
from shortlist.deployment.slate_explanation import explain, find_slate
from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.recommending import refreshed
from shortlist.recommending.refreshed import RELEASES, announce_release, announced_releases, refresh_release
from shortlist.retrieval.retriever import fit_retrieval
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.server.service import InferenceResponse
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.artefacts import folder_digest, write_manifest
from shortlist.storage.tables import DayTable, DayTableWriter

NEW, REMOVED = "brand new", "item 5"
LISTED = {
    "candidates": 5, "catalogue": "listed",
    "sources": {"popular": {"kind": "popular", "window_days": None}},
}  # fmt: skip


class Refreshable(Shop):
    """A server's parts whose candidates can be refreshed with a newer log: one item came, another was taken out."""

    def __init__(self, published: Any, model: Path, sources: Path, folder: Path, store: Path) -> None:
        super().__init__(
            SimpleNamespace(plan=published.plan, folder=published.folder, store=store), model, sources, folder
        )
        self.place: FeastStoreLocation = feast_store_location(store)
        self.log = folder / "newer_log"
        self._write_newer(published.folder / "log")

    def _write_newer(self, log: Path) -> None:
        table = DayTable.open(log, Files.LOG)
        rows = pl.concat([frame for _, frame in table.frames()])
        newest = rows.filter(pl.col(Columns.DAY) == table.days[-1].day)
        later = newest.with_columns(
            pl.lit(NEW).alias("item_id"), pl.lit(1, pl.Int8).alias(Columns.LABEL),
            pl.col(Columns.DAY, Columns.TIME) + timedelta(days=1),
        )  # fmt: skip
        self.log.parent.mkdir(exist_ok=True)
        shutil.copytree(log / "side", self.log / "side")
        items = pl.read_parquet(log / "side" / "items.parquet")
        added = items[-1:].with_columns(pl.lit(NEW).alias("item_id"), pl.lit(2.5).alias("weight"))
        kept = items.filter(pl.col("item_id") != REMOVED)
        pl.concat([kept, added]).write_parquet(self.log / "side" / "items.parquet")
        writer = DayTableWriter(self.log, Files.LOG, 250_000)
        writer.append(pl.concat([rows, later]))
        writer.close()

    def refresh(self, blessed: Path | None = None) -> str:
        """What the refresh graph does; return the digest of what is announced."""
        out = self.folder / "refreshed"
        refresh_release(blessed or self.folder / "release", self.data, self.log, "", out, 1)
        return announce_release(self.place, out).digest

    def shown(self, parts: ServerComponents) -> list[str]:
        (answer,) = self.ask(parts, {"k": 5, "user_id": 1})
        return list(outputs(answer)["item_id"])


@pytest.fixture
def local(published: Any, copied: Any, start: Any, tmp_path: Path) -> Refreshable:
    table = DayTable.open(published.folder / "log", Files.LOG)
    days = frozenset(part.day for part in table.days)
    data = published.plan.declared.data
    fit_retrieval(Retrieval.model_validate(LISTED), data, table, days, tmp_path / "sources", 1)
    return Refreshable(published, start.model, tmp_path / "sources", tmp_path / "own", copied.store)


def release_of(parts: ServerComponents) -> Any:
    assert parts.release is not None
    return parts.release


def test_new_items_enter_and_removed_ones_are_gone_without_a_training(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    assert not release_of(parts).has_polled and parts.service.recommending is not None
    assert not parts.service.recommending.is_ready  # items that were removed must not be answered after a restart
    release_of(parts).poll()
    assert parts.service.recommending.is_ready
    before, blessed = local.shown(parts), release_of(parts).current.digest
    assert REMOVED in before and NEW not in before
    digest = local.refresh()
    release_of(parts).poll()
    after = local.shown(parts)
    assert NEW in after and REMOVED not in after
    assert blessed == folder_digest(local.folder / "release") != digest
    assert [row["slate:release"] for row in local.logged(parts)] == [blessed, digest]
    assert parts.service.recommending.index_age_seconds >= 0


def test_the_same_log_gives_the_same_release_again(local: Refreshable) -> None:
    local.release()
    assert local.refresh() == local.refresh()


@pytest.mark.parametrize("dies", ["write_release", "_keep"])
def test_a_refresh_that_is_killed_changes_nothing(
    local: Refreshable, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = local.parts(ordering=BEST)

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(refreshed, dies, die)
        with pytest.raises(KeyboardInterrupt):
            local.refresh()
    release_of(parts).poll()
    assert announced_releases(local.place) == {} and release_of(parts).problem is None
    assert REMOVED in local.shown(parts)
    local.refresh()
    release_of(parts).poll()
    assert NEW in local.shown(parts)


def test_files_that_are_not_those_that_were_announced_are_refused(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    digest = local.refresh()
    kept = local.place.folder / "releases" / digest  # type: ignore[operator] # there is a folder
    (kept / "slates.json").write_text((kept / "slates.json").read_text() + " ")
    release_of(parts).poll()
    assert "slates.json: changed after it was written" in release_of(parts).problem
    write_manifest(kept)  # whole in itself, and still not what was announced
    release_of(parts).poll()
    assert f"but {digest} was announced; refresh again" in release_of(parts).problem
    assert REMOVED in local.shown(parts)
    assert "shortlist_release_broken 1.0" in parts.service.metrics.text().decode()
    assert "was announced" in parts.service.problems()["candidates"]
    local.refresh()  # writes the folder anew
    release_of(parts).poll()
    assert release_of(parts).problem is None and NEW in local.shown(parts)


def test_a_refresh_of_another_release_is_not_taken_over(local: Refreshable) -> None:
    other = local.folder / "other"
    shutil.copytree(local.release(ordering={"value": "2 * score"}), other)
    parts = local.parts(ordering=BEST)
    assert folder_digest(other) != release_of(parts).current.digest
    local.refresh(other)
    release_of(parts).poll()
    assert release_of(parts).problem is None and REMOVED in local.shown(parts)
    (announced,) = announced_releases(local.place).values()
    said = refreshed._ANNOUNCED.dump_json({release_of(parts).current.digest: announced})
    local.place.objects.write(RELEASES, said)
    release_of(parts).poll()
    assert f"brings release {folder_digest(other)} up to date, not" in release_of(parts).problem


def test_an_announcement_that_cannot_be_read_is_told(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    local.place.objects.write(RELEASES, b"{")
    release_of(parts).poll()
    assert "refresh again to write it anew" in release_of(parts).problem


def test_a_slate_keeps_to_the_release_that_it_began_with(local: Refreshable) -> None:
    parts = local.parts(ordering=BEST)
    blessed, score = release_of(parts).current.digest, parts.service.score

    async def refreshed_meanwhile(*asked: Any) -> Any:
        local.refresh()
        release_of(parts).poll()
        return await score(*asked)

    parts.service.score = refreshed_meanwhile  # type: ignore[assignment, method-assign]
    (answer,) = local.ask(parts, {"k": 5, "user_id": 1})
    assert isinstance(answer, InferenceResponse) and REMOVED in outputs(answer)["item_id"]
    (row,) = local.logged(parts)
    assert row["slate:release"] == blessed != release_of(parts).current.digest


def test_why_names_the_files_that_were_used_and_makes_the_slate_again(local: Refreshable, start: Any) -> None:
    ordering = {"explore": {"kind": "gumbel", "temperature": 2.0}}
    parts = local.parts(ordering=ordering, log={"feature_sampling": 1.0})
    digest = local.refresh()
    release_of(parts).poll()
    assert NEW in local.shown(parts)
    local.logged(parts)
    version = local.folder / "versions" / "v3"
    shutil.copytree(start.model, version / "model")
    shutil.copytree(local.folder / "release", version / "release")
    places = places_of(local)
    text = "\n".join(explain(places, "r0", local.place))
    blessed = folder_digest(version / "release")
    assert f"release    {digest}, a refresh of {blessed}, the training's; 8 items, days up to " in text
    assert "candidates, filters, order and propensities are the same, bit by bit" in text
    assert find_slate(places, "r0")["slate:release"] == digest
    shutil.rmtree(local.place.folder / "releases" / digest)  # type: ignore[operator] # there is a folder
    with pytest.raises(ShortlistError, match=rf"{digest}: missing; of refreshed releases the newest 20 are kept"):
        list(explain(places, "r0", local.place))


def test_old_releases_go_and_those_that_are_announced_stay(local: Refreshable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshed, "_MAX_FOLDERS", 1)
    local.release()
    first = local.refresh()
    local.release(ordering={"value": "2 * score"})
    second = local.refresh()
    assert [one.digest for one in announced_releases(local.place).values()] == [second] != [first]
    assert [path.name for path in (local.place.folder / "releases").iterdir()] == [second]  # type: ignore[operator]


def test_a_release_that_reads_what_the_log_has_no_more_is_not_refreshed(local: Refreshable) -> None:
    release = local.release({"rules": [{"kind": "where", "keep": "weight > 0"}]})
    items = local.data.side_tables[1]
    lighter = items.model_copy(update={"columns": tuple(one for one in items.columns if one.name != "weight")})
    data = local.data.model_copy(update={"side_tables": (local.data.side_tables[0], lighter)})
    none = data.model_copy(update={"side_tables": ()})
    for changed, lacks in ((data, "'weight'"), (none, "no side table has the key 'item_id'")):
        with pytest.raises(ShortlistError, match=rf"{lacks}.* The released stages read it: declare it again, or train"):
            refresh_release(release, changed, local.log, "", local.folder / "refreshed", 1)
    assert not (local.folder / "refreshed").exists()


def test_a_server_looks_for_releases_by_itself(local: Refreshable) -> None:
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
