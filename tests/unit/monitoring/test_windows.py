"""Windows of live traffic, read from logs with unordered, repeated, late and torn parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from monitoring.checks import check_window
from monitoring.reference.distributions import Bins
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.known_columns import SLATE_SIZE
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import WindowReport
from monitoring.windows.spans import Span
from monitoring.windows.windows import Windows
from shortlist.contracts import Columns, ShortlistError
from shortlist.serving.log.log_rows import declared_rows
from shortlist.serving.log.log_writer import is_sampled
from shortlist.serving.log.logs import item_type, outcome_schema, prediction_schema
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.serving import Serving
from tests.served_log import write_rows

DAY = datetime(2026, 3, 2, tzinfo=UTC)
NOON = DAY + timedelta(hours=12)
MONTH_LATER = DAY + timedelta(days=30)
TODAY = Span(DAY, DAY + timedelta(days=1))
DECLARED: dict[str, Any] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "made", "type": "date"},
        {"name": "status", "type": "integer"},
        {"name": "score", "type": "number"},
        {"name": "query", "type": "vector"},
        {"name": "seconds", "type": "number", "known": "after"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "user": "user_id",
    "item": "item_id",
    "clock": {"kind": "column", "column": "time", "unit": "s"},
    "side_tables": [
        {
            "name": "items",
            "path": "items.csv",
            "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "string"},
                {"name": "maker", "type": "integer"},
                {"name": "topics", "type": "tags"},
                {"name": "sold", "type": "integer", "known": "after"},
            ],
        }
    ],
}
FIRST_COLUMNS = ["request_id", "row", "user", "version", "track", "score", "label", "event_time", "impression_weight"]


def with_page(*pages: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration with other columns in place of `page`."""
    return {**DECLARED, "columns": [*DECLARED["columns"][:2], *pages, *DECLARED["columns"][3:]]}


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


@dataclass
class Traffic:
    """The prediction log and the outcome log of a spec."""

    folder: Path
    declared: dict[str, Any] = field(default_factory=lambda: DECLARED)

    @property
    def paths(self) -> ServingPaths:
        return ServingPaths.for_spec(self.folder / "runs", "shop")

    @property
    def data(self) -> Data:
        return Data.model_validate(self.declared)

    @property
    def log(self) -> Path:
        side = self.folder / "log" / "side"
        side.mkdir(parents=True, exist_ok=True)
        topics = pl.Series([["a", "b"], []], dtype=pl.List(pl.String))
        items = pl.DataFrame({"item_id": ["i0", "i1"], "maker": [7, 8], "topics": topics, "sold": [5, 6]})
        items.write_parquet(side / "items.parquet")
        return self.folder / "log"

    def answer(self, *answers: dict[str, Any], process: int = 0) -> Path:
        """Write a record of the prediction log; by default an answer at noon about two items."""
        common = {"time": NOON, "user": "1", "track": "stable", "version": 3, "status": 200, "digest": "0" * 16}
        answer_columns = {"latency_ms": 4.0, "degraded": False, "items": ["i0", "i1"], "scores": [0.25, 0.5]}
        rows = [{**common, **answer_columns, **answer} for answer in answers]
        return write_rows(self.paths.predictions, prediction_schema(self.data), rows, process)

    def outcome(self, *outcomes: tuple[Any, ...], process: int = 0) -> Path:
        """Write a record of the outcome log: request, row, label, and the time if it is not a minute after noon."""
        rows = [
            {"time": (*outcome, NOON + minutes(1))[3], "request_id": outcome[0], "row": outcome[1], "label": outcome[2]}
            for outcome in outcomes
        ]
        return write_rows(self.paths.outcomes, outcome_schema(item_type(self.data)), rows, process)

    def windows(
        self, now: datetime = MONTH_LATER, sampling: float = 1.0, backends: Sequence[str] = (), **settings: Any
    ) -> Windows:
        declared = {"window": {"maturity_hours": 1.0, **settings}}
        serving = Serving.model_validate({"log": {"sampling": sampling}, "backends": backends})
        return Windows(self.paths, self.data, self.log, Monitoring.model_validate(declared), now, serving)

    def read(self, span: Span = TODAY, sampling: float = 1.0, **settings: Any) -> LiveWindow:
        return self.windows(sampling=sampling, **settings).read(span)


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    return Traffic(tmp_path)


def outcomes_of(window: LiveWindow) -> list[tuple[str, int, int]]:
    return sorted(window.rows.select("request_id", "row", "label").rows())


