"""Collected rows in the ingested log: typed, counted, quarantined, and never overlapping the declared source."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Columns, DataError, Files, ShortlistError
from shortlist.data.base_rows import clock_failures
from shortlist.data.collected import ANSWERED, REQUESTS, ROWS, BatchCounts, CollectedBatch, CollectedLog, CollectedRows
from shortlist.data.ingest import ingest
from shortlist.data.rules.quarantine import QUARANTINE_SCHEMA
from shortlist.data.validate import validate
from shortlist.features.fits.backfill import recount
from shortlist.features.fits.feature_changes import compare_fits
from shortlist.features.fits.fit import fit
from shortlist.features.fits.previous_fit import DayRange
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
TWO_DAYS = [NOON + timedelta(days=number) for number in (1, 2)]
LENIENT_RULES = {"min_rows": 1, "max_quarantined_share": 0.5, "min_volume_ratio": 0.0, "max_label_rate_change": 1.0}
LIVE: dict[str, Any] = {
    "outcome_delay": "1h", "live": {"collect": True}, "rules": LENIENT_RULES,
    "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
}  # fmt: skip
CLICKS: list[dict[str, Any]] = [
    {"name": "user_id", "type": "integer"}, {"name": "price", "type": "number"}, {"name": "click", "type": "integer"},
]  # fmt: skip
Declare = Callable[..., Data]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of six impressions, one a minute from noon on."""
    rows = "".join(f"{int(NOON.timestamp()) + 60 * n},{n % 3},1.5,{n % 2}\n" for n in range(6))
    (tmp_path / "log.csv").write_text("time,user_id,price,click\n" + rows)
    return tmp_path / "log.csv"


def publish(stores: str, *times: datetime, price: Any = 2.0, lost: int = 0, behind: float = 0.0) -> str:
    """Publish a batch of rows with these times; return the reference that a training gets.

    Args:
        stores: The stores' addresses.
        times: Times of the rows.
        price: Price of all rows.
        lost: Number of rows that an earlier version quarantined.
        behind: Minutes by which the server's clock was slow.
    """
    collected, count = CollectedLog.open(stores, "shop"), len(times)
    rows = pl.DataFrame(
        {
            Columns.SOURCE_FILE: ["v1/part-000000.parquet"] * count, Columns.SOURCE_LINE: list(range(count)),
            Columns.TIME: list(times), Columns.DAY: [time.date() for time in times],
            Columns.IMPRESSION: [2**62 + int(time.timestamp()) for time in times], Columns.LABEL: [1] * count,
            "user_id": [7] * count, "price": [price] * count, Columns.SERVED_VERSION: [3] * count,
            Columns.SERVED_TRACK: ["canary"] * count, Columns.COUNTS_DELAY: [750.0] * count,
            Columns.WEIGHT: [4.0] * count,
        },
        schema_overrides={
            Columns.LABEL: pl.Int8, Columns.WEIGHT: pl.Float32, Columns.COUNTS_DELAY: pl.Float32,
            Columns.TIME: pl.Datetime("us", "UTC"),
        },
    )  # fmt: skip
    number = len(collected.batches()) + 1
    folder = Path(stores.partition("#")[0]) / f"batch{number}"
    (folder / REQUESTS).mkdir(parents=True)
    if lost:
        refused = [["v1/part-000000.parquet", 9, "not_null", "user_id"]] * lost
        pl.DataFrame(refused, QUARANTINE_SCHEMA, orient="row").write_parquet(folder / "quarantine.parquet")
    else:
        rows = rows.with_columns((pl.col(Columns.TIME) - timedelta(minutes=behind)).alias(ANSWERED))
    rows.write_parquet(folder / ROWS)
    pl.DataFrame({"request": [number]}).write_parquet(folder / REQUESTS / f"{REQUESTS}.parquet")
    batch = CollectedBatch(
        number=number, spec="shop", made=NOON, folder=collected.files_key(number, "a"), digest=str(times), spans=(),
        answered_from=None, answered_to=None, first=min(times), last=max(times), counts=BatchCounts(rows=count),
    )  # fmt: skip
    assert collected.publish(batch, folder)
    return CollectedRows(stores=stores, spec="shop", batches=number, digest="0").model_dump_json()


