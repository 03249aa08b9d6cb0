"""Backfills: corrected days are recounted, the fit equals a full one, and servers see all changes or none."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError, Files, ShortlistError
from shortlist.features.feast.feast_store_location import SECOND_SLOT, SERVING, feast_store_location
from shortlist.features.feast.materialised import MaterialisationRecord
from shortlist.features.feast.store import connect, user_reader
from shortlist.features.fits import counting
from shortlist.features.fits.backfill import parse_range, recount
from shortlist.features.fits.feature_changes import compare_fits, served_until
from shortlist.features.fits.fit import fit, fit_incrementally
from shortlist.features.fits.previous_fit import DayRange, newest_fit
from shortlist.features.fits.publish import publish
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import folder_digest, read_json

RUNTIME = Runtime(engine="cpu")
COLUMNS = [
    {"kind": "target", "key": ["user_id"], "window_days": 2, "name": "rate"},
    {"kind": "lag", "key": ["item_id"], "column": "seconds", "name": "last"},
    {"kind": "vocabulary", "each": ["page"], "min_rows": 2},
]
DAYS = [date(2026, 3, 2) + timedelta(days=number) for number in range(7)]
NOW = datetime(2026, 3, 9, tzinfo=UTC)
KEYS = {"by_user_id": [1, 2, 3, 4], "by_item_id": [10, 20, 30]}
Rows = list[dict[str, Any]]


@pytest.fixture
def by_day(world: Any) -> DeclaredSections:
    return DeclaredSections(world.data, Features.model_validate({"columns": COLUMNS}), None)


def row(world: Any, random: np.random.Generator, day: int, number: int) -> dict[str, Any]:
    values: dict[str, Any] = world.row(
        day, float(random.uniform(0, 23.9)), user_id=int(random.integers(1, 4)), seconds=float(random.random()),
        item_id=int(random.choice([10, 20, 30])), label=int(random.integers(2)), page=str(random.choice(["x", "y"])),
        impression_id=number,
    )  # fmt: skip
    return values


def some_rows(world: Any, random: np.random.Generator, days: int = 6, of_a_day: int = 8) -> Rows:
    return [row(world, random, number // of_a_day, number) for number in range(days * of_a_day)]


def published(world: Any, declared: DeclaredSections, log: Path, name: str = "served") -> Path:
    """Fit a log and publish it, as a refresh does."""
    store, fitted = world.folder / "store", world.folder / name
    fit_incrementally(newest_fit(store), *declared, RUNTIME, log, fitted)
    publish("shop", store, RUNTIME, 20, log, fitted, None, world.folder / f"{name}-skew", now=NOW)
    return fitted


def served(world: Any) -> dict[str, pl.DataFrame]:
    """Return what servers read: users' online rows, and the announced views."""
    store = world.folder / "store"
    announcement = read_json(store / SERVING)
    feast, index = (
        connect(Path(announcement["views"]), store, "shop", RUNTIME.online_store),
        ViewIndex.read(Path(announcement["views"])),
    )
    reader = user_reader(store, "shop", RUNTIME.online_store, "user_id")
    user_rows = reader.rows(KEYS["by_user_id"], ["by_user_id:rows", "by_user_id:sum_label_2d"])
    online = {
        view: feast.online(pl.DataFrame({index.view(view).key_names[0]: keys}), [view]) for view, keys in KEYS.items()
    }
    snapshot = index.snapshot("by_item_id", datetime.fromisoformat(announcement["until"])).sort("item_id")
    return {**online, "reader": pl.DataFrame(user_rows), "snapshot": snapshot}


def same(first_frames: dict[str, pl.DataFrame], second_frames: dict[str, pl.DataFrame]) -> bool:
    return all(first_frames[name].equals(second_frames[name], null_equal=True) for name in first_frames)


BEGIN, FINISH = MaterialisationRecord.begin, MaterialisationRecord.finish