def test_rows_hold_user_item_and_inputs_as_sent(traffic: Traffic) -> None:
    traffic.answer({
        "request_id": "a", "event_time": [NOON - minutes(1), NOON], "user_id": [1], "page": ["home", None],
        "price": [1.5], "words": [["x", "y"], []], "made": [date(2026, 3, 1)], "sent:status": [9], "score": None,
    })  # fmt: skip
    traffic.outcome(("a", 0, 0), ("a", 1, 1))
    window = traffic.read()
    assert (window.start, window.end, window.requests, window.coverage) == (*TODAY, 1, 1.0)
    first, second = window.rows.to_dicts()
    request_columns = {"request_id": "a", "user": "1", "version": 3, "track": "stable", "impression_weight": 1.0}
    everywhere = {"user_id": 1, "price": 1.5, "made": date(2026, 3, 1), "status": 9}
    assert first == {
        **request_columns, "row": 0, "score": 0.25, "label": 0, "event_time": NOON - minutes(1), **everywhere,
        "item_id": "i0", "page": "home", "words": ["x", "y"], "maker": 7, "topics": ["a", "b"],
    }  # fmt: skip
    assert second == {
        **request_columns, "row": 1, "score": 0.5, "label": 1, "event_time": NOON, **everywhere, "item_id": "i1",
        "page": None, "words": None, "maker": 8, "topics": None,
    }  # fmt: skip
    assert window.scored.rows() == [(3, 1.0, 0.25), (3, 1.0, 0.5)]


def test_the_slate_size_counts_all_candidates(traffic: Traffic) -> None:
    traffic.declared = {**DECLARED, "slate": {"gap_seconds": 60}}
    traffic.answer({"request_id": "a"}, {"request_id": "b", "items": ["i0"], "scores": [0.5]})
    traffic.outcome(("a", 1, 1), ("b", 0, 0))
    sizes = traffic.read().rows.sort("request_id").select("request_id", "row", SLATE_SIZE).rows()
    assert sizes == [("a", 1, 2.0), ("b", 0, 1.0)]


def test_rows_have_the_types_of_the_valid_log(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    expected = {
        "request_id": pl.String(), "row": pl.Int32(), "user": pl.String(), "version": pl.Int64(), "track": pl.String(),
        "score": pl.Float32(), "label": pl.Int8(), "event_time": pl.Datetime("us", "UTC"),
        "impression_weight": pl.Float32(), "user_id": pl.Int64(), "item_id": pl.String(), "page": pl.String(),
        "price": pl.Float64(), "words": pl.List(pl.String()),
        "made": pl.Date(), "status": pl.Int64(), "maker": pl.Int64(), "topics": pl.List(pl.String()),
    }  # fmt: skip
    empty_window = traffic.read()  # no outcome
    assert dict(empty_window.rows.schema) == expected
    scored = {"version": pl.Int64(), "impression_weight": pl.Float32(), "score": pl.Float32()}
    assert dict(empty_window.scored.schema) == scored
    traffic.outcome(("a", 0, 0))
    assert dict(traffic.read().rows.schema) == expected


def test_the_impression_weight_is_the_inverse_of_the_logged_share(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "sampling": 0.25}, {"request_id": "b", "sampling": None})
    traffic.outcome(("a", 0, 0), ("b", 1, 1))
    window = traffic.read(sampling=0.5)  # now; the log of the second answer does not say it
    assert window.rows.select("request_id", "impression_weight").rows() == [("a", 4.0), ("b", 2.0)]
    assert sorted(window.scored.rows()) == [(3, 2.0, 0.25), (3, 2.0, 0.5), (3, 4.0, 0.25), (3, 4.0, 0.5)]


def test_inputs_that_were_not_sent_are_null(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "user": None, "items": None})
    traffic.outcome(("a", 0, 1))
    (row,) = traffic.read().rows.to_dicts()
    expected = {
        "request_id": "a",
        "row": 0,
        "version": 3,
        "track": "stable",
        "score": 0.25,
        "label": 1,
        "event_time": NOON,
    }
    expected |= {"impression_weight": 1.0}
    assert {name: value for name, value in row.items() if value is not None} == expected  # the time is the answer's


def test_rows_of_a_request_may_have_different_users(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "user": None, "user_id": [7, 8]})
    traffic.outcome(("a", 0, 1), ("a", 1, 0))
    assert traffic.read().rows.select("user", "user_id").rows() == [("7", 7), ("8", 8)]


