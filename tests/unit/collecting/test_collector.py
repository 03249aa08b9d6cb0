"""Collected rows: their time, labels and columns, and the handling of invalid logs."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from served_shop import DECLARED, NOON, Shop, minutes

from shortlist.contracts import Columns, DataError, ShortlistError
from shortlist.data.collected import CollectedRows
from shortlist.data.rules.contributions import AMOUNT, BY_REQUEST, BY_SENDER, BY_USER, ROW_ID, find_excesses
from shortlist.serving.log.logs import ANSWER_SCHEMA, REPLAYED_ID, prediction_schema
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.spec.data import Data
from shortlist.spec.serving import Serving
from tests.served_log import write_rows

ROW = [Columns.DAY, Columns.LABEL, "user_id", "item_id", "page", "price", "seconds"]


def test_rows_have_the_logs_columns_and_label_0_without_an_outcome(shop: Shop) -> None:
    shop.answer({"request_id": "a", "counts_delay_ms": 180.5})
    shop.outcome({"request_id": "a", "row": 1, "item": "i1", "seconds": 30.0})
    collector_run = shop.collect()
    day = date(2026, 3, 2)
    assert shop.rows().select(ROW).sort("item_id").rows() == [
        (day, 0, 1, "i0", "home", 1.0, None),
        (day, 1, 1, "i1", "home", 2.0, 30.0),
    ]
    served_columns = (Columns.SERVED_VERSION, Columns.SERVED_TRACK, Columns.COUNTS_DELAY, Columns.WEIGHT)
    assert shop.rows().select(served_columns).unique().rows() == [(3, "stable", 180.5, 1.0)]
    assert collector_run.lines == (
        "Batch 1: 2 rows from 2026-03-02 12:00 to 2026-03-02 12:00, 1 positive; 1 without an outcome",
    )


def test_rows_that_live_counts_lack_are_marked(shop: Shop) -> None:
    shop.answer({"request_id": "a"}, {"request_id": "b", "uncounted_rows": [1]}, {"request_id": "c"})
    shop.outcome({"request_id": "a", "row": 0})
    shop.collect()
    rows = shop.rows().sort(Columns.SOURCE_LINE)
    assert rows[Columns.UNCOUNTED].to_list() == [False, False, False, True, False, False]


def test_a_row_waits_until_its_outcome_is_due_and_the_logs_have_settled(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    early = shop.collect(minutes(10.9))  # outcome_delay 10m + settle 1m
    assert (early.batches, early.waiting) == ([], 1)
    assert "1 answer(s) wait" in early.lines[1]
    assert shop.collect(minutes(11)).rows == 2
    assert shop.collect(minutes(500)).lines == ("No row is new.",)


def test_the_last_outcome_of_a_row_counts(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0, "time": NOON + minutes(3), "label": 0})
    shop.outcome(
        {"request_id": "a", "row": 0, "time": NOON + minutes(2), "label": 1},
        {"request_id": "a", "row": 0, "time": NOON + minutes(10.1), "label": 1},  # late
    )
    counts = shop.collect().batches[0].counts
    assert shop.rows()[Columns.LABEL].to_list() == [0, 0]
    assert (counts.late_outcomes, counts.repeated_outcomes, counts.without_outcome) == (1, 1, 1)


def test_a_request_logged_twice_is_collected_once_across_batches(shop: Shop) -> None:
    shop.answer({"request_id": "a"}, {"request_id": "b"})
    shop.answer({"request_id": "a", "time": NOON + minutes(1)}, server=1)
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect(minutes(20)).batches[0].counts.repeated_requests == 1
    shop.answer({"request_id": "b", "time": NOON + minutes(2)}, {"request_id": "c", "time": NOON + minutes(2)})
    (batch,) = shop.collect(minutes(20)).batches
    assert (batch.number, batch.counts.requests, batch.counts.repeated_requests) == (2, 1, 1)
    rows = shop.rows()
    assert rows.height == 6
    assert rows[Columns.IMPRESSION].n_unique() == 6


def test_rows_that_break_a_rule_are_quarantined_with_file_and_line(shop: Shop) -> None:
    shop.answer({"request_id": "a", "price": [-1.0, 2.0]}, {"request_id": "b", "user_id": None})
    shop.answer({"request_id": "c", Columns.TIME: [NOON + minutes(6)]}, server=1)  # later than its answer
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect().batches[0].counts.quarantined == 5
    quarantined = shop.quarantine()
    assert sorted(quarantined[Columns.RULE]) == ["client_clock", "client_clock", "in_range", "not_null", "not_null"]
    lines = [(file, line) for file, line in quarantined.select(Columns.SOURCE_FILE, Columns.SOURCE_LINE).rows()]
    assert sorted(line for _, line in lines) == [1, 1, 1, 2, 2]
    assert len({file for file, _ in lines}) == 2
    assert shop.rows()["price"].to_list() == [2.0]


def test_quarantined_rows_return_when_the_rule_is_relaxed(shop: Shop) -> None:
    shop.answer({"request_id": "a", "price": [-1.0, 2.0], Columns.TIME: [NOON, NOON + minutes(6)]})
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect().batches[0].counts.rows == 0
    assert sorted(shop.quarantine()[Columns.RULE]) == ["client_clock", "in_range"]
    columns = [{name: value for name, value in column.items() if name != "min"} for column in DECLARED["columns"]]
    shop.declared = {**DECLARED, "columns": columns, "live": {**DECLARED["live"], "max_clock_skew": "10m"}}
    assert shop.collect(minutes(60)).batches == []  # the batch is as it was
    assert shop.rows().select("price", Columns.LABEL).rows() == [(-1.0, 1), (2.0, 0)]
    assert shop.quarantine().is_empty()


def test_load_tests_and_failed_answers_are_not_collected(shop: Shop) -> None:
    shop.answer({"request_id": "a", "track": None}, {"request_id": "b", "status": 500}, {"request_id": "c"})
    shop.outcome({"request_id": "c", "row": 0})
    assert shop.collect().batches[0].counts.requests == 1


def test_replays_of_a_rollout_are_not_collected_and_users_are(shop: Shop) -> None:
    shop.answer({"request_id": "a", "rollout": "r1", "track": "canary"}, {"request_id": "b"})
    shop.outcome({"request_id": "b", "row": 0})
    played = Shop(shop.folder, serving=Serving.model_validate({"traffic": {"kind": "replay"}}))
    assert played.collect().batches[0].counts.requests == 1
    shop.answer({"request_id": "c", "rollout": "r2", "track": "canary"})
    assert shop.collect().rows == 2
    assert set(shop.rows()[Columns.SERVED_TRACK]) == {"stable", "canary"}


def test_replays_of_a_rollout_are_not_collected_before_and_after_its_route(shop: Shop) -> None:
    shop.answer({"request_id": f"{REPLAYED_ID}0a1b-1-0"}, {"request_id": "b"})
    shop.outcome({"request_id": "b", "row": 0})
    assert shop.collect().batches[0].counts.requests == 1


def test_the_rows_of_a_replay_are_named_as_such(shop: Shop) -> None:
    old = [NOON - timedelta(days=2)]
    shop.answer({"request_id": "a", Columns.TIME: old}, {"request_id": "b"})
    shop.outcome({"request_id": "b", "row": 0})
    run = shop.collect()
    assert run.old_rows == 2 and run.lines[1] == (
        "2 quarantined row(s) are older than their answers by more than 1d (data.live.max_age): a replay of the log"
        " sends the log's own times. Such rows train nothing (rule client_clock); data.live.max_age: null accepts those"
        " that are later than the log."
    )


def test_sampled_answers_have_an_impression_weight(shop: Shop) -> None:
    shop.answer({"request_id": "a", "sampling": 0.25}, {"request_id": "b", "sampling": None})
    shop.outcome({"request_id": "a", "row": 0})
    half = Shop(shop.folder, serving=Serving.model_validate({"log": {"sampling": 0.5}}))
    half.collect()
    assert shop.rows()[Columns.WEIGHT].sort().to_list() == [2.0, 2.0, 4.0, 4.0]


def test_rows_without_an_outcome_may_be_left_out(shop: Shop) -> None:
    shop.declared = {**DECLARED, "live": {**DECLARED["live"], "missing_outcome": "leave_out"}}
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 1, "label": 0})
    shop.collect()
    assert shop.rows().select("item_id", Columns.LABEL).rows() == [("i1", 0)]


def test_rows_that_an_event_says_were_not_seen_are_no_negatives(shop: Shop) -> None:
    shop.answer({"request_id": "a"}, {"request_id": "b"})
    shop.outcome(
        {"request_id": "a", "row": 0, "label": None, "seen": False},
        {"request_id": "b", "row": 0, "label": None, "seen": False},
        {"request_id": "b", "row": 0, "label": None, "seen": True},  # further down the page, later
        {"request_id": "b", "row": 1, "label": 1, "seen": False},  # a click tells more
    )
    counts = shop.collect().batches[0].counts
    assert sorted(shop.rows().select("item_id", Columns.LABEL).rows()) == [("i0", 0), ("i1", 0), ("i1", 1)]
    assert (counts.rows, counts.without_outcome) == (3, 2)


def test_late_and_early_events_about_what_was_not_seen_change_no_row(shop: Shop) -> None:
    """The same whether the batch ends soon after the answer, or holds later requests."""
    shop.answer({"request_id": "a"}, {"request_id": "b"}, {"request_id": "c", "time": NOON + minutes(60)})
    shop.outcome(
        {"request_id": "a", "row": 0, "label": None, "seen": False, "time": NOON + minutes(30)},
        {"request_id": "b", "row": 0, "label": None, "seen": False, "received": NOON - minutes(60)},
        {"request_id": "b", "row": 1, "label": 0, "seen": False},  # an outcome tells more
    )
    counts = shop.collect(minutes(120)).batches[0].counts
    assert (counts.rows, counts.late_outcomes, counts.early_outcomes) == (6, 0, 0)


def test_live_counts_take_rows_for_shown_and_so_does_the_training(shop: Shop) -> None:
    shop.answer({"request_id": "a", "counts_delay_ms": 5.0})
    shop.outcome({"request_id": "a", "row": 0, "label": None, "seen": False})
    shop.collect()
    assert shop.rows()[Columns.LABEL].to_list() == [0, 0]


def test_only_rows_that_an_event_says_were_seen_may_be_negatives(shop: Shop) -> None:
    shop.declared = {**DECLARED, "live": {**DECLARED["live"], "missing_outcome": "negative_if_seen"}}
    shop.answer({"request_id": "a"}, {"request_id": "b"})
    shop.outcome(
        {"request_id": "a", "row": 0, "label": None, "seen": True},
        {"request_id": "b", "row": 0, "label": None, "seen": False},
        {"request_id": "b", "row": 1, "label": 1},
    )
    shop.collect()
    assert shop.rows()[Columns.LABEL].to_list() == [0, 1]


def test_a_column_that_names_the_request_is_filled_from_its_id(shop: Shop) -> None:
    slate = {"name": "slate", "type": "string"}
    shop.declared = {**DECLARED, "columns": [slate, *DECLARED["columns"]], "request": "slate"}
    shop.answer({"request_id": "a"}, {"request_id": "b"})
    shop.outcome({"request_id": "a", "row": 0})
    shop.collect()
    assert shop.rows()["slate"].sort().to_list() == ["a", "a", "b", "b"]


def test_rows_before_live_since_are_left_out(shop: Shop) -> None:
    shop.declared = {**DECLARED, "live": {**DECLARED["live"], "since": NOON.isoformat()}}
    shop.answer({"request_id": "a", Columns.TIME: [NOON - minutes(1), NOON]})
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect().batches[0].counts.before_since == 1
    assert shop.rows()["item_id"].to_list() == ["i1"]


def test_answers_wait_while_there_is_no_outcome_log(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    collector_run = shop.collect()
    assert (collector_run.waiting, shop.log.batches()) == (1, ())
    assert "outcomes: there is no outcome log, and 1 answered requests wait" in collector_run.problems[0]
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect().rows == 2


def test_answers_wait_while_the_outcome_log_is_another_specs(shop: Shop) -> None:
    shop.answer(*({"request_id": f"a{number}", "time": NOON + minutes(number / 100)} for number in range(30)))
    shop.outcome(*({"request_id": f"x{n}", "row": 0, "time": NOON + minutes(n / 100)} for n in range(29)))
    collector_run = shop.collect()
    assert (collector_run.waiting, shop.log.batches()) == (30, ())
    assert "none of 29 requests with outcomes, e.g. 'x0', is in the prediction log" in collector_run.problems[0]


def test_invented_outcomes_hold_no_answer_back_once_one_is_right(shop: Shop) -> None:
    shop.answer(*({"request_id": f"a{number}", "time": NOON + minutes(number / 100)} for number in range(30)))
    shop.outcome(*({"request_id": f"x{n}", "row": 0, "time": NOON + minutes(n / 100)} for n in range(3_000)))
    shop.outcome({"request_id": "a0", "row": 0})
    assert shop.collect().batches[0].counts.positives == 1


def test_an_outcome_of_another_item_than_its_rows_is_ignored(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0, "item": "i1"}, {"request_id": "a", "row": 7})
    assert shop.collect().batches[0].counts.foreign_outcomes == 2
    assert shop.rows()[Columns.LABEL].sum() == 0


def test_a_torn_file_waits_and_other_rows_of_its_stream_go_on(shop: Shop) -> None:
    whole = shop.answer({"request_id": "a"})
    torn = shop.answer({"request_id": "b"})
    shop.answer({"request_id": "c"})
    shop.answer({"request_id": "d"}, server=1)
    shop.outcome({"request_id": "a", "row": 0})
    content = torn.read_bytes()
    torn.write_bytes(content[: len(content) // 2])
    collector_run = shop.collect()
    assert collector_run.rows == 6  # a, c and d
    assert f"{torn}: " in collector_run.lines[-1] and "restore the file from a backup" in collector_run.lines[-1]
    assert shop.collect().rows == 0
    shop.answer({"request_id": "e"})
    assert shop.collect().rows == 2
    torn.write_bytes(content)
    assert whole.exists()
    assert shop.collect().rows == 2
    assert shop.rows()[Columns.IMPRESSION].n_unique() == 10
    assert shop.collect().rows == 0


def test_answers_whose_outcomes_cannot_be_read_wait_and_others_go_on(shop: Shop) -> None:
    hours = [NOON + timedelta(hours=3 * place) for place in range(5)]
    shop.answer(*({"request_id": f"a{place}", "time": time} for place, time in enumerate(hours[:2])))
    shop.answer({"request_id": "a2", "time": hours[2]})
    shop.answer(*({"request_id": f"a{place}", "time": time} for place, time in enumerate(hours) if place > 2))
    paths = []
    for place, time in enumerate(hours):
        clicked = time + minutes(1)
        paths.append(shop.outcome({"request_id": f"a{place}", "row": 0, "time": clicked, "received": clicked}))
    content = paths[2].read_bytes()
    paths[2].write_bytes(content[:50])
    collector_run = shop.collect(timedelta(hours=20))
    assert (collector_run.rows, collector_run.waiting) == (8, 1)
    assert "restore the file from a backup" in collector_run.problems[0]
    assert shop.rows()[Columns.LABEL].sum() == 4
    paths[2].write_bytes(content)
    assert shop.collect(timedelta(hours=20)).rows == 2
    assert shop.rows()[Columns.LABEL].sum() == 5


def test_a_new_column_is_null_in_earlier_rows(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    new = {"name": "colour", "type": "string"}
    wider = Shop(shop.folder, {**DECLARED, "columns": [*DECLARED["columns"], new]})
    wider.answer({"request_id": "b", "colour": ["red"]}, server=0)
    wider.collect()
    assert wider.rows().sort("colour", "item_id")["colour"].to_list() == [None, None, "red", "red"]


def test_answers_with_a_changed_column_type_are_kept_aside(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0})
    columns = [{**column, "type": "string"} if column["name"] == "price" else column for column in DECLARED["columns"]]
    changed = [{name: value for name, value in column.items() if name != "min"} for column in columns]
    changed_shop = Shop(shop.folder, {**DECLARED, "columns": changed})
    changed_shop.answer({"request_id": "b", "price": ["2.50 EUR"]}, server=1)
    collector_run = shop.collect()
    (record,) = (shop.paths.root / "streams/predictions/unreadable").iterdir()
    assert collector_run.rows == 2
    assert collector_run.problems == [
        f"{record}: left out, because it does not fit {shop.paths.predictions}; move it away"
    ]


def test_answers_of_an_older_version_without_new_columns_are_collected(shop: Shop) -> None:
    older = prediction_schema(shop.data)
    newer_columns = [name for name in older.names if name.startswith("served:")]
    for name in [*newer_columns, "sampling", "page", "degraded"]:
        older = older.remove(older.get_field_index(name))
    answer = {"request_id": "a", "time": NOON, "user": "1", "track": "stable", "version": 3, "status": 200}
    rows = {"items": ["i0", "i1"], "scores": [0.25, 0.5], "user_id": [1], "price": [1.0, 2.0]}
    write_rows(shop.paths.predictions, older, [{**answer, **rows}])
    shop.outcome({"request_id": "a", "row": 0})
    shop.serving = Serving.model_validate({"log": {"sampling": 0.25}})
    assert shop.collect().rows == 2
    assert shop.rows().select("page", "price", Columns.WEIGHT).rows() == [(None, 1.0, 4.0), (None, 2.0, 4.0)]


@pytest.mark.parametrize("wrong", [-600, -60, 60, 600])
def test_an_outcome_of_a_wrong_clock_counts_between_the_answer_and_its_receipt(shop: Shop, wrong: float) -> None:
    shop.answer({"request_id": "a"}, {"request_id": "b"})
    clicked = {"time": NOON + minutes(1 + wrong), "received": NOON + minutes(1), "row": 0}
    shop.outcome({"request_id": "a", **clicked}, {"request_id": "b", **clicked, "received": NOON + minutes(11)})
    counts = shop.collect(minutes(30)).batches[0].counts
    # The second one was received after the outcome delay: the clock that is ahead says no better.
    assert (counts.positives, counts.late_outcomes) == ((2, 0) if wrong < 0 else (1, 1))


def test_an_outcome_that_was_received_before_the_answer_was_invented(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.outcome({"request_id": "a", "row": 0, "received": NOON - minutes(6)})
    counts = shop.collect().batches[0].counts
    assert (counts.positives, counts.early_outcomes) == (0, 1)


def test_requests_with_guessed_ids_erase_no_row(shop: Shop) -> None:
    """They are answered before those whose ids they have."""
    names = [f"r{number}" for number in range(40)]
    guessed = {"user": "9", "user_id": [9], "digest": "f" * 16, "sender": "192.0.2.7", "time": NOON - minutes(1)}
    shop.answer(*({"request_id": name, **guessed} for name in names))
    shop.answer(*({"request_id": name, "sender": "10.0.0.1"} for name in names), server=1)
    shop.outcome(*({"request_id": name, "row": 1, "item": "i1"} for name in names))
    counts = shop.collect().batches[0].counts
    assert (counts.requests, counts.repeated_requests) == (80, 0)
    honest = shop.rows().filter(pl.col("user_id") == 1)
    assert (honest.height, honest[Columns.LABEL].sum()) == (80, 40)
    shop.answer(*({"request_id": name, "sender": "10.0.0.1", "time": NOON + minutes(1)} for name in names))
    assert shop.collect(minutes(30)).batches[0].counts.repeated_requests == 40  # the same requests, sent again


@pytest.mark.parametrize("retention", [None, timedelta(days=7)])
def test_maintenance_of_the_logs_between_two_batches_repeats_and_loses_no_row(
    shop: Shop, retention: timedelta | None
) -> None:
    def maintain(retention: timedelta | None = None) -> None:
        for folder in (shop.paths.predictions, shop.paths.outcomes):
            TableCommitter(stream_folder(folder), str(folder)).maintain(retention)

    for name in "ab":
        shop.answer({"request_id": name})
        shop.outcome({"request_id": name, "row": 0})
    maintain()
    assert shop.collect().rows == 4
    maintain(retention)  # all rows are older than a week
    assert shop.collect().rows == 0
    shop.answer({"request_id": "c"})
    shop.outcome({"request_id": "c", "row": 0})
    assert shop.collect().rows == 2
    rows = shop.rows()
    assert (rows[Columns.IMPRESSION].n_unique(), rows[Columns.LABEL].sum()) == (6, 3)


@pytest.mark.parametrize("sender", ["192.0.2.7", "2001:db8::{:x}"])
def test_one_id_of_many_requests_multiplies_no_outcomes(shop: Shop, sender: str) -> None:
    """A thousand requests with one id, and a thousand outcomes of it, would be a million outcomes."""
    repeated = (
        {"request_id": "a", "sender": sender.format(number), "digest": f"{number:016x}"} for number in range(100)
    )
    shop.answer(*repeated, {"request_id": "a", "sender": "10.0.0.1"})
    shop.outcome(*({"request_id": "a", "row": 0} for _ in range(100)))
    counts = shop.collect().batches[0].counts
    assert (counts.requests, counts.positives, counts.repeated_outcomes) == (101, 11, 11 * 99)


def test_a_slate_that_is_asked_for_again_counts_once_whatever_it_holds(shop: Shop) -> None:
    slate = {"request_id": "a", "slate:release": "r"}
    shop.answer({**slate, "digest": "1" * 16}, {**slate, "digest": "2" * 16, "items": ["i1", "i0"]})
    shop.outcome({"request_id": "a", "row": 0})
    assert shop.collect().batches[0].counts.repeated_requests == 1


def test_collected_rows_name_their_contributor(shop: Shop) -> None:
    shop.serving = Serving.model_validate({"backends": ["10.0.0.0/8"]})
    senders = ["10.1.2.3", "192.0.2.7", None]
    shop.answer(*({"request_id": f"r{place}", "sender": sender} for place, sender in enumerate(senders)))
    shop.outcome({"request_id": "r0", "row": 0})
    shop.collect()
    reference = CollectedRows.parse(CollectedRows.describe_newest(shop.data, shop.stores, "shop"))
    assert reference is not None
    ((_, rows, _),) = reference.iter_frames()
    rows = rows.sort(Columns.SOURCE_LINE)
    assert rows[BY_SENDER].to_list() == [None, None, "192.0.2.7", "192.0.2.7", "", ""]
    assert rows[BY_USER].unique().to_list() == ["1"]
    assert rows[BY_REQUEST].n_unique() == 3


def test_ten_thousand_addresses_of_one_network_have_the_share_of_one_address(shop: Shop) -> None:
    honest = [{"request_id": f"h{number}", "sender": f"10.0.{number // 250}.{number % 250}"} for number in range(1_000)]
    hostile = [
        {"request_id": f"{sender}{number}", "sender": sender.format(number)}
        for sender in ("192.0.2.7", "2001:db8:0:{:x}::1")
        for number in range(10_000)
    ]
    shop.answer(*({**request, "user_id": [user]} for user, request in enumerate(honest + hostile)))
    shop.outcome({"request_id": "h0", "row": 0})
    shop.collect()
    reference = CollectedRows.parse(CollectedRows.describe_newest(shop.data, shop.stores, "shop"))
    assert reference is not None
    rows = pl.concat([rows for _, rows, _ in reference.iter_frames()])
    rows = rows.with_columns(pl.col(Columns.IMPRESSION).alias(ROW_ID), pl.lit(1).alias(AMOUNT))
    kept = rows.filter(find_excesses(rows, 0.01).is_null())[BY_SENDER].value_counts(sort=True).rows()
    assert dict(kept[:2]) == {"192.0.2.7": 20, "2001:db8::/48": 20}  # ten times the median contribution
    assert [count for _, count in kept[2:]] == [2] * 1_000


def test_a_withdrawn_batch_is_left_out_and_its_answers_are_not_recollected(shop: Shop) -> None:
    shop.answer({"request_id": "a"})
    shop.answer({"request_id": "b"}, server=1)
    shop.outcome({"request_id": "a", "row": 0})
    shop.collect(most_rows=1)
    before = CollectedRows.parse(CollectedRows.describe_newest(shop.data, shop.stores, "shop"))
    for _ in range(2):  # again changes nothing
        assert shop.log.withdraw(1, NOON).number == 1
    reference = CollectedRows.parse(CollectedRows.describe_newest(shop.data, shop.stores, "shop"))
    assert reference is not None and before is not None
    assert ([rows.height for _, rows, _ in reference.iter_frames()], reference.withdrawn) == ([2], (1,))
    assert [rows.height for _, rows, _ in before.iter_frames()] == [2, 2]  # of a training that began before
    assert (reference.holds(1), before.holds(1)) == (False, True)
    assert shop.collect().batches == []
    for number in (0, 3):
        with pytest.raises(
            ShortlistError, match=f"batch {number}: there is no such batch of spec 'shop'; wanted 1 to 2"
        ):
            shop.log.withdraw(number, NOON)


def test_a_long_log_is_split_into_batches_of_bounded_size(shop: Shop) -> None:
    for number in range(5):
        shop.answer({"request_id": f"a{number}", "time": NOON + minutes(number)})
    shop.outcome({"request_id": "a0", "row": 0})
    collector_run = shop.collect(minutes(60), most_rows=4)
    assert [batch.counts.rows for batch in collector_run.batches] == [4, 4, 2]


def test_a_spec_without_collecting_is_refused_with_what_to_declare(shop: Shop) -> None:
    shop.declared = {**DECLARED, "live": {}}
    with pytest.raises(ShortlistError, match=r"collects nothing; declare data.live.collect: true"):
        shop.collector()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome_delay": None}, "declare outcome_delay"),
        ({"outcome_delay": "soon"}, "outcome_delay"),
        ({"clock": {"kind": "row_order"}}, "must be of kind column"),
        ({"columns": [*DECLARED["columns"], {"name": "v", "type": "vector"}]}, "column 'v' is a vector"),
        (
            {"columns": [{"name": "s", "type": "number", "known": "after", "nullable": False}, *DECLARED["columns"]]},
            "column 's' is known after the impression and never null",
        ),
    ],
)
def test_declarations_that_cannot_be_collected_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Data.model_validate({**DECLARED, **changes})


def test_a_missing_or_corrupt_batch_is_named(shop: Shop) -> None:
    for number in range(3):
        shop.answer({"request_id": f"a{number}"}, server=number)
    shop.outcome({"request_id": "a0", "row": 0})
    shop.collect(most_rows=1)
    records = sorted(Path(shop.folder).rglob("batches/*.json"))
    assert len(records) == 3
    content = records[1].read_text()
    records[1].write_text("{")
    with pytest.raises(DataError, match=r"00000002.json: not a batch of collected rows"):
        shop.log.batches()
    records[1].unlink()
    with pytest.raises(DataError, match=r"00000002.json: missing, though batches of collected rows are numbered"):
        shop.log.batches()
    records[1].write_text(content)
    assert len(shop.log.batches()) == 3


def test_the_command_prints_the_batches_and_fails_for_unreadable_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shortlist.cli.commands import run

    spec = Path(__file__).parents[3] / "pipelines/specs/drill.yaml"
    (tmp_path / "runs/stores").mkdir(parents=True)
    (tmp_path / "runs/stores/epoch").write_text("1")
    for text, code in (("No row is new.", 0), ("restore the file", 1)):
        monkeypatch.setattr("sys.argv", ["shortlist", "collect", str(spec), "--runs", str(tmp_path / "runs")])
        with pytest.raises(SystemExit) as ended:
            run()
        assert (ended.value.code, text in capsys.readouterr().out) == (code, True)
        answer = {"request_id": "a", "time": NOON, "version": 3, "status": 200, "scores": [0.5]}
        torn = write_rows(tmp_path / "runs/serving/drill/predictions", ANSWER_SCHEMA, [answer])
        torn.write_bytes(b"PAR1")
