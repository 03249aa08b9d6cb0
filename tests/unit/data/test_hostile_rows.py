"""Whatever a client sends, the next training starts, and its rows move nothing by more than 1 %."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.data.collected import ANSWERED, REQUESTS, ROWS, BatchCounts, CollectedBatch, CollectedLog, CollectedRows
from shortlist.data.ingest import ingest
from shortlist.data.rules.contributions import BY_REQUEST, BY_SENDER, BY_USER
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.row_digest import DIGESTS
from shortlist.storage.tables import DayTable

LIVE_DAY = datetime(2024, 1, 9, tzinfo=UTC)
"""The first day of live traffic; the log holds the eight days before."""
ITEMS = 68
"""About 147 honest rows of each are collected: once, a request moved the rate of such an item from 0.281 to 0.025."""
DECLARED: dict[str, Any] = {
    "source": {"kind": "files", "path": "log.parquet"}, "user": "user_id", "item": "item_id", "label": "click",
    "columns": [
        {"name": "user_id", "type": "integer"}, {"name": "item_id", "type": "integer"},
        {"name": "place", "type": "integer", "min": 1}, {"name": "click", "type": "integer"},
    ],
    "clock": {"kind": "column", "column": "time", "unit": "iso"}, "outcome_delay": "1h", "live": {"collect": True},
}  # fmt: skip
HOSTILE = "192.0.2.7"
MINUTE = timedelta(minutes=1)


def requests_of(first: int, count: int, rows: int = 10, spread: timedelta = timedelta(hours=20)) -> pl.DataFrame:
    """Return requests with rows, a client of its own each, over the live day; 28 % of the rows were clicked."""
    number = pl.int_range(count * rows, eager=True)
    request = number // rows + first
    times = pl.Series([LIVE_DAY + timedelta(hours=1) + spread * (row // rows / count) for row in range(count * rows)])
    times = times.cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame(
        {
            "user_id": request, "item_id": (number * 7 + request) % ITEMS, "place": number % rows + 1,
            Columns.LABEL: ((number * 31 + request * 17) % 100 < 28).cast(pl.Int8), Columns.TIME: times,
            ANSWERED: times, BY_REQUEST: request.cast(pl.UInt64),
            BY_SENDER: "10.0.0.0/" + request.cast(pl.String),
        }
    )  # fmt: skip


HONEST = requests_of(0, 1_000)


def hostile(rows: pl.DataFrame, **columns: Any) -> pl.DataFrame:
    """Return rows of the hostile client, as one user unless `user_id` says others."""
    values = {"user_id": 999_999, BY_SENDER: HOSTILE, **columns}
    return rows.with_columns(
        (value if isinstance(value, pl.Expr) else pl.lit(value, rows.schema[name])).alias(name)
        for name, value in values.items()
    )


NEGATIVE = {Columns.LABEL: 0}
ATTACKS: dict[str, pl.DataFrame] = {
    "500 rows of place 0 in one request": hostile(requests_of(5_000, 1, 500), place=0, **NEGATIVE),
    "10 000 copies of one row": hostile(pl.concat([requests_of(5_000, 1, 1)] * 10_000)),
    "200 requests dated 10 minutes ahead": hostile(
        requests_of(5_000, 200), **{Columns.TIME: pl.col(Columns.TIME) + 10 * MINUTE}
    ),
    "3 000 rows without outcomes": hostile(requests_of(5_000, 300), **NEGATIVE),
    "3 000 rows without outcomes, of as many invented users": hostile(
        requests_of(5_000, 3_000, 1), user_id=pl.col("user_id"), **NEGATIVE
    ),
    "one request of 1 500 rows of an item": hostile(requests_of(5_000, 1, 1_500), item_id=7, **NEGATIVE),
    "one request dated 6 hours back on the first live day": hostile(
        requests_of(5_000, 1), **{Columns.TIME: pl.col(Columns.TIME) - timedelta(hours=6)}
    ),
    "200 requests without a user": hostile(requests_of(5_000, 200), user_id=None, **NEGATIVE),
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of eight days with 2 000 rows each."""
    rows = requests_of(100_000, 200, spread=timedelta(hours=22))
    days = [rows.with_columns((pl.col(Columns.TIME) - timedelta(days=day)).alias("time")) for day in range(1, 9)]
    written = pl.concat(days).sort("time").rename({Columns.LABEL: "click"})
    written.select("time", "user_id", "item_id", "place", "click").write_parquet(tmp_path / "log.parquet")
    return tmp_path