def test_a_log_without_users_items_and_side_tables(traffic: Traffic) -> None:
    changes = {"user": None, "item": None, "side_tables": []}
    traffic.declared = {**DECLARED, **changes, "columns": DECLARED["columns"][2:], "clock": {"kind": "row_order"}}
    traffic.answer({"request_id": "a", "user": None, "items": None, "page": ["home"]})
    traffic.outcome(("a", 0, 0), ("a", 1, 1))
    rows = traffic.read().rows
    assert rows["page"].to_list() == ["home", "home"]
    assert rows.columns == [*FIRST_COLUMNS, "page", "price", "words", "made", "status"]


def test_windows_are_made_by_event_time(traffic: Traffic) -> None:
    traffic.answer(
        {"request_id": "a", "event_time": [NOON - timedelta(days=9), NOON]},  # about the first of its rows
        {"request_id": "b", "event_time": [DAY - minutes(1)]},
        {"request_id": "c", "event_time": [DAY]},
        {"request_id": "d", "event_time": [None, NOON]},
        {"request_id": "e"},  # about the time of the answer
        {"request_id": "f", "status": 500},
    )
    windows = traffic.windows(max_age_hours=None)
    days = {span.start: windows.read(span).requests for span in windows.find().mature}
    assert days == {DAY - timedelta(days=9): 1, DAY - timedelta(days=1): 1, DAY: 3}
    assert windows.find().waiting == ""


def test_clients_cannot_open_windows_in_the_past(traffic: Traffic) -> None:
    """A request whose event time lies too long before its answer counts at the time of the answer."""
    traffic.answer(
        *({"request_id": f"a{days}", "event_time": [NOON - timedelta(days=days)]} for days in range(2, 400)),
        {"request_id": "late", "event_time": [NOON - timedelta(hours=23)]},
        {"request_id": "longest", "event_time": [NOON - timedelta(hours=24)]},
        {"request_id": "first", "time": NOON - timedelta(days=4)},
    )
    windows = traffic.windows()
    counts = [(span.start, windows.read(span).requests) for span in windows.find().mature]
    assert counts == [(DAY - timedelta(days=4), 1), (DAY - timedelta(days=1), 2), (DAY, 398)]
    assert len(traffic.windows(max_age_hours=None).find().mature) == 399  # as a log is replayed
    assert len(traffic.windows(max_age_hours=72.5).find().mature) == 5  # another bound is another index