def dies_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process at the given number of starts and ends of writing a view; 0: never."""
    calls = 0

    def counted(original: Any) -> Any:
        def call(self: MaterialisationRecord, view: Any, until: datetime) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                raise KeyboardInterrupt
            original(self, view, until)

        return call

    monkeypatch.setattr(MaterialisationRecord, "begin", counted(BEGIN))
    monkeypatch.setattr(MaterialisationRecord, "finish", counted(FINISH))


@pytest.mark.parametrize(
    ("seed", "tile", "kills"),
    [
        (1, "1d", (1, 4)),
        pytest.param(2, "1h", (2, 7), marks=pytest.mark.long),
        pytest.param(3, "1h", (3,), marks=pytest.mark.long),
    ],
)
def test_a_backfill_equals_a_full_count_and_a_killed_one_leaves_the_served_fit(
    world: Any, seed: int, tile: str, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = DeclaredSections(world.data, Features.model_validate({"columns": COLUMNS, "tile": tile}), None)
    random = np.random.default_rng(seed)
    rows = some_rows(world, random)
    old_fit = published(world, declared, world.log(rows, "log"))
    old, pointer = served(world), (world.folder / "store" / SERVING).read_text()

    first, last = sorted(int(day) for day in random.integers(0, 5, 2))
    corrected = DayRange(DAYS[first], DAYS[last])
    kept_rows = [old_row for old_row in rows if not corrected.contains(old_row["day"]) or random.random() < 0.7]
    if seed == 2:  # a day in between has no good row at all
        kept_rows = [
            old_row
            for old_row in kept_rows
            if old_row["day"] != DAYS[max(1, first)] or not corrected.contains(old_row["day"])
        ]
    added_rows = [row(world, random, int(random.integers(first, last + 1)), 900 + number) for number in range(3)]
    if seed != 2:
        kept_rows += added_rows
    kept_rows.append(row(world, random, 5, 999))  # the newest day has grown as well
    random.shuffle(kept_rows)
    log, fitted = world.log(kept_rows, "corrected"), world.folder / "fitted"
    recount(declared, RUNTIME, log, fitted, str(old_fit), corrected)
    fit(*declared, RUNTIME, log, world.folder / "at-once")
    assert folder_digest(fitted) == folder_digest(world.folder / "at-once")

    def publish_now() -> None:
        replaces = newest_fit(world.folder / "store")
        publish(
            "shop",
            world.folder / "store",
            RUNTIME,
            20,
            log,
            fitted,
            None,
            world.folder / "skew",
            now=NOW,
            replaces=replaces,
        )

    for moment in kills:  # before and after Feast has written one of the views
        dies_at(moment, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            publish_now()
        assert (world.folder / "store" / SERVING).read_text() == pointer
        assert same(served(world), old)
    dies_at(0, monkeypatch)
    publish_now()
    new = served(world)
    assert read_json(world.folder / "store" / SERVING)["slot"] == SECOND_SLOT
    for view, keys in KEYS.items():
        index = ViewIndex.read(world.folder / "at-once" / "views")
        (key,) = index.view(view).key_names
        at = datetime.fromisoformat(read_json(world.folder / "store" / SERVING)["until"])
        expected = pl.DataFrame({key: keys}).join(index.snapshot(view, at), on=key, how="left", maintain_order="left")
        renamed = new[view].rename(lambda name, view=view: name.removeprefix(f"{view}:"))
        assert renamed.equals(expected, null_equal=True)
    publish_now()  # once more changes nothing
    assert same(served(world), new)


def test_only_corrected_days_and_the_newest_are_counted(
    world: Any, by_day: DeclaredSections, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows(world, np.random.default_rng(5))
    old_fit = published(world, by_day, world.log(rows, "log"))
    counted: list[date] = []
    count = counting.LogCounter._count
    monkeypatch.setattr(
        counting.LogCounter,
        "_count",
        lambda self, day, *counter_arguments: counted.append(day.day) or count(self, day, *counter_arguments),
    )
    less = [old_row for old_row in rows if old_row["impression_id"] != 17]  # of the third day
    log = world.log(less, "corrected")
    recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), DayRange(DAYS[1], DAYS[4]))
    assert counted == [DAYS[2]]


def test_changes_are_reported_by_day_and_by_feature(world: Any, by_day: DeclaredSections) -> None:
    rows = [world.row(day, 12.0, user_id=user, label=1) for day in range(6) for user in (1, 2)]
    old_fit = published(world, by_day, world.log(rows, "log"))
    less = [old_row for old_row in rows if (old_row["day"], old_row["user_id"]) != (DAYS[4], 2)]
    log, corrected = world.log(less, "corrected"), DayRange(DAYS[4], DAYS[5])
    recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), corrected)
    at = served_until(feast_store_location(world.folder / "store"))
    changes = compare_fits(old_fit, world.folder / "new", corrected, at)
    assert [(day.day, day.rows_before, day.rows_after, day.counted_again) for day in changes.days] == [
        (DAYS[4], 2, 1, True),
        (DAYS[5], 2, 2, False),
    ]
    by_column = {f"{column_change.view}:{column_change.column}": column_change for column_change in changes.columns}
    two_days = by_column["by_user_id:sum_label_2d"]
    assert (two_days.keys, two_days.changed, two_days.largest, two_days.mean) == (2, 1, 1.0, 1.0)
    assert two_days.features == ("rate",)
    assert by_column["by_item_id:rows"].largest == 1.0
    assert changes.history_rows["by_user_id"] > 0
    assert "rate" in changes.features
    lines = "\n".join(changes.lines())
    assert f"Backfill {DAYS[4]}..{DAYS[5]}: 1 day(s) were counted again." in lines
    assert "by_user_id:sum_label_2d changes for 1 of 2 keys (50.0%), by up to 1, 1 on average; read by rate" in lines
    no_changes = compare_fits(old_fit, old_fit, corrected, at)
    assert not no_changes.changed
    assert "No value that servers read as of" in "\n".join(no_changes.lines())


def test_days_that_changed_outside_the_range_are_named(world: Any, by_day: DeclaredSections) -> None:
    rows = some_rows(world, np.random.default_rng(6))
    old_fit = published(world, by_day, world.log(rows, "log"))
    less = [
        old_row for old_row in rows if old_row["impression_id"] not in (9, 33)
    ]  # of the second and of the fifth day
    log = world.log(less, "corrected")
    with pytest.raises(
        DataError,
        match=r"1 day\(s\) outside 2026-03-02\.\.2026-03-04 have changed too: 2026-03-06 had 8 rows then and has 7 now"
        r".*backfill 2026-03-02 2026-03-06",
    ):
        recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), DayRange(DAYS[0], DAYS[2]))
    assert not (world.folder / "new").exists()


def test_a_backfill_that_would_lose_counts_is_refused(world: Any, by_day: DeclaredSections) -> None:
    rows = some_rows(world, np.random.default_rng(7))
    old_fit = published(world, by_day, world.log(rows, "log"))
    log = world.log([old_row for old_row in rows if old_row["day"] > DAYS[1]], "shorter")
    with pytest.raises(DataError, match=r"the log begins on 2026-03-04, and 1 day\(s\) before it, from 2026-03-03 on"):
        recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), DayRange(DAYS[1], DAYS[2]))
    recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), DayRange(DAYS[2], DAYS[2]))
    assert min(read_json(world.folder / "new" / Files.FEATURES)["days"]) == "2026-03-02"


def test_a_newer_refresh_is_not_overwritten(world: Any, by_day: DeclaredSections) -> None:
    rows = some_rows(world, np.random.default_rng(8))
    old_fit = published(world, by_day, world.log(rows, "log"))
    log = world.log(rows[:-1], "corrected")
    recount(by_day, RUNTIME, log, world.folder / "new", str(old_fit), DayRange(DAYS[5], DAYS[5]))
    newer_fit = published(world, by_day, world.log([*rows, world.row(5, 23.95)], "grown"), "newer")
    announcement = (world.folder / "store" / SERVING).read_text()
    with pytest.raises(
        DataError, match=r"newer features were published while these were counted .*Run the backfill again"
    ):
        publish(
            "shop", world.folder / "store", RUNTIME, 20, log, world.folder / "new", None, world.folder / "skew",
            now=NOW, replaces=str(old_fit),
        )  # fmt: skip
    assert (world.folder / "store" / SERVING).read_text() == announcement
    assert newest_fit(world.folder / "store") == str(newer_fit)


@pytest.mark.parametrize(
    ("first", "last", "problem"),
    [
        ("2026-13-01", "2026-03-02", "FROM: got '2026-13-01', wanted a day such as 2026-03-02"),
        ("2026-03-03", "2026-03-02", "TO: got 2026-03-02, which is before FROM 2026-03-03"),
    ],
)
def test_an_invalid_range_is_refused(first: str, last: str, problem: str) -> None:
    with pytest.raises(ShortlistError, match=problem):
        parse_range(first, last)


def test_a_range_outside_the_log_and_a_store_without_features_are_refused(world: Any, by_day: DeclaredSections) -> None:
    rows = some_rows(world, np.random.default_rng(9))
    log, out = world.log(rows, "log"), world.folder / "new"
    with pytest.raises(DataError, match="no features were published yet"):
        recount(by_day, RUNTIME, log, out, "", DayRange(DAYS[0], DAYS[1]))
    old_fit = published(world, by_day, log)
    with pytest.raises(DataError, match=r"2026-04-01\.\.2026-04-02: the log has no such day; it has 2026-03-02 to"):
        recount(by_day, RUNTIME, log, out, str(old_fit), DayRange(date(2026, 4, 1), date(2026, 4, 2)))