def ingest_and_validate(
    data: Data, log: Path, collected: str, until: datetime | None = None
) -> tuple[DayTable, pl.DataFrame]:
    """Ingest and validate; return the valid log and the quarantine."""
    out, runtime = log.parent / "out", Runtime(chunk_rows=1_000)
    ingest(data, log, out / "raw", runtime, collected=CollectedRows.parse(collected))
    valid = validate(data, out / "raw", out / "valid", out / "bad", runtime, NOON + timedelta(days=9), until)
    return valid, pl.read_parquet(out / "bad" / Files.QUARANTINE)


def test_collected_rows_follow_the_log_with_their_version_and_weight(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, NOON + timedelta(hours=1), NOON + timedelta(days=1), lost=1)
    collected = publish(stores, NOON + timedelta(hours=2), NOON + timedelta(days=2))
    table, quarantine = ingest_and_validate(declare(**LIVE), log, collected)
    rows = table.scan().collect()
    assert [part.rows for part in table.days] == [8, 1, 1]
    assert rows[Columns.SERVED_VERSION].to_list() == [None] * 6 + [3] * 4
    assert rows[Columns.WEIGHT].to_list() == [1.0] * 6 + [4.0] * 4
    assert rows[Columns.COUNTS_DELAY].to_list() == [None] * 6 + [750.0] * 4
    assert (table.notes["collected_rows"], table.notes["raw_rows"]) == (4, 11)
    assert table.notes["by_rule"] == {"not_null": 1}
    assert quarantine.rows() == [("v1/part-000000.parquet", 9, "not_null", "user_id")]


def test_a_log_is_read_before_the_first_row_is_collected(log: Path, declare: Declare) -> None:
    reference = CollectedRows.describe_newest(declare(**LIVE), f"{log.parent}/stores#1", "shop")
    collected = CollectedRows.parse(reference)
    assert collected is not None and collected.batches == 0
    assert ingest(declare(**LIVE), log, log.parent / "raw", Runtime(chunk_rows=1_000), collected=collected).rows == 6


def sections_with_min_price(min_price: float) -> dict[str, Any]:
    columns = [{**column, "min": min_price} if column["name"] == "price" else column for column in CLICKS]
    return {"columns": columns, **LIVE}


def test_collected_rows_are_checked_by_the_rules_at_reading_time(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *TWO_DAYS, price=1.0)
    collected = publish(stores, NOON + timedelta(days=2, hours=1), price=-1.0)
    strict_table, quarantine = ingest_and_validate(declare(**sections_with_min_price(0)), log, collected)
    assert quarantine.select(Columns.RULE, Columns.SOURCE_LINE).rows() == [("in_range", 0)]
    assert strict_table.notes["quarantined_by_day"] == {"2024-01-03": 1}
    lenient_table, quarantine = ingest_and_validate(declare(**sections_with_min_price(-2)), log, collected)
    assert quarantine.is_empty()
    assert [part.rows for part in lenient_table.days] == [6, 1, 2]
    days = {
        day
        for day in lenient_table.notes["digests"]
        if lenient_table.notes["digests"][day] != strict_table.notes["digests"][day]
    }
    assert days == {"2024-01-03"}


