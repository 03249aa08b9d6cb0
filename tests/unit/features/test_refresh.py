"""Refreshes between trainings: online values equal a full count of the same rows."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.features.feast.feast_store_location import SERVING
from shortlist.features.feast.materialised import MaterialisationRecord
from shortlist.features.feast.store import connect
from shortlist.features.fits import publish as publishing
from shortlist.features.fits.fit import fit, fit_incrementally
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.features.fits.publish import publish
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json

RUNTIME = Runtime(engine="cpu")
COLUMNS = [
    {"kind": "target", "key": ["user_id"], "window_days": 2, "name": "rate"},
    {"kind": "lag", "key": ["item_id"], "column": "seconds", "name": "last"},
    {"kind": "vocabulary", "each": ["page"], "min_rows": 2},
]
Sections = tuple[Data, Features]


@pytest.fixture
def sections(world: Any) -> Sections:
    data = Data.model_validate(world.data.model_dump(mode="json") | {"outcome_delay": "30m"})
    return data, Features.model_validate({"columns": COLUMNS, "tile": "1h"})


def refresh(world: Any, sections: Sections, log: Path, name: str, now: datetime) -> Path:
    """Do what the refresh graph does with a valid log."""
    store, fitted = world.folder / "store", world.folder / name
    fit_incrementally(newest_fit(store), *sections, None, RUNTIME, log, fitted)
    publish("shop", store, RUNTIME, 20, log, fitted, None, world.folder / f"{name}-skew", now=now)
    return fitted


def online(world: Any, fitted: Path, view: str) -> pl.DataFrame:
    """Return every key's row in the online store, in order."""
    store = connect(fitted / "views", world.folder / "store", "shop", RUNTIME.online_store)
    index = store.views.view(view)
    keys = pl.DataFrame({index.key_names[0]: [1, 2, 3, 4, 10, 20, 30]})
    return store.online(keys, [view]).rename(lambda name: name.removeprefix(f"{view}:"))


def counted_at_once(world: Any, sections: Sections, log: Path, view: str, at: datetime) -> pl.DataFrame:
    """Return the same from a full count of the same rows."""
    folder = world.folder / "at-once"
    if not folder.exists():
        fit(*sections, None, RUNTIME, log, folder)
    index = ViewIndex.read(folder / "views")
    (key,) = index.view(view).key_names
    keys = pl.DataFrame({key: [1, 2, 3, 4, 10, 20, 30]})
    return keys.join(index.snapshot(view, at), on=key, how="left", maintain_order="left")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_online_values_equal_a_full_count_after_reordered_late_and_killed_refreshes(
    world: Any, sections: Sections, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(seed)
    rows = [
        world.row(
            day, float(random.uniform(0, 24)), user_id=int(random.integers(1, 4)), seconds=float(random.random()),
            item_id=int(random.choice([10, 20, 30])), label=int(random.integers(2)), page="x", impression_id=number,
        )
        for number, day in enumerate(sorted(random.integers(0, 5, 60).tolist()))
    ]  # fmt: skip
    start = rows[0]["event_time"].replace(hour=0, minute=0, second=0, microsecond=0)
    now = start + timedelta(days=3)
    arrives = [max(row["event_time"], start) + timedelta(hours=float(random.exponential(6))) for row in rows]
    # Two views are begun and finished: the process dies before one is written, or after, before that is noted.
    fatal, calls = np.random.default_rng(seed + 100).integers(1, 5, 3).tolist(), [0, 0, 0]

    def dying(original: Callable[..., None]) -> Callable[..., None]:
        def call(self: MaterialisationRecord, view: Any, until: datetime) -> None:
            calls[part] += 1
            if calls[part] == fatal[part]:
                raise KeyboardInterrupt
            original(self, view, until)

        return call

    monkeypatch.setattr(MaterialisationRecord, "begin", dying(MaterialisationRecord.begin))
    monkeypatch.setattr(MaterialisationRecord, "finish", dying(MaterialisationRecord.finish))
    log = fitted = Path()
    for part in range(3):
        now = start + timedelta(days=3 + part, hours=float(random.uniform(0, 24))) if part < 2 else now.replace(hour=23)
        arrived = [number for number, moment in enumerate(arrives) if moment <= now or part == 2]
        rows_so_far = [rows[number] for number in arrived if rows[number]["event_time"] <= now]
        random.shuffle(rows_so_far)
        log = world.log(rows_so_far, f"log-{part}")
        with pytest.raises(KeyboardInterrupt):
            refresh(world, sections, log, f"killed-{part}", now)
        fitted = refresh(world, sections, log, f"fit-{part}", now)
    announcement = read_json(world.folder / "store" / SERVING)
    until = datetime.fromisoformat(announcement["until"])
    assert now - timedelta(hours=1) < until <= now
    assert datetime.fromisoformat(announcement["counted_until"]) == until - timedelta(minutes=30)
    for view in ("by_user_id", "by_item_id"):
        expected = counted_at_once(world, sections, log, view, until)
        assert online(world, fitted, view).equals(expected, null_equal=True)
        assert expected["rows"].sum() > 0


def hours(world: Any, *clock: float) -> list[dict[str, Any]]:
    """Return an impression of user 1 on each of three days at noon, and more on the third."""
    return [*(world.row(day, 12.0) for day in range(3)), *(world.row(2, hour) for hour in clock)]


def test_a_tile_is_served_once_it_is_complete_with_its_outcomes(world: Any, sections: Sections) -> None:
    log = world.log(hours(world, 12.5, 13.25))
    at = {
        (13, 15): (2, "12:00"),  # of 12:00 to 13:00 the outcomes are known at 13:30
        (13, 30): (4, "13:00"),
        (14, 29): (4, "13:00"),
        (14, 31): (5, "14:00"),
    }
    day = datetime(2026, 3, 4, tzinfo=UTC)
    for number, ((hour, minute), (rows, counted)) in enumerate(at.items()):
        fitted = refresh(world, sections, log, f"fit-{number}", day.replace(hour=hour, minute=minute))
        assert online(world, fitted, "by_user_id")["rows"][0] == rows
        assert read_json(world.folder / "store" / SERVING)["counted_until"] == f"2026-03-04T{counted}:00+00:00"


def test_features_that_differ_from_feasts_answers_are_not_served(
    world: Any, sections: Sections, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 3, 4, 15, tzinfo=UTC)
    refresh(world, sections, world.log(hours(world)), "good", now)
    announcement = (world.folder / "store" / SERVING).read_text()
    check: Callable[..., Any] = publishing.check_skew

    def differs(*inputs: Any) -> Any:
        report = check(*inputs)
        columns = report.columns | {"by_user_id:rows": 1}
        return report.model_copy(update={"online_mismatches": 1, "columns": columns})

    monkeypatch.setattr(publishing, "check_skew", differs)
    with pytest.raises(
        DataError, match=r"1 of \d+ answers of Feast differ from the views \(by_user_id:rows\); servers"
    ):
        refresh(world, sections, world.log(hours(world, 13.0), "more"), "bad", now)
    assert (world.folder / "store" / SERVING).read_text() == announcement