def test_no_window_is_opened_before_the_first_answer(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"}, {"request_id": "back", "event_time": [NOON - timedelta(hours=6)]})
    windows = traffic.windows(hours=6)
    (span,) = windows.find().mature
    assert (span.start, windows.read(span).requests) == (NOON, 1)


def honest_day(traffic: Traffic) -> None:
    """Write a request of each of 1 000 users, from an address of its own."""
    requests = [
        {"request_id": f"h{number}", "user": f"u{number}", "user_id": [number], "price": [1.5],
         "sender": f"10.0.{number // 250}.{number % 250}", "time": NOON + minutes(number / 2)}
        for number in range(1_000)
    ]  # fmt: skip
    traffic.answer(*requests)
    traffic.outcome(*((request["request_id"], 0, 1, request["time"] + minutes(1)) for request in requests))


HOSTILE: dict[str, dict[str, Any]] = {
    "200 requests dated 10 minutes ahead": {"event_time": [NOON + minutes(10)]},
    "without outcomes": {},
    "without a declared column": {"page": None, "price": None},
}


@pytest.mark.parametrize(
    ("sender", "has_invented_users"),
    [("192.0.2.7", False), ("192.0.2.7", True), ("2001:db8:0:{:x}::1", True), (None, True)],  # None: past the gateway
)
@pytest.mark.parametrize("attack", HOSTILE)
def test_one_client_moves_no_window_by_more_than_a_hundredth(
    traffic: Traffic, attack: str, sender: str | None, has_invented_users: bool
) -> None:
    honest_day(traffic)
    calm = traffic.read()
    traffic.answer(
        *(
            {"request_id": f"x{number}", "user": f"x{number * has_invented_users}", "user_id": [9], "time": NOON,
             "sender": sender and sender.format(number), **HOSTILE[attack]}
            for number in range(10_000)
        )
    )  # fmt: skip
    if attack != "without outcomes":
        traffic.outcome(*((f"x{number}", 0, 0) for number in range(10_000)))
    window = traffic.read()
    assert (calm.requests, calm.coverage, calm.future) == (1_000, 1.0, 0)
    assert window.requests <= 1_011
    assert window.answered_rows <= 2_022
    assert window.coverage >= 0.989
    assert window.future <= 0.0101 * window.answered_rows
    price = ColumnReference(
        bins=Bins(kind="numeric", edges=(0.0, 10.0)), counts=((50_000, 0, 0),), nulls=0, rows=50_000
    )
    reference = Reference("shop", (NOON.date(),), {"price": price}, {}, {}, pl.DataFrame())
    usual = [
        WindowReport(
            spec="shop", start=window.start - timedelta(days=days), end=window.end - timedelta(days=days), made=NOON,
            champion=3, versions={3: 1}, requests=1_000, rows=1, coverage=1.0,
        )
        for days in (1, 2, 3)
    ]  # fmt: skip
    assert check_window(window, reference, usual, Monitoring())[0] == ()


def test_requests_of_a_server_that_vouches_for_its_users_all_count(traffic: Traffic) -> None:
    honest_day(traffic)
    requests = [{"request_id": f"s{n}", "user": f"s{n}", "user_id": [n], "sender": "shop"} for n in range(4_000)]
    traffic.answer(*requests)
    assert traffic.read().requests == 1_010
    assert traffic.read(backends=["shop"]).requests == 5_000


@pytest.mark.parametrize("sender", ["192.0.2.7", "shop"])
def test_one_user_or_request_moves_no_window_by_more_than_a_hundredth_whoever_vouches(
    traffic: Traffic, sender: str
) -> None:
    honest_day(traffic)
    calm = traffic.read(backends=["shop"])
    traffic.answer(*({"request_id": f"x{number}", "user": "x", "sender": sender} for number in range(4_000)))
    rows = 1_500
    traffic.answer(
        {"request_id": "long", "user": "y", "sender": "shop", "items": ["i0"] * rows, "scores": [0.5] * rows}
    )
    window = traffic.read(backends=["shop"])
    assert calm.requests < window.requests <= 1_011
    assert window.answered_rows <= 1.0102 * calm.answered_rows


def test_event_times_of_a_generated_log_may_be_old(traffic: Traffic) -> None:
    traffic.declared = {**DECLARED, "source": {"kind": "generated"}}
    traffic.answer({"request_id": "a", "event_time": [NOON - timedelta(days=9)]})
    assert [span.start for span in traffic.windows().find().mature] == [DAY - timedelta(days=9)]


def test_windows_begin_at_midnight_of_the_clocks_timezone(traffic: Traffic) -> None:
    clock = {**DECLARED["clock"], "timezone": "America/New_York"}
    traffic.declared = {**DECLARED, "clock": clock}
    traffic.answer(
        *({"request_id": f"a{hour}", "time": datetime(2026, 3, 8, 5, tzinfo=UTC) + timedelta(hours=hour)}
          for hour in range(48))
    )  # fmt: skip
    windows = traffic.windows()
    spans = windows.find().mature
    assert [span.start.hour for span in spans] == [5, 4, 4]  # 8 March has 23 hours
    assert [windows.read(span).requests for span in spans] == [23, 24, 1]
    quarters = traffic.windows(hours=6)
    assert [quarters.read(span).requests for span in quarters.find().mature] == [5, 6, 6, 6, 6, 6, 6, 6, 1]


def test_only_mature_windows_are_available(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"}, {"request_id": "b"})
    end = TODAY.end
    early = traffic.windows(end + minutes(59)).find()
    assert early.mature == ()
    assert early.waiting == (
        "the window from 2026-03-02 00:00 to 2026-03-03 00:00 UTC has 2 requests so far and is judged from"
        f" 2026-03-03 01:00 on, if {Monitoring().window.min_rows:,} rows have an outcome by then"
    )
    assert traffic.windows(end + minutes(60)).find().mature == (TODAY,)


def test_a_missing_log_is_named(traffic: Traffic) -> None:
    with pytest.raises(ShortlistError, match=r"shop/predictions: there is no prediction log yet.*serve the spec"):
        traffic.windows().find()


def test_a_missing_side_table_is_named(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    traffic.outcome(("a", 0, 1))
    windows = traffic.windows()
    (traffic.folder / "log" / "side" / "items.parquet").unlink()
    with pytest.raises(ShortlistError, match=r"items\.parquet: side table 'items' cannot be read"):
        windows.read(TODAY)


def test_a_torn_file_is_skipped_and_reported(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    torn, spoilt = traffic.answer({"request_id": "b"}), traffic.outcome(("a", 0, 1))
    traffic.outcome(("a", 1, 0))
    whole = torn.read_bytes()
    for path in (torn, spoilt):
        path.write_bytes(path.read_bytes()[:-100])
    windows = traffic.windows()
    available, window = windows.find(), windows.read(TODAY)
    assert available.mature == (TODAY,)
    assert available.waiting.startswith("1 file(s) or record(s) of the prediction log are left out: ")
    assert (window.requests, outcomes_of(window)) == (1, [("a", 1, 0)])
    prediction_problem, outcome_problem = window.unreadable
    assert prediction_problem.startswith(f"{torn}: ")
    assert outcome_problem.startswith(f"{spoilt}: ")
    assert "restore the file from a backup" in outcome_problem
    torn.write_bytes(whole)
    restored = traffic.windows()
    assert (restored.find().waiting, restored.read(TODAY).requests) == ("", 2)


def test_a_log_without_readable_files_is_an_error(traffic: Traffic) -> None:
    torn = traffic.answer({"request_id": "a"})
    torn.write_bytes(b"")
    with pytest.raises(ShortlistError, match=r"no file of the prediction log can be read.*\.parquet"):
        traffic.windows().find()


def test_a_record_of_another_schema_is_left_out_and_reported(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    changed = Traffic(traffic.folder, with_page({"name": "page", "type": "integer"}))
    changed.answer({"request_id": "b", "page": [1]}, process=1)
    windows = traffic.windows()
    message, window = windows.find().waiting, windows.read(TODAY)
    assert (window.requests, window.unreadable) == (1, ())  # one bad record breaks no window
    assert "stream-001-" in message and "left out, because it does not fit" in message


def test_a_log_of_an_older_version_with_fewer_columns_is_read(traffic: Traffic) -> None:
    older_log = Traffic(traffic.folder, with_page())
    older_log.answer({"request_id": "a"}, process=1)
    traffic.answer({"request_id": "b", "page": ["home"]})
    traffic.outcome(("a", 0, 0), ("b", 0, 1))
    window = traffic.read()
    assert window.unreadable == ()
    assert window.rows.sort("request_id")["page"].to_list() == [None, "home"]


def test_rows_have_the_outcomes_and_scores_of_further_labels(traffic: Traffic) -> None:
    traffic.declared = {**DECLARED, "labels": {"long": {"column": "seconds", "positive": {"at_least": 20}}}}
    traffic.answer({"request_id": "a", "score_long": [0.1, 0.2]}, {"request_id": "b"})
    outcome_columns = {"seconds": traffic.data.by_name["seconds"]}
    answers = [("a", 0, 1, 30.0), ("a", 1, 1, 5.0), ("b", 0, 0, None), ("b", 1, 1, 25.0)]
    outcomes = [
        {"time": NOON + minutes(1), "request_id": request, "row": row, "label": label, "seconds": seconds}
        for request, row, label, seconds in answers
    ]
    schema = outcome_schema(item_type(traffic.data), outcome_columns)
    write_rows(traffic.paths.outcomes, schema, outcomes)
    rows = traffic.read().rows.sort("request_id", "row")
    assert rows["label_long"].to_list() == [1, 0, None, 1]
    assert rows["score_long"].to_list() == [pytest.approx(0.1), pytest.approx(0.2), None, None]  # b: an earlier model
    assert rows["label"].to_list() == [1, 1, 0, 1]


def test_outcomes_without_the_column_of_a_further_label_are_read(traffic: Traffic) -> None:
    traffic.declared = {**DECLARED, "labels": {"long": {"column": "seconds", "positive": {"at_least": 20}}}}
    traffic.answer({"request_id": "a", "score_long": [0.1, 0.2]})
    traffic.outcome(("a", 0, 1))
    rows = traffic.read().rows
    assert (rows["label"].to_list(), rows["label_long"].to_list()) == ([1], [None])


def test_outcomes_may_come_before_their_predictions(traffic: Traffic) -> None:
    traffic.outcome(("a", 0, 1, NOON - minutes(1)))  # a clock that is behind
    windows = traffic.windows()
    traffic.answer({"request_id": "a"}, process=2)
    assert outcomes_of(windows.read(TODAY)) == [("a", 0, 1)]


def test_the_last_outcome_of_a_row_counts_and_duplicates_are_counted(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"}, {"request_id": "b"})
    traffic.outcome(("a", 0, 1, NOON + minutes(3)), ("b", 0, 0), process=1)
    traffic.outcome(("a", 0, 0, NOON + minutes(2)), ("a", 0, 0, NOON + minutes(1)), ("b", 0, 1))
    window = traffic.read()
    assert outcomes_of(window) == [("a", 0, 1), ("b", 0, 1)]  # of equally old ones, the one that was committed last
    assert (window.duplicates, window.coverage, window.orphans) == (3, 1.0, 0)


def test_outcomes_that_name_an_item_alone_are_of_its_row(traffic: Traffic) -> None:
    """A server that did not give the answer received them, without their index."""
    traffic.answer({"request_id": "a"}, {"request_id": "b"})
    common = {"time": NOON + minutes(1), "label": 1}
    events = [{"request_id": "a", "item": "i1"}, {"request_id": "b", "item": "i0"}, {"request_id": "b", "item": "i9"}]
    write_rows(traffic.paths.outcomes, outcome_schema(item_type(traffic.data)), [common | event for event in events])
    window = traffic.read()
    assert outcomes_of(window) == [("a", 1, 1), ("b", 0, 1)]
    assert (window.coverage, window.orphans) == (1.0, 1)


def test_late_outcomes_are_counted_and_joined(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"}, {"request_id": "b"})
    on_time = TODAY.end + minutes(60)
    traffic.outcome(("a", 0, 1, on_time), ("b", 0, 1, on_time + timedelta(microseconds=1)))
    window = traffic.read()
    assert (window.late, outcomes_of(window)) == (1, [("a", 0, 1), ("b", 0, 1)])


def test_outcomes_of_a_replayed_log_are_not_late(traffic: Traffic) -> None:
    played = NOON + timedelta(days=200)
    traffic.answer({"request_id": "a", "time": played, "event_time": [NOON]})
    traffic.outcome(("a", 0, 1, played + minutes(1)), ("a", 1, 1, played + timedelta(hours=14)))
    window = traffic.read(max_age_hours=None)
    assert (window.late, window.requests, window.rows.height) == (1, 1, 2)  # 12 h to the end, 1 h to be mature


def test_outcomes_without_a_prediction_are_orphans(traffic: Traffic) -> None:
    yesterday = NOON - timedelta(days=1)
    traffic.answer({"request_id": "before", "time": yesterday}, process=0)
    traffic.answer(
        {"request_id": "a"}, {"request_id": "b", "time": NOON + minutes(60)}, {"request_id": "f", "status": 500}
    )
    traffic.outcome(
        ("a", 0, 1), ("a", 2, 1), ("a", -1, 1),  # there is no such row
        ("nobody", 0, 1), ("nobody", 1, 0), ("before", 0, 1), ("f", 0, 0),
        ("nobody", 0, 1, NOON + timedelta(days=3)),  # of another time
    )  # fmt: skip
    window = traffic.read()
    assert (window.orphans, outcomes_of(window)) == (4, [("a", 0, 1)])
    assert traffic.read(Span(DAY - timedelta(days=1), DAY)).orphans == 0


def test_outcomes_of_answers_that_are_not_logged_are_no_orphans(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"}, {"request_id": "b", "time": NOON + minutes(60)})
    names = [f"r{number}" for number in range(40)]
    traffic.outcome(*((name, 0, 1) for name in names))
    assert traffic.read().orphans == 40
    missing = sum(is_sampled(name, 0.25) for name in names)
    assert 0 < missing < 40
    assert traffic.read(sampling=0.25).orphans == missing


def test_rows_in_the_future_are_counted_and_left_out(traffic: Traffic) -> None:
    traffic.answer(
        {"request_id": "a", "event_time": [NOON + minutes(4), NOON + minutes(6)]},
        {"request_id": "b", "event_time": [NOON + timedelta(days=400)]},  # of all its rows
        {"request_id": "c", "event_time": [NOON]},
    )
    traffic.outcome(*((name, row, 1) for name in "abc" for row in (0, 1)))
    windows = traffic.windows()
    assert windows.find().mature == (TODAY,)  # they are about the time of their answer
    window = windows.read(TODAY)
    assert (window.requests, window.answered_rows, window.future) == (3, 6, 3)
    assert outcomes_of(window) == [("a", 0, 1), ("c", 0, 1), ("c", 1, 1)]
    assert window.rows[Columns.TIME].max() == NOON  # row 0 of "a" counts at the answer


def test_rows_have_version_and_track(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "scores": [0.25]}, process=1)
    traffic.answer({"request_id": "b", "version": 4, "track": "canary", "scores": [0.75]}, process=1)
    traffic.outcome(("a", 0, 0), ("b", 0, 1))
    window = traffic.read()
    rows = window.rows.select("request_id", "version", "track", "score").sort("request_id")
    assert rows.rows() == [("a", 3, "stable", 0.25), ("b", 4, "canary", 0.75)]
    assert sorted(window.scored.rows()) == [(3, 1.0, 0.25), (4, 1.0, 0.75)]


def test_failed_answers_and_requests_without_rows_need_no_outcome(traffic: Traffic) -> None:
    traffic.answer(
        {"request_id": "a"}, {"request_id": "b"}, {"request_id": "c", "status": 500, "scores": None},
        {"request_id": "d", "items": [], "scores": []},
    )  # fmt: skip
    traffic.outcome(("a", 1, 1), ("c", 0, 1), ("b", 0, None))
    window = traffic.read()
    assert (window.requests, window.coverage, window.orphans) == (3, 0.5, 0)
    assert outcomes_of(window) == [("a", 1, 1)]
    assert window.scored.height == 4


def test_answers_with_the_same_id_are_one_request(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "scores": [0.25, 0.5]}, {"request_id": "a", "scores": [0.75, 0.5]})
    traffic.answer({"request_id": "a", "scores": [0.9, 0.9]})
    traffic.outcome(("a", 0, 1))
    window = traffic.read()
    assert (window.requests, window.rows["score"].to_list()) == (1, [0.25])


def test_requests_with_guessed_ids_erase_no_request(traffic: Traffic) -> None:
    """They are answered before those whose ids they have, with fewer rows."""
    names = [f"r{number}" for number in range(20)]
    guessed = {"sender": "192.0.2.7", "user": "9", "time": NOON - minutes(1), "items": ["i0"], "scores": [0.125]}
    traffic.answer(*({"request_id": name, "sender": "10.0.0.1"} for name in names), process=1)
    traffic.outcome(*((name, row, row) for name in names for row in (0, 1)))
    calm = traffic.read()
    traffic.answer(*({"request_id": name, **guessed} for name in names), process=2)
    window = traffic.read()
    assert (calm.requests, window.requests, window.coverage) == (20, 40, 1.0)
    assert window.rows.filter(pl.col("user") == "1").equals(calm.rows)
    assert (window.rows.height, window.scored.height) == (60, 60)
    assert (window.orphans, window.duplicates, window.late) == (calm.orphans, calm.duplicates, calm.late) == (0, 0, 0)


def test_ids_do_not_say_which_requests_are_in_the_sample_of_a_large_window(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"r{number}" for number in range(1_200)]
    traffic.answer(*({"request_id": name, "user": name, "scores": [0.5]} for name in names))
    traffic.outcome(*((name, 0, 0) for name in names))
    samples = []
    for key in ("a", "b", "a"):
        monkeypatch.setenv("SHORTLIST_SAMPLING_KEY", key)
        samples.append({*traffic.read(max_rows=1_000).rows["request_id"]})
    assert samples[0] == samples[2] != samples[1]
    assert [len(sample) for sample in samples] == [1_000] * 3


def test_a_request_logged_by_two_replicas_counts_once(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic.answer({"request_id": "a", "scores": [0.25, 0.5]}, process=1)
    repeated = {"request_id": "a", "scores": [0.25, 0.5], "time": NOON + timedelta(seconds=2)}
    traffic.answer(repeated, {"request_id": "b", "scores": [0.75, 0.125]}, process=2)
    traffic.outcome(("a", 0, 1), ("a", 1, 0), ("b", 0, 0))
    for rows_at_once in (200_000, 1):  # both in one piece, and each in a piece of its own
        monkeypatch.setattr("shortlist.serving.log.serving_log.ROWS_PER_FRAME", rows_at_once)
        window = traffic.read()
        assert window.requests == 2
        assert sorted(window.scored["score"]) == [0.125, 0.25, 0.5, 0.75]
        assert window.rows.select("request_id", "row").rows() == [("a", 0), ("a", 1), ("b", 0)]


def test_a_large_window_is_a_sample_of_whole_requests(traffic: Traffic) -> None:
    for part in range(4):
        traffic.answer(*({"request_id": f"{part}-{number}"} for number in range(300)))
        traffic.outcome(*((f"{part}-{number}", row, row) for number in range(0, 300, 2) for row in (0, 1)))
    traffic.outcome(*((f"0-{number}", 0, 0) for number in range(300)))
    window = traffic.read(max_rows=1_000)
    assert (window.requests, window.coverage, window.duplicates) == (1_200, 750 / 1_200, 150)
    rows = window.rows.group_by("request_id").agg("row")
    assert 990 < window.rows.height <= 1_000
    whole = {tuple(sorted(row)) for name, row in rows.rows() if not name.startswith("0-") or int(name[2:]) % 2 == 0}
    assert whole == {(0, 1)}
    assert 300 < sum(name.startswith(("0-", "1-")) for name in rows["request_id"]) < 370  # no part comes first
    assert 900 < window.scored.height <= 1_000
    repeated = traffic.read(max_rows=1_000)
    assert repeated.rows.equals(window.rows)
    assert repeated.scored.sort("score").equals(window.scored.sort("score"))


def test_files_are_indexed_once_and_only_those_of_a_window_are_read(traffic: Traffic) -> None:
    old = traffic.answer({"request_id": "old", "time": NOON - timedelta(days=9)})
    traffic.answer({"request_id": "a"})
    traffic.windows().find()
    old.write_bytes(b"it is not read again")
    traffic.answer({"request_id": "b"})
    windows = traffic.windows()  # as another process would
    assert [span.start.day for span in windows.find().mature] == [21, 2]
    window = windows.read(TODAY)
    assert (window.requests, window.unreadable) == (2, ())
    assert windows.read(windows.find().mature[0]).requests == 0
    assert str(old) in windows.read(TODAY).unreadable[0]


def test_twice_the_log_is_twice_the_work(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run looks at the new rows, and a window at its own rows, however long the log has become."""
    looked_at: list[int] = []

    def counted(rows: Any, schema: pa.Schema, columns: list[str]) -> pl.DataFrame:
        looked_at.append(rows.num_rows)
        return declared_rows(rows, schema, columns)

    monkeypatch.setattr("shortlist.serving.log.serving_log.declared_rows", counted)
    monkeypatch.setattr("shortlist.serving.log.serving_log.ROWS_PER_FRAME", 7)
    work = []
    for day in range(8):
        at = NOON + timedelta(days=day)
        traffic.answer(*({"request_id": f"{day}-{number}", "time": at} for number in range(50)))
        traffic.outcome(*((f"{day}-{number}", 0, 1, at) for number in range(50)))
        TableCommitter(traffic.paths.root / "streams/predictions", str(traffic.paths.predictions)).maintain()
        looked_at.clear()
        span = Span(DAY + timedelta(days=day), DAY + timedelta(days=day + 1))
        window = traffic.read(span)
        assert (window.requests, window.rows.height) == (50, 50)
        work.append(sum(looked_at))
    assert work == [work[0]] * 8


def test_a_lost_or_invalid_index_is_rebuilt(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    traffic.windows().find()
    (index_file,) = (traffic.paths.root / "log_index").iterdir()
    for spoilt in (b"torn", pl.DataFrame({"x": [1]}).serialize()):
        index_file.write_bytes(spoilt)
        assert traffic.windows().find().mature == (TODAY,)
    index_file.parent.joinpath("something").write_text("else")
    index_file.unlink()
    assert traffic.read().requests == 1


def test_days_beyond_the_retention_leave_the_index(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a", "time": datetime.now(UTC)})
    traffic.answer({"request_id": "b"})
    assert traffic.windows(datetime.now(UTC)).find().mature == (TODAY,)
    committer = TableCommitter(traffic.paths.root / "streams/predictions", str(traffic.paths.predictions))
    committer.maintain(timedelta(days=30))
    assert traffic.windows(datetime.now(UTC)).find().mature == ()


def test_a_window_without_traffic_is_empty(traffic: Traffic) -> None:
    traffic.answer({"request_id": "a"})
    window = traffic.read(Span(NOON - timedelta(days=9), NOON - timedelta(days=8)))
    assert (window.requests, window.rows.height, window.coverage, window.scored.height) == (0, 0, 0.0, 0)
    assert Columns.TIME in window.rows.columns