def test_a_backfill_counts_rows_that_a_corrected_rule_accepts(log: Path, declare: Declare) -> None:
    stores, runtime = f"{log.parent}/stores#1", Runtime(engine="cpu")
    publish(stores, *(NOON + timedelta(days=number) for number in (2, 3)))
    collected = publish(stores, NOON + timedelta(days=1), NOON + timedelta(days=1, hours=1), price=-1.0)
    users = Features.model_validate({"columns": [{"kind": "count", "key": ["user_id"], "name": "n"}]})
    fits = {least: log.parent / f"fit{least}" for least in (0, -2)}
    strict = declare(**sections_with_min_price(0))
    table, _ = ingest_and_validate(strict, log, collected)
    fit(strict, users, None, runtime, table.folder, fits[0])
    loose = DeclaredSections(declare(**sections_with_min_price(-2)), users, None)
    table, _ = ingest_and_validate(loose.data, log, collected)
    corrected = DayRange(date(2024, 1, 2), date(2024, 1, 2))
    recount(loose, runtime, table.folder, fits[-2], str(fits[0]), corrected)
    changes = compare_fits(fits[0], fits[-2], corrected, NOON + timedelta(days=4))
    (day,) = changes.days
    assert (day.rows_before, day.rows_after, day.counted_again) == (None, 2, True)
    assert (day.quarantined_before, day.quarantined_after) == (2, 0)
    (changed,) = (change for change in changes.changed if change.column == "rows")
    assert (changed.changed, changed.largest) == (1, 2.0)  # user 7 alone


def test_a_row_later_than_its_answer_is_quarantined_beyond_the_clock_skew(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *TWO_DAYS)
    collected = publish(stores, NOON + timedelta(hours=1), behind=6)
    table, quarantine = ingest_and_validate(declare(**LIVE), log, collected)
    assert (table.notes["collected_rows"], table.notes["by_rule"]) == (2, {"client_clock": 1})
    assert quarantine[Columns.DETAIL][0].endswith("a time at most 5m after the answer (live.max_clock_skew)")
    wider: dict[str, Any] = {**LIVE, "live": {"collect": True, "max_clock_skew": "6m"}}
    assert ingest_and_validate(declare(**wider), log, collected)[0].notes["collected_rows"] == 3


def test_a_row_dated_ahead_within_the_clock_skew_counts_at_its_answer(log: Path, declare: Declare) -> None:
    stores, midnight = f"{log.parent}/stores#1", NOON + timedelta(hours=12)
    publish(stores, midnight - timedelta(minutes=1), midnight + timedelta(minutes=2), behind=4)
    collected = publish(stores, *TWO_DAYS)
    rows = ingest_and_validate(declare(**LIVE), log, collected)[0].scan().collect().tail(4)
    answered = [
        time - timedelta(minutes=4) for time in (midnight - timedelta(minutes=1), midnight + timedelta(minutes=2))
    ]
    assert rows[Columns.TIME].to_list()[:2] == answered
    assert rows[Columns.DAY].to_list()[:2] == [NOON.date()] * 2


def test_a_row_dated_ahead_does_not_pass_live_since_by_its_time(log: Path, declare: Declare) -> None:
    """It would not be later than the log, which stops a training."""
    stores = f"{log.parent}/stores#1"
    publish(stores, NOON + timedelta(minutes=8), behind=4)
    collected = publish(stores, *TWO_DAYS)
    live: dict[str, Any] = {**LIVE, "live": {"collect": True, "since": (NOON + timedelta(minutes=6)).isoformat()}}
    assert ingest_and_validate(declare(**live), log, collected)[0].notes["collected_rows"] == 2


def test_rows_with_wrong_client_times_are_quarantined_and_never_stop_a_training(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *TWO_DAYS)
    publish(stores, *(NOON + timedelta(hours=1, minutes=number) for number in range(40)), behind=10)
    collected = publish(stores, *(NOON + timedelta(hours=3, minutes=number) for number in range(40)), behind=-25 * 60)
    strict = {**LIVE, "rules": {**LENIENT_RULES, "max_quarantined_share": 0.0}}
    table, quarantine = ingest_and_validate(declare(**strict), log, collected)
    assert (table.notes["collected_rows"], table.notes["by_rule"]) == (2, {"client_clock": 80})
    assert quarantine.height == 80