Train = Callable[..., DayTable]


@pytest.fixture
def train(log: Path) -> Train:
    """Publish rows as a batch of a new collected log, then ingest and validate as a training does."""

    def validated(rows: pl.DataFrame, **live: Any) -> DayTable:
        number = len(list(log.glob("stores*"))) + 1
        data = Data.model_validate({**DECLARED, "live": {"collect": True, **live}})
        out, runtime = log / f"out{number}", Runtime(chunk_rows=4_000)
        reference = publish(data, f"{log / f'stores{number}'}#1", rows)
        ingest(data, log, out / "raw", runtime, collected=CollectedRows.parse(reference))
        return validate(data, out / "raw", out / "valid", out / "bad", runtime, LIVE_DAY + timedelta(days=2))

    return validated


def publish(data: Data, stores: str, rows: pl.DataFrame) -> str:
    collected = CollectedLog.open(stores, "shop")
    number, count = len(collected.batches()) + 1, rows.height
    folder = Path(stores.partition("#")[0]) / f"batch{number}"
    (folder / REQUESTS).mkdir(parents=True)
    rows.with_columns(
        pl.lit(f"batch {number}").alias(Columns.SOURCE_FILE), pl.int_range(count).alias(Columns.SOURCE_LINE),
        pl.col(Columns.TIME).dt.date().alias(Columns.DAY),
        (pl.int_range(count) + 2**62 + number * 2**40).alias(Columns.IMPRESSION),
        pl.lit(3, pl.Int64).alias(Columns.SERVED_VERSION), pl.lit("stable").alias(Columns.SERVED_TRACK),
        pl.lit(None, pl.Float32).alias(Columns.COUNTS_DELAY), pl.lit(1.0, pl.Float32).alias(Columns.WEIGHT),
        pl.col("user_id").cast(pl.String).alias(BY_USER),
    ).write_parquet(folder / ROWS)  # fmt: skip
    pl.DataFrame({"request": [number]}).write_parquet(folder / REQUESTS / f"{REQUESTS}.parquet")
    batch = CollectedBatch(
        number=number, spec="shop", made=LIVE_DAY, folder=collected.files_key(number, "a"), digest=str(number),
        spans=(), answered_from=None, answered_to=None, first=None, last=None, counts=BatchCounts(rows=count),
    )  # fmt: skip
    assert collected.publish(batch, folder)
    return CollectedRows.describe_newest(data, stores, "shop")


def rates(table: DayTable, item: int | None = None) -> tuple[int, float]:
    """Return the rows of the live day, of all items or of one, and their click rate."""
    rows = table.scan({LIVE_DAY.date()}).collect()
    rows = rows if item is None else rows.filter(pl.col("item_id") == item)
    rate = rows[Columns.LABEL].mean()
    assert isinstance(rate, float)
    return rows.height, rate


OF_NO_SERVER = ("3 000 rows without outcomes, of as many invented users", "200 requests without a user")
"""A server that vouches does so for users who exist."""


@pytest.mark.parametrize(
    ("attack", "is_vouched_for"),
    [*((attack, False) for attack in ATTACKS), *((attack, True) for attack in ATTACKS if attack not in OF_NO_SERVER)],
)
def test_an_attack_moves_nothing_by_more_than_a_hundredth(train: Train, attack: str, is_vouched_for: bool) -> None:
    rows = pl.concat([HONEST, ATTACKS[attack].select(HONEST.columns)])
    if is_vouched_for:
        rows = rows.with_columns(pl.lit(None, pl.String).alias(BY_SENDER))
    calm, attacked = train(HONEST), train(rows)
    for item in (None, 7):
        expected_rows, expected_rate = rates(calm, item)
        live_rows, rate = rates(attacked, item)
        assert live_rows == pytest.approx(expected_rows, rel=0.0102)
        assert rate == pytest.approx(expected_rate, rel=0.0101)
    earlier = {day: text for day, text in calm.notes[DIGESTS].items() if day != str(LIVE_DAY.date())}
    assert earlier.items() <= attacked.notes[DIGESTS].items()
    assert len(attacked.notes[DIGESTS]) == len(calm.notes[DIGESTS])  # no further day


