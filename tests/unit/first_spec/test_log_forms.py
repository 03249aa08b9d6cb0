"""`shortlist init` reads logs as people have them: in many files, with late surprises; the truth of each is known."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.data.reading.sources import log_files
from shortlist.data.sample_check import check_sample
from shortlist.first_spec.draft import SpecDraft
from shortlist.first_spec.write import WrittenSpec, choose_likeliest, draft_spec, write_spec
from shortlist.spec.data import EventClock, FileSource
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec, match_features

START = datetime(2026, 2, 2, tzinfo=UTC)
DAYS = 14


def clicks(rows: int = 4_200, days: int = DAYS, start: datetime = START) -> pl.DataFrame:
    """Return a log of 300 users and 120 items, in time order."""
    draw = np.random.default_rng(1)
    seconds = np.sort(draw.integers(0, days * 86_400, rows))
    items = draw.integers(1, 121, rows)
    return pl.DataFrame(
        {
            "user_id": draw.integers(1, 301, rows),
            "item_id": items,
            "category": [f"c{item % 7}" for item in items],
            "device": draw.choice(["ios", "android", "web"], rows),
            "price": np.round(np.exp(draw.normal(2.5, 0.7, rows)), 2),
            "clicked": (draw.random(rows) < 0.2 + 0.1 * (items % 3)).astype(np.int8),
            "time": [start + timedelta(seconds=int(second)) for second in seconds],
        }
    )


def by_day(log: pl.DataFrame) -> list[tuple[date, pl.DataFrame]]:
    days = log.group_by(pl.col("time").dt.date(), maintain_order=True)
    return [(day, frame) for (day,), frame in days if isinstance(day, date)]


def first_spec(location: Path) -> tuple[SpecDraft, WrittenSpec, Spec]:
    draft = draft_spec(location, choose_likeliest)
    written = write_spec(draft, "mine")
    spec = parse_spec(written.text)
    assert check_sample(spec.data, location).problems == written.problems
    return draft, written, spec


def test_leading_zeros_that_come_late_make_a_key_text(tmp_path: Path) -> None:
    late = (
        pl.when((pl.int_range(pl.len()) > 3_000) & (pl.col("item_id") % 2 == 1)).then(pl.lit("0")).otherwise(pl.lit(""))
    )
    log = clicks().with_columns(item_id=late + pl.col("item_id").cast(pl.String))
    log.write_csv(tmp_path / "log.csv")
    draft, _, spec = first_spec(tmp_path)
    assert spec.data.by_name["item_id"].type == "string"
    assert draft.log.column("item_id").distinct == log["item_id"].n_unique() > 120


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_unsigned_ids_of_64_bits_are_keys_of_text(ending: str, tmp_path: Path) -> None:
    hashes = pl.Series(np.random.default_rng(3).integers(0, 2**64, 301, dtype=np.uint64))
    log = clicks().with_columns(user_id=pl.col("user_id").map_elements(lambda user: hashes[user], pl.UInt64))
    log.write_csv(tmp_path / "log.csv") if ending == "csv" else log.write_parquet(tmp_path / "log.parquet")
    draft, written, spec = first_spec(tmp_path)
    assert (spec.data.user, spec.data.by_name["user_id"].type) == ("user_id", "string")
    assert draft.log.column("user_id").distinct == log["user_id"].n_unique()
    assert f"# text, because integers end at 2^63 - 1 = {2**63 - 1}" in written.text


def test_ids_that_are_integers_floats_and_texts_in_different_files_are_the_same_keys(tmp_path: Path) -> None:
    kinds = (pl.Int64, pl.Float64, pl.String)
    for place, (day, frame) in enumerate(by_day(clicks())):
        frame.cast({"item_id": kinds[place % 3]}).write_parquet(tmp_path / f"{day}.parquet")
    draft, _, spec = first_spec(tmp_path)
    assert spec.data.by_name["item_id"].type == "string" and draft.log.column("item_id").distinct == 120


def test_a_column_that_comes_later_leaves_no_day_out(tmp_path: Path) -> None:
    for place, (day, frame) in enumerate(by_day(clicks())):
        (frame if place > 8 else frame.drop("device")).write_csv(tmp_path / f"{day}.csv")
    draft, written, spec = first_spec(tmp_path)
    assert len(draft.days) == DAYS and sum(rows for _, rows in draft.days) == 4_200
    assert "# null in 9 of 14 files, which lack it" in written.text and spec.data.by_name["device"].type == "string"
    assert any("'device' is not in 9 of its files" in notice for notice in written.notices)


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [("price", "-", "number"), ("clicked", "?", "integer"), ("clicked", "clicked", "integer")],
)
def test_one_bad_value_among_thousands_keeps_the_type_and_is_quarantined(
    column: str, value: str, kind: str, tmp_path: Path
) -> None:
    bad = pl.when(pl.int_range(pl.len()) == 4_000).then(pl.lit(value)).otherwise(pl.col(column).cast(pl.String))
    clicks().with_columns(bad.alias(column)).write_csv(tmp_path / "log.csv")
    draft, written, spec = first_spec(tmp_path)
    assert (spec.data.label, spec.data.by_name[column].type) == ("clicked", kind) and written.problems == ()
    assert any("1 rows break 'type', e.g. log.csv, line 4002" in notice for notice in written.notices)
    assert (
        f"1 row of 4,200 looked at hold no number, such as '{value}': quarantined" in draft.log.column(column).comment
    )


def test_files_that_were_put_together_with_their_headers_are_one_log(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("".join(frame.write_csv() for _, frame in by_day(clicks())))
    _, written, spec = first_spec(tmp_path)
    assert (spec.data.label, spec.data.by_name["price"].type) == ("clicked", "number")
    assert any(notice.startswith("Quarantine: 13 rows break") for notice in written.notices)


def test_true_and_false_are_a_label(tmp_path: Path) -> None:
    flag = pl.when(pl.col("clicked") == 1).then(pl.lit("true")).otherwise(pl.lit("False"))
    clicks().with_columns(clicked=flag).write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert (spec.data.label, spec.data.by_name["clicked"].type) == ("clicked", "integer")


def test_na_is_no_value_among_numbers_and_a_value_among_texts(tmp_path: Path) -> None:
    every_ninth = pl.int_range(pl.len()) % 9 == 0
    country = pl.when(every_ninth).then(pl.lit("NA")).otherwise(pl.lit("DE"))
    clicks().with_columns(country=country).write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert isinstance(spec.data.source, FileSource) and spec.data.source.null_values == ("",)
    price = pl.when(every_ninth).then(pl.lit("NA")).otherwise(pl.col("price").cast(pl.String))
    clicks().with_columns(price=price).write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert isinstance(spec.data.source, FileSource) and spec.data.source.null_values == ("", "NA")
    assert spec.data.by_name["price"].type == "number"


@pytest.mark.parametrize("name", ["", '""'])  # pandas writes the first, Polars the second
def test_an_index_column_without_a_name_is_left_out(name: str, tmp_path: Path) -> None:
    text = clicks().with_row_index("").write_csv()
    (tmp_path / "log.csv").write_text(name + text.removeprefix('""'))
    _, written, spec = first_spec(tmp_path)
    assert written.problems == () and set(spec.data.by_name) == {*clicks().columns} - {"time"}


def test_a_log_without_a_header_keeps_its_first_row(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "log.csv", include_header=False)
    draft, _, spec = first_spec(tmp_path)
    assert isinstance(spec.data.source, FileSource) and not spec.data.source.header
    assert draft.log.rows.height == 4_200
    assert isinstance(spec.data.clock, EventClock) and spec.data.clock.column == "6"
    assert (spec.data.user, spec.data.item, spec.data.label) == ("column_1", "column_2", "column_6")


@pytest.mark.parametrize(
    ("delimiter", "name"), [(";", "log.csv"), ("|", "log.csv"), ("\t", "log.txt"), (";", "log.data")]
)
def test_the_delimiter_is_detected(delimiter: str, name: str, tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / name, separator=delimiter)
    _, written, spec = first_spec(tmp_path)
    assert written.problems == () and spec.data.user == "user_id"


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_named_with_the_command_that_converts_the_file(encoding: str, tmp_path: Path) -> None:
    text = clicks().with_columns(category=pl.lit("Möbel")).write_csv()
    (tmp_path / "log.csv").write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=r"log\.csv: the text is .*; wanted UTF-8\. Convert it: iconv -f"):
        draft_spec(tmp_path, choose_likeliest)


def names_of(spec: Spec, location: Path) -> list[str]:
    assert isinstance(spec.data.source, FileSource)
    return [file.name for file in log_files(spec.data.source, location)]


def in_months(folder: Path, frame: pl.DataFrame, day: date) -> None:
    (folder / f"month={day:%Y-%m}" / f"day={day.day}").mkdir(parents=True, exist_ok=True)
    frame.write_csv(folder / f"month={day:%Y-%m}" / f"day={day.day}" / "part-0.csv")


def beside_items(folder: Path, frame: pl.DataFrame, day: date) -> None:
    if not (folder / "items.csv").exists():
        pl.DataFrame({"item_id": range(1, 121), "brand": [f"b{item % 9}" for item in range(120)]}).write_csv(
            folder / "items.csv"
        )
    frame.write_csv(folder / f"{day}.csv")


def packed(folder: Path, frame: pl.DataFrame, day: date) -> None:
    (folder / f"clicks {day:%b %d}.csv.gz").write_bytes(gzip.compress(frame.write_csv().encode()))


def test_a_column_that_the_log_and_a_table_share_is_declared_once(tmp_path: Path) -> None:
    log = clicks().with_columns(
        price=pl.col("item_id") + pl.when(pl.int_range(pl.len()) % 10 == 0).then(1.5).otherwise(0.5),  # it changes
        size=pl.col("item_id") % 11,
    )
    log.write_csv(tmp_path / "log.csv")
    numbers = pl.int_range(1, 121, eager=True)
    items = pl.DataFrame({"item_id": numbers, "category": [f"c{item % 7}" for item in range(1, 121)]})
    items = items.with_columns(price=numbers + 0.5, size=(numbers + 5) % 11, brand=numbers % 13)
    items.write_csv(tmp_path / "items.csv")
    devices = pl.DataFrame({"device": ["ios", "android", "web"], "size": [1, 2, 3]})  # another meaning
    devices.write_csv(tmp_path / "devices.csv")
    draft, written, spec = first_spec(tmp_path)
    assert written.problems == () and spec.data.rules.undeclared_columns == "ignore"
    table = next(table for table in spec.data.side_tables if table.name == "items")
    assert {column.name for table in spec.data.side_tables for column in table.columns} > {"device", "devices_size"}
    assert [column.name for column in table.columns] == ["item_id", "category", "items_size", "brand"]
    assert {"price", "size"} < {column.name for column in spec.data.columns}
    assert "category" not in {column.name for column in spec.data.columns}
    assert (
        draft.comments["category"] == "also in items, with the same value in 100% of the rows that find it: taken"
        " from there"
    )
    assert (
        "price, type: number}   # also in items, with the same value in 90% of the rows that find it: taken from"
        in (written.text)
    )


@pytest.mark.parametrize("write", [in_months, beside_items, packed])
def test_files_of_later_days_are_read_without_another_spec(
    write: Callable[[Path, pl.DataFrame, date], None], tmp_path: Path
) -> None:
    days = by_day(clicks(rows=9_000, days=30, start=datetime(2026, 2, 10, tzinfo=UTC)))
    for day, frame in days[:18]:
        write(tmp_path, frame, day)
    _, written, spec = first_spec(tmp_path)
    before = names_of(spec, tmp_path)
    assert len(before) == 18 and written.problems == ()
    for day, frame in days[18:]:
        write(tmp_path, frame, day)
    assert len(names_of(spec, tmp_path)) == 30 and set(before) < set(names_of(spec, tmp_path))


def test_a_sample_is_taken_of_all_days_of_a_log_in_many_files(tmp_path: Path) -> None:
    for day, frame in by_day(clicks(rows=60_000, days=30)):
        pl.concat([frame] * 10).write_parquet(tmp_path / f"{day}.parquet")
    draft, written, spec = first_spec(tmp_path)
    assert not draft.log.is_complete
    assert f"# The last 4 of 30 days hold {draft.test_rows:,} of 600,000 rows." in written.text
    assert len(draft.days) == 30 and sum(rows for _, rows in draft.days) == 600_000
    assert spec.data.split.test_days == 4


def test_a_newest_day_without_outcomes_is_named_and_loosens_no_rule(tmp_path: Path) -> None:
    last = START.date() + timedelta(days=DAYS - 1)
    late = pl.when(pl.col("time").dt.date() == last).then(0).otherwise(pl.col("clicked"))
    clicks(rows=14_000).with_columns(clicked=late).write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert draft.rules == {}
    (problem,) = written.problems
    assert problem.startswith(f"label rate: 0.0000 on {last} (median 0.")


@pytest.mark.parametrize(("part", "is_refused"), [(2, False), (12, True)])
def test_a_newest_day_that_an_export_cut_short_is_named_and_loosens_no_rule(
    part: int, is_refused: bool, tmp_path: Path
) -> None:
    last = START.date() + timedelta(days=DAYS - 1)
    log = clicks(rows=14_000).filter((pl.col("time").dt.date() != last) | (pl.col("time").dt.hour() < 24 // part))
    log.write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert draft.rules == {}
    rows = log.filter(pl.col("time").dt.date() == last).height
    if is_refused:
        (problem,) = written.problems
        assert problem.startswith(f"volume: {rows} rows on {last} (0.0")
    else:
        assert written.problems == ()
        assert any(f"its newest day, {last}, has {rows:,} rows, other days 9" in each for each in written.notices)


def test_a_day_that_was_exported_twice_is_named_and_loosens_no_rule(tmp_path: Path) -> None:
    log, day = clicks(), START.date() + timedelta(days=5)
    twice = pl.concat([log, log.filter(pl.col("time").dt.date() == day)])
    twice.write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert draft.rules == {}
    problem = written.problems[0]
    assert f"rows copy an earlier one, on 1 of 14 days, most of them on {day}; data.rules.max_dup" in problem


def test_copies_on_all_days_loosen_their_rule_with_the_figure(tmp_path: Path) -> None:
    log = clicks()
    pl.concat([log, log.gather_every(10)]).sort("time").write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert written.problems == ()
    assert draft.rules["max_duplicate_share"] == (
        "0.18",
        "9.09 % of the rows looked at are exact copies of earlier ones",
    )


def test_days_that_differ_throughout_loosen_the_volume_rule_with_the_figures(tmp_path: Path) -> None:
    quiet = [START.date() + timedelta(days=day) for day in (3, 8, 13, 18)]  # four weekdays
    log = clicks(rows=20_000, days=20)
    log.filter(~pl.col("time").dt.date().is_in(quiet) | (pl.int_range(pl.len()) % 12 == 0)).write_csv(
        tmp_path / "log.csv"
    )
    draft, written, _ = first_spec(tmp_path)
    assert written.problems == ()
    value, reason = draft.rules["min_volume_ratio"]
    assert float(value) < 0.1 and reason.startswith("days of this log have 8") and ", half of them above " in reason


def test_rows_of_clocks_that_were_ahead_are_named_and_loosen_no_rule(tmp_path: Path) -> None:
    is_ahead = pl.int_range(pl.len()) % 900 == 5
    ahead = pl.lit(datetime.now(UTC) + timedelta(days=400)) + pl.duration(days=pl.int_range(pl.len()) // 900)
    log = clicks(rows=9_000).with_columns(time=pl.when(is_ahead).then(ahead).otherwise("time"))
    log.write_csv(tmp_path / "log.csv")
    draft, written, spec = first_spec(tmp_path)
    assert draft.rules == {} and written.problems[0].startswith("volume: ")
    assert any("a clock was ahead. Declare data.clock.latest" in notice for notice in written.notices)
    clock = spec.data.clock.model_copy(update={"latest": datetime.now(UTC).date()})
    split = spec.data.split.model_copy(update={"warmup_days": 1, "validation_days": 2, "test_days": 2})
    assert check_sample(spec.data.model_copy(update={"clock": clock, "split": split}), tmp_path).problems == ()


def test_weekends_with_a_tenth_of_the_rows_are_usual(tmp_path: Path) -> None:
    log = clicks(rows=40_000, days=28)
    log = log.filter((pl.col("time").dt.weekday() < 6) | (pl.int_range(pl.len()) % 10 == 0))
    log.write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert draft.rules == {} and written.problems == ()
    collapsed = log.filter((pl.col("time").dt.date() != date(2026, 2, 28)) | (pl.int_range(pl.len()) % 20 == 0))
    collapsed.write_csv(tmp_path / "log.csv")
    _, written, _ = first_spec(tmp_path)
    assert ["on 2026-02-28" in problem for problem in written.problems] == [True]


def test_a_log_of_two_days_in_time_order_is_cut_into_equal_parts(tmp_path: Path) -> None:
    clicks(days=2).write_csv(tmp_path / "log.csv")
    draft, written, spec = first_spec(tmp_path)
    assert spec.data.clock.kind == "row_order" and written.problems == ()
    assert (spec.data.user, spec.data.item, spec.data.label) == ("user_id", "item_id", "clicked")
    assert draft.comments["time"] == "when, on too few days for a split by days: no feature"
    assert not any("time" in name for name in spec.features.names)


def test_a_log_of_two_days_without_an_order_is_refused_with_a_way_out(tmp_path: Path) -> None:
    clicks(days=2).sample(fraction=1, shuffle=True, seed=1).write_csv(tmp_path / "log.csv")
    message = (
        r"the log has 2 day\(s\) \(2026-02-02, 2026-02-03\); a split by days needs 4: .*; or sort the rows by time"
    )
    with pytest.raises(DataError, match=message):
        first_spec(tmp_path)


def test_a_log_of_which_much_would_be_left_out_is_refused(tmp_path: Path) -> None:
    days = by_day(clicks())
    for day, frame in days[:9]:
        frame.write_csv(tmp_path / f"{day}.csv")
    for day, frame in days[9:]:
        frame.select(buyer="user_id", sku="item_id", amount="price", at="time").write_csv(
            tmp_path / f"orders-{day}.csv"
        )
    with pytest.raises(
        DataError, match=r"3\d% of the bytes would be left out, --max-left-out is 20%.*\(5 files with buyer"
    ):
        draft_spec(tmp_path, choose_likeliest)
    assert len(draft_spec(tmp_path, choose_likeliest, max_left_out=0.5).left_out) == 1


def visits(requests: int = 1_400) -> pl.DataFrame:
    """Return a log of 90 shoppers in visits of an hour, with requests of four places each."""
    draw = np.random.default_rng(4)
    starts = np.sort(draw.integers(0, DAYS * 24, requests // 2)).repeat(2)
    shoppers = draw.integers(0, 90, requests // 2).repeat(2)
    products = draw.integers(1, 121, (requests, 4))
    return pl.DataFrame(
        {
            "session_id": [f"s{shopper}-{hour}" for shopper, hour in zip(shoppers, starts, strict=True)],
            "search": np.arange(requests),
            "shopper": shoppers + 10_000,
            "time": [START + timedelta(hours=int(hour), minutes=25 * (n % 2)) for n, hour in enumerate(starts)],
            "product": products.tolist(),
        }
    ).explode("product").with_columns(
        rank=pl.int_range(pl.len()) % 4 + 1,
        category=pl.format("c{}", pl.col("product") % 7),
        price=pl.col("product") * 1.5,
        clicked=pl.Series((draw.random(requests * 4) < 0.25).astype(np.int8)),
    )  # fmt: skip


def test_roles_are_assigned_by_the_values(tmp_path: Path) -> None:
    visits().with_columns(promoted=(pl.int_range(pl.len()) % 999 == 0).cast(pl.Int8)).write_csv(tmp_path / "log.csv")
    draft, written, spec = first_spec(tmp_path)
    data = spec.data
    assert (data.user, data.item, data.request, data.position) == ("shopper", "product", "search", "rank")
    assert data.by_name["rank"].known == "after"
    assert not any(name.startswith(("session", "search", "rank")) for name in spec.features.names)
    assert (
        "session_id, type: string}   # a visit, no feature: half of its values live 25 minutes at most" in written.text
    )
    assert "promoted" not in draft.comments  # hardly a row has another value
    for column in ("category", "price"):
        assert draft.comments[column].startswith("the item alone determines it: in a table of items")


FOREIGN_NAMES = {"search": "korb", "shopper": "kunde", "product": "artikel", "category": "gruppe", "price": "preis",
                 "clicked": "gekauft"}  # fmt: skip


def test_a_basket_is_no_item_though_no_name_identifies_the_item(tmp_path: Path) -> None:
    visits().select(*FOREIGN_NAMES, "time").rename(FOREIGN_NAMES).write_csv(tmp_path / "log.csv")
    data = first_spec(tmp_path)[2].data
    assert (data.user, data.item, data.request) == ("kunde", "artikel", "korb")


def test_a_column_that_says_whether_any_row_of_a_request_is_positive_is_an_outcome(tmp_path: Path) -> None:
    log = visits().drop("session_id")
    bought = (pl.col("price") * pl.col("clicked")).sum().over("search")
    honest = {"till": pl.col("search") % 7, "page_seen": pl.col("search").hash(seed=1) % 1_000}
    log.with_columns(total=bought, **honest).write_csv(tmp_path / "log.csv")
    draft, _, spec = first_spec(tmp_path)
    assert draft.outcomes.keys() == {"total", "rank"} - {draft.position}
    assert draft.outcomes["total"] == (
        "it is the same in all rows of a search, and says with an AUC of 1.00 whether any of them has clicked 1, as"
        " only outcomes do"
    )
    assert spec.data.by_name["total"].known == "after"


@pytest.mark.parametrize("left_out", [[], ["search"]], ids=["requests have a key", "rows of one moment"])
def test_a_column_that_numbers_the_rows_of_requests_is_their_position_whatever_its_name(
    left_out: list[str], tmp_path: Path
) -> None:
    late = pl.duration(seconds=0 if left_out else pl.col("rank"))  # rows of a request with a key may differ in time
    log = visits().with_columns(pl.col("time") + late)
    log.rename({"rank": "idx"}).drop(left_out).write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert spec.data.position == "idx" and not any("idx" in name for name in spec.features.names)


def test_a_number_that_repeats_within_requests_is_a_feature(tmp_path: Path) -> None:
    visits().rename({"rank": "idx"}).with_columns(pl.col("idx") // 2 + 1).write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert spec.data.position is None and "idx_code" in spec.features.names


def test_users_and_items_have_rates_in_the_categories_that_they_do_not_determine(tmp_path: Path) -> None:
    request = pl.int_range(pl.len()) // 4
    columns = {name: pl.format(name + " {}", number) for name, number in {
        "city": pl.col("shopper") % 4, "device": request % 3, "store": request % 40
    }.items()}  # fmt: skip
    visits().with_columns(**columns).write_csv(tmp_path / "log.csv")
    rates = {feature.key for feature in first_spec(tmp_path)[2].features.columns if feature.kind == "target"}
    assert {key for key in rates if len(key) == 2} == {
        ("shopper", "store"), ("shopper", "category"), ("shopper", "device"),  # a shopper has one city
        ("product", "city"), ("product", "device"),  # a product has one category, and one row in each of 40 stores
    }  # fmt: skip


def test_newest_days_of_users_with_few_rows_are_skipped(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "log.csv")
    text = first_spec(tmp_path)[1].text
    assert "name: user_id_rate, prior: 10, skip_days: 1}" in text and "name: item_id_rate, prior: 10}" in text
    clicks(rows=9_000).write_csv(tmp_path / "log.csv")  # 30 rows a user
    assert "skip_days" not in first_spec(tmp_path)[1].text


def test_rows_of_a_request_are_compared(tmp_path: Path) -> None:
    visits().write_csv(tmp_path / "log.csv")
    _, written, spec = first_spec(tmp_path)
    assert spec.data.slate is not None and spec.data.slate.column == "search"
    assert {"product_rate_slate_share", "price_slate_difference"} <= set(spec.features.names)
    assert spec.features.tile == "1d" and "# Rows of one request are compared with each other;" in written.text


def test_statistics_are_counted_by_the_hour_where_items_live_a_day(tmp_path: Path) -> None:
    of_the_day = pl.col("time").dt.ordinal_day() * 20 + pl.col("item_id") % 20
    clicks(rows=8_000).with_columns(item_id=of_the_day).write_csv(tmp_path / "log.csv")
    draft, written, spec = first_spec(tmp_path)
    assert draft.young_share == 1 and spec.features.tile == "1h"
    assert "# 100% of the rows have items of the last day" in written.text
    clicks().write_csv(tmp_path / "log.csv")
    assert first_spec(tmp_path)[2].features.tile == "1d"


def test_a_session_is_the_user_where_no_column_names_the_visitor(tmp_path: Path) -> None:
    visits().drop("shopper").write_csv(tmp_path / "log.csv")
    _, _, spec = first_spec(tmp_path)
    assert (spec.data.user, spec.data.request) == ("session_id", "search")


def test_places_from_0_are_outcomes(tmp_path: Path) -> None:
    visits().with_columns(pl.col("rank") - 1).write_csv(tmp_path / "log.csv")
    draft, _, spec = first_spec(tmp_path)
    assert spec.data.position is None and spec.data.by_name["rank"].known == "after"
    assert draft.outcomes["rank"].startswith("its place in the answer")


def test_a_log_without_names_has_the_clock_of_its_order(tmp_path: Path) -> None:
    clicks().with_columns(pl.col("time").dt.epoch("s")).write_csv(tmp_path / "log.csv", include_header=False)
    _, _, spec = first_spec(tmp_path)
    assert isinstance(spec.data.clock, EventClock)
    assert (spec.data.clock.column, spec.data.clock.unit) == ("6", "s")


def test_decimal_commas_are_numbers(tmp_path: Path) -> None:
    prices = clicks().with_columns((pl.col("price") * 100).round(2))
    text = prices["price"].map_elements(
        lambda price: f"{price:,.2f}".translate(str.maketrans(",.", ".,")), return_dtype=pl.String
    )
    prices.with_columns(text).write_csv(tmp_path / "log.csv", separator=";")
    draft, written, spec = first_spec(tmp_path)
    assert spec.data.by_name["price"].decimal_comma and written.problems == ()
    assert draft.log.column("price").values.to_list() == prices["price"].to_list()
    assert "price_log" in spec.features.names


def test_single_quotes_are_named(tmp_path: Path) -> None:
    clicks(600).with_columns(pl.format("'{}'", "device")).write_csv(tmp_path / "log.csv", quote_style="never")
    with pytest.raises(
        DataError, match=r"column 'device': its texts are in single quotes, such as '(ios|web|android)'"
    ):
        first_spec(tmp_path)


def test_the_error_of_a_spec_without_the_delimiter_names_the_delimiter(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "log.csv", separator=";")
    _, written, _ = first_spec(tmp_path)
    without = parse_spec(written.text.replace(', delimiter: ";"', "")).data
    problems = check_sample(without, tmp_path).problems
    assert any('between 7 names or more; declare how its fields are separated: delimiter: ";"' in p for p in problems)


def test_a_crawler_is_named(tmp_path: Path) -> None:
    crawled = clicks(1_000).with_columns(user_id=pl.lit(9_999, pl.Int64), clicked=pl.lit(0, pl.Int8))
    pl.concat([clicks(), crawled]).sort("time").write_csv(tmp_path / "log.csv")
    _, written, _ = first_spec(tmp_path)
    assert (
        "The log: user 9999 has 19.2% of the rows, 0.0% positive; a crawler's rows are best left out."
        in written.notices
    )


def test_retrieval_is_offered_where_a_table_lists_the_items(tmp_path: Path) -> None:
    clicks().select("user_id", "item_id", "clicked", "time").write_csv(tmp_path / "log.csv")
    titles = [f"What is said of item {item} nobody knows {item * 7919}" for item in range(1, 121)]
    released = [date(2024, 1, 1 + item % 28) for item in range(1, 121)]
    pl.DataFrame({"item_id": range(1, 121), "title": titles, "released": released}).write_csv(tmp_path / "items.csv")
    _, written, spec = first_spec(tmp_path)
    assert spec.retrieval is None
    assert "type: string}   # text, no feature: a vector column with `embedding: {text: ...}` makes one" in written.text
    retrieval = with_offered_retrieval(written.text).retrieval
    assert retrieval is not None
    assert (retrieval.candidates, set(retrieval.sources)) == (60, {"popular", "new", "together"})
    assert retrieval.sources["new"].column == "released"  # type: ignore[attr-defined]


def with_offered_retrieval(text: str, *without: str) -> Spec:
    """Return the spec with the section that it offers, and without the lines that hold a text."""
    before, offered = text.split("# retrieval:\n")
    offered, after = offered.split("{kind: co_visitation}\n", 1)
    section = "\n".join(
        line.removeprefix("# ") for line in f"# retrieval:\n{offered}{{kind: co_visitation}}".splitlines()
    )
    lines = f"{before}{section}\n{after}".replace(', "*_slate_*"', "").splitlines()
    return parse_spec("\n".join(line for line in lines if not any(word in line for word in without)))


def test_the_offered_retrieval_gives_candidates_what_the_log_says_of_items(tmp_path: Path) -> None:
    log = clicks().with_columns(brand=pl.format("b{}", pl.col("item_id") % 9))
    log.write_csv(tmp_path / "log.csv")
    _, written, _ = first_spec(tmp_path)
    assert "# The log names the items, so that requests can be answered with items" in written.text
    spec = with_offered_retrieval(written.text)
    assert spec.retrieval is not None
    assert (spec.retrieval.context, spec.retrieval.item_columns) == (("device", "price"), ("category", "brand"))
    assert spec.notices == ()


def test_an_expression_is_offered_that_the_trees_read(tmp_path: Path) -> None:
    clicks().write_csv(tmp_path / "log.csv")
    _, written, spec = first_spec(tmp_path)
    value = "LN(price / AVG(price) OVER (PARTITION BY category))"
    offered = f"# - {{kind: expression, name: price_in_category_log, value: {value}}}"
    assert offered in written.text and "price_in_category_log" not in spec.features.names
    accepted = parse_spec(written.text.replace(offered, offered.removeprefix("# ")))
    assert "price_in_category_log" in match_features(accepted.models["trees"].reads, accepted.features.names)


def test_what_differs_among_the_items_of_a_request_is_no_value_of_the_request(tmp_path: Path) -> None:
    is_late = pl.col("time") > START + timedelta(days=DAYS / 2)
    log = visits().with_columns(price=pl.when(is_late).then(pl.col("price") * 0.8).otherwise("price"))
    devices = np.random.default_rng(6).choice(["ios", "web"], log["search"].n_unique())
    log.with_columns(device=pl.lit(pl.Series(devices)).gather(pl.col("search"))).write_csv(tmp_path / "log.csv")
    draft, written, _ = first_spec(tmp_path)
    assert "price" not in draft.determined_by  # it changed
    spec = with_offered_retrieval(written.text, "kind: slate")
    assert spec.retrieval is not None
    assert (spec.retrieval.context, spec.retrieval.item_columns) == (("device",), ("category", "price"))
    assert spec.notices == ()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_lists_of_items_beside_lists_of_labels_become_rows(ending: str, tmp_path: Path) -> None:
    columns = pl.col("product", "clicked", "rank")
    answers = visits().group_by("search", maintain_order=True).agg(pl.col("shopper", "time").first(), columns)
    if ending == "csv":
        answers.with_columns(columns.cast(pl.List(pl.String)).list.join("|")).write_csv(tmp_path / "log.csv")
    else:
        answers.write_parquet(tmp_path / "log.parquet")
    draft, written, spec = first_spec(tmp_path)
    data = spec.data
    assert data.explode is not None and set(data.explode.columns) == {"product", "clicked", "rank"}
    assert (data.label, data.user, data.item, data.request) == ("clicked", "shopper", "product", "search")
    assert (data.position, written.problems, draft.log.rows.height) == ("rank", (), visits().height)