def publish_rows_with_old_times(stores: str) -> str:
    """Publish two rows with valid times, and two of 3 January with client times two days and 20 years earlier."""
    publish(stores, *TWO_DAYS)
    old = [NOON + timedelta(minutes=4), NOON - timedelta(days=7_300)]
    for time in old:
        collected = publish(stores, time, behind=(time - TWO_DAYS[1]) / timedelta(minutes=1))
    return collected


def test_a_row_long_before_its_answer_is_quarantined_without_a_new_day(log: Path, declare: Declare) -> None:
    """The client sends the time of a row, the server that of its answer."""
    collected = publish_rows_with_old_times(f"{log.parent}/stores#1")
    table, quarantine = ingest_and_validate(declare(**LIVE), log, collected)
    assert [part.rows for part in table.days] == [6, 1, 1]  # of 1, 2 and 3 January, as without these rows
    assert (table.notes["collected_rows"], table.notes["by_rule"]) == (2, {"client_clock": 2})
    assert all(
        detail.endswith("a time at most 1d before the answer (live.max_age); a replay of the log sends the log's times")
        for detail in quarantine[Columns.DETAIL]
    )
    longer: dict[str, Any] = {**LIVE, "live": {"collect": True, "max_age": None}}
    table, quarantine = ingest_and_validate(declare(**longer), log, collected)
    assert (table.notes["collected_rows"], table.notes["by_rule"]) == (2, {"after_log": 2})


def test_a_row_of_exactly_the_largest_age_counts(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *TWO_DAYS)
    collected = publish(stores, NOON + timedelta(hours=1), behind=-24 * 60)
    assert ingest_and_validate(declare(**LIVE), log, collected)[0].notes["collected_rows"] == 3
    shorter: dict[str, Any] = {**LIVE, "live": {"collect": True, "max_age": "86399s"}}
    assert ingest_and_validate(declare(**shorter), log, collected)[0].notes["by_rule"] == {"client_clock": 1}


def test_rows_published_before_since_are_dropped_when_read(log: Path, declare: Declare) -> None:
    """Batches never change, so rows published before the declaration are dropped while reading."""
    stores = f"{log.parent}/stores#1"
    publish(stores, NOON + timedelta(minutes=4), NOON + timedelta(hours=1))
    collected = publish(stores, *TWO_DAYS)
    assert ingest_and_validate(declare(**LIVE), log, collected)[0].notes["by_rule"] == {"after_log": 1}
    live: dict[str, Any] = {**LIVE, "live": {"collect": True, "since": (NOON + timedelta(minutes=6)).isoformat()}}
    table, quarantine = ingest_and_validate(declare(**live), log, collected)
    assert [part.rows for part in table.days] == [7, 1, 1]
    assert (table.notes["collected_rows"], table.notes["raw_rows"]) == (3, 9)
    assert quarantine.is_empty()


def test_rows_of_a_generated_log_may_be_of_any_age(declare: Declare) -> None:
    """Its days are all in the past."""
    clock = {"kind": "column", "column": "event_time", "unit": "us"}
    source, columns = {"kind": "generated", "days": 8}, [{"name": "is_click", "type": "integer"}]
    generated = declare(columns, label="is_click", clock=clock, source=source, outcome_delay="1h", live=LIVE["live"])
    rows = pl.DataFrame({Columns.TIME: [NOON], ANSWERED: [NOON + timedelta(days=900)]})
    assert clock_failures(rows, generated) == []


def test_rows_at_or_after_until_are_not_read(log: Path, declare: Declare) -> None:
    days = [NOON + timedelta(days=number) for number in (1, 2, 3)]
    table, _ = ingest_and_validate(declare(**LIVE), log, publish(f"{log.parent}/stores#1", *days), until=days[2])
    assert (table.rows, table.notes["collected_rows"]) == (8, 2)