def test_rows_beyond_a_share_are_in_quarantine_with_the_reason(train: Train) -> None:
    table = train(pl.concat([HONEST, ATTACKS["one request of 1 500 rows of an item"].select(HONEST.columns)]))
    quarantined = pl.read_parquet(table.folder.parent / "bad" / Files.QUARANTINE)
    assert table.notes["by_rule"] == {"share": 1_499}
    details = set(quarantined[Columns.DETAIL])
    assert "request: 1500 of 11500 rows, wanted at most 101 (live.max_share 1.00%)" in details
    assert train(HONEST).notes["by_rule"] == {}


def test_a_larger_share_may_be_declared(train: Train) -> None:
    greedy = ATTACKS["3 000 rows without outcomes"].select(HONEST.columns)
    assert train(pl.concat([HONEST, greedy]), max_share=1.0).notes["collected_rows"] == 13_000


def test_the_files_of_the_log_keep_their_rules(train: Train, log: Path) -> None:
    """Live traffic does not hide what is wrong with them."""
    rows = pl.read_parquet(log / "log.parquet")
    rows.with_columns(
        pl.when(pl.int_range(pl.len()) % 50 == 0).then(0).otherwise("place").alias("place")
    ).write_parquet(log / "log.parquet")
    with pytest.raises(Exception, match=r"320 of 16 000 \(2.00%\) rows are quarantined \(in_range 320\)"):
        train(HONEST)


def test_the_files_may_end_within_a_day_where_live_traffic_goes_on(train: Train, log: Path) -> None:
    rows = pl.read_parquet(log / "log.parquet")
    rows.filter(pl.col("time") < LIVE_DAY - timedelta(hours=22)).write_parquet(log / "log.parquet")
    table = train(HONEST)
    assert table.by_day[date(2024, 1, 8)].rows == 100
    warning, short_day = table.notes["warnings"]
    assert short_day.startswith("The validation days: 2024-01-08 has 100 row(s), fewer than 0.2 ")
    assert warning.startswith(
        "Rows of live traffic break rule volume, and stop nothing: volume: 100 rows on 2024-01-08"
    )


@pytest.mark.parametrize(
    ("rows", "rule", "problem"),
    [
        (HONEST.with_columns(**{Columns.LABEL: pl.lit(0, pl.Int8)}), "label_rate", "label rate: 0.0000 on 2024-01-09"),
        (requests_of(0, 1_500), "volume", "volume: 15 000 rows on 2024-01-09 (7.5 times the median 2 000 before)"),
    ],
)  # fmt: skip
def test_rules_that_live_traffic_breaks_are_reported(train: Train, rows: pl.DataFrame, rule: str, problem: str) -> None:
    (warning,) = train(rows).notes["warnings"]
    assert warning.startswith(f"Rows of live traffic break rule {rule}, and stop nothing: {problem}")


def test_the_next_training_equals_one_without_the_withdrawn_batch(log: Path) -> None:
    data = Data.model_validate(DECLARED)
    batches = [requests_of(place * 1_000, 500) for place in range(3)]
    with_batch, without_batch = (f"{log / name}#1" for name in ("with", "without"))
    for rows in batches:
        reference = publish(data, with_batch, rows)
    for rows in (batches[0], batches[2]):
        expected_reference = publish(data, without_batch, rows)
    CollectedLog.open(with_batch, "shop").withdraw(2, LIVE_DAY)
    withdrawn_reference = CollectedRows.describe_newest(data, with_batch, "shop")
    assert withdrawn_reference != reference
    digests = []
    for number, text in enumerate((reference, withdrawn_reference, expected_reference)):
        out, runtime = log / f"out{number}", Runtime(chunk_rows=4_000)
        ingest(data, log, out / "raw", runtime, collected=CollectedRows.parse(text))
        table = validate(data, out / "raw", out / "valid", out / "bad", runtime, LIVE_DAY + timedelta(days=2))
        digests.append(table.notes[DIGESTS])
    assert digests[1] == digests[2] != digests[0]