def test_rows_that_are_not_later_than_the_log_are_quarantined(log: Path, declare: Declare) -> None:
    collected = publish(f"{log.parent}/stores#1", NOON + timedelta(minutes=4), *TWO_DAYS)
    table, quarantine = ingest_and_validate(declare(**LIVE), log, collected)
    assert (table.notes["collected_rows"], table.notes["by_rule"]) == (2, {"after_log": 1})
    assert quarantine[Columns.DETAIL][0] == (
        f"{Columns.TIME}: got '2024-01-01 12:04:00.000000+00:00', wanted a time after the newest row of the log,"
        " 2024-01-01 12:05:00 UTC; the log must end before live traffic begins, or live.since says from which moment on"
        " rows are collected"
    )


def test_a_value_of_another_type_than_now_declared_is_quarantined(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *TWO_DAYS, price="2.5")
    collected = publish(stores, NOON + timedelta(hours=1), price="2.50 EUR")
    table, quarantine = ingest_and_validate(declare(**LIVE), log, collected)
    assert table.scan().collect().tail(2)["price"].to_list() == [2.5, 2.5]
    assert quarantine.select(Columns.RULE, Columns.DETAIL).rows() == [
        ("type", "price: got '2.50 EUR', wanted a value of type Float64, as declared now")
    ]


def test_a_log_with_rows_after_since_is_refused(log: Path, declare: Declare) -> None:
    live: dict[str, Any] = {**LIVE, "live": {"collect": True, "since": (NOON + timedelta(minutes=3)).isoformat()}}
    with pytest.raises(DataError, match=r"data.live.since: 3 rows of the log are of 2024-01-01T12:03:00"):
        ingest_and_validate(declare(**live), log, "")


def test_an_invalid_reference_to_batches_is_refused() -> None:
    with pytest.raises(ShortlistError, match="collected: "):
        CollectedRows.parse('{"stores": 3}')


def test_the_reference_changes_with_every_new_batch(log: Path, declare: Declare) -> None:
    stores, data = f"{log.parent}/stores#1", declare(**LIVE)
    assert CollectedRows.describe_newest(declare(), stores, "shop") == ""
    empty_reference = CollectedRows.describe_newest(data, stores, "shop")
    publish(stores, NOON + timedelta(hours=1))
    reference = CollectedRows.describe_newest(data, stores, "shop")
    assert empty_reference != reference
    assert reference == CollectedRows.describe_newest(data, stores, "shop")


@pytest.mark.parametrize("name", [Columns.SERVED_VERSION, Columns.SERVED_TRACK])
def test_the_served_version_and_track_are_refused_as_features(name: str, declare: Declare) -> None:
    from shortlist.features.kinds.count import CountFeature

    feature: Any = CountFeature.model_validate({"kind": "count", "key": name, "name": "n"})
    with pytest.raises(ValueError, match=f"'{name}' tells who served a row"):
        feature.check(declare(**LIVE))


def test_a_newest_day_of_a_few_collected_rows_is_named_with_its_batch(log: Path, declare: Declare) -> None:
    stores = f"{log.parent}/stores#1"
    publish(stores, *(NOON + timedelta(days=day, minutes=n) for day in (1, 2) for n in range(6)))
    collected = publish(stores, NOON + timedelta(days=7))
    sections = {**LIVE, "rules": {**LENIENT_RULES, "min_volume_ratio": 0.2}}
    warnings = ingest_and_validate(declare(**sections), log, collected)[0].notes["warnings"]
    assert warnings[-1] == (
        "The test days: 2024-01-08 has 1 row(s), of live traffic (batch 2 of the collected rows), fewer than 0.2"
        " (data.rules.min_volume_ratio) of the 6 of a usual day. Few rows say little by themselves: test is on"
        " 2024-01-03, 2024-01-08, 7 rows. If they are no rows of users, .venv/bin/shortlist collect shop --withdraw 2"
        " leaves a batch out of later runs for good."
    )
    without_it = publish(stores, NOON + timedelta(days=7, hours=1), NOON + timedelta(days=7, hours=2))
    assert "The test days" not in str(ingest_and_validate(declare(**sections), log, without_it)[0].notes["warnings"])
