from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.rollout.evidence.access_log import AccessLog
from shortlist.rollout.evidence.latency import Latencies
from shortlist.rollout.evidence.outcomes import OUTCOMES, REQUESTS, OutcomeJoin
from shortlist.rollout.evidence.reader import EvidenceReader, RequestAccountant
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence
from shortlist.rollout.evidence.row_finder import RowFinder
from shortlist.rollout.evidence.track_counter import MAX_SENDERS, TrackCounter
from shortlist.rollout.evidence.users import UserTable
from shortlist.serving.log.logs import outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.serving import KPI
from tests.served_log import append_rows

NOW = datetime(2026, 11, 21, 3, 34, tzinfo=UTC)
DATA = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [{"name": "item_id", "type": "integer"}, {"name": "is_click", "type": "integer"}],
        "label": "is_click",
        "item": "item_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)
GRPC = "/inference.GRPCInferenceService/ModelInfer"


PREDICTIONS = prediction_schema(DATA)


@dataclass
class Logs:
    """What Envoy, two servers and the users write."""

    paths: ServingPaths

    def __post_init__(self) -> None:
        self.paths.logs.mkdir(parents=True)

    @property
    def access(self) -> Path:
        return self.paths.logs / "envoy-a.access.jsonl"

    def line(self, id: str, **changes: object) -> dict[str, Any]:
        common = {"time": "2026-11-21T03:34:00.123456Z", "id": id, "user": "u1", "track": "stable", "rollout": "r1"}
        fields = {
            "sender": "backend",
            "step": "0",
            "version": "3",
            "path": "/v2/models/demo/infer",
            "protocol": "HTTP/1.1",
            "status": 200,
        }
        return {**common, **fields, "grpc": None, "flags": None, "us": 5_000, **changes}

    def ask(self, *lines: dict[str, Any], envoy: str = "a") -> None:
        with (self.paths.logs / f"envoy-{envoy}.access.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def answer(self, *rows: dict[str, Any], process: int = 0, schema: pa.Schema = PREDICTIONS) -> None:
        common = {"time": NOW, "user": "u1", "track": "stable", "rollout": "r1", "step": 0, "version": 3, "status": 200}
        fields = {
            "sender": "backend",
            "digest": "0" * 16,
            "latency_ms": 4.0,
            "degraded": False,
            "items": [7, 8],
            "scores": [0.1, 0.2],
        }
        append_rows(self.paths.predictions, schema, [common | fields | row for row in rows], process)

    def outcome(self, *rows: tuple[str, int, int], time: datetime = NOW) -> None:
        names = "request_id", "row", "label"
        full = [{"time": time, "item": 7, **dict(zip(names, row, strict=True))} for row in rows]
        append_rows(self.paths.outcomes, outcome_schema(pa.int64()), full)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(ServingPaths.for_spec(tmp_path, "demo"))


def read(
    logs: Logs, top: int = 1, sampled: Callable[[str], bool] | None = None, since: datetime | None = None
) -> RolloutEvidence:
    return polled(EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI(top=top), sampled=sampled, since=since))


def polled(reader: EvidenceReader) -> RolloutEvidence:
    reader.poll()
    return reader.snapshot()


def test_nothing_written_yet_is_no_evidence(tmp_path: Path) -> None:
    reader = EvidenceReader(ServingPaths.for_spec(tmp_path, "demo"), "r1", steps=2, kpi=KPI())
    reader.poll()
    evidence = reader.snapshot()
    assert (evidence.whole.stable.requests, evidence.whole.canary_share, evidence.kpi.variance) == (
        0,
        None,
        float("inf"),
    )
    json.dumps(evidence.summary(), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "counts"),  # failed, the client's mistake, the client went away, answered
    [
        ({}, (0, 0, 0, 1)),
        ({"status": 500}, (1, 0, 0, 0)),
        ({"status": 503, "us": None}, (1, 0, 0, 0)),
        ({"status": 0}, (0, 0, 1, 0)),
        ({"status": 404}, (0, 1, 0, 0)),
        ({"status": 413, "details": "request_payload_too_large"}, (0, 1, 0, 0)),
        ({"grpc": 0, "path": GRPC}, (0, 0, 0, 1)),
        ({"grpc": 14, "path": GRPC}, (1, 0, 0, 0)),
        ({"grpc": 3, "path": GRPC}, (0, 1, 0, 0)),  # INVALID_ARGUMENT
        ({"grpc": 1, "path": GRPC}, (0, 0, 1, 0)),  # CANCELLED
        ({"grpc": 2, "path": GRPC, "details": "request_payload_too_large"}, (0, 1, 0, 0)),  # what Envoy makes of 413
    ],
)
def test_an_answer_is_good_or_ours_or_the_clients(
    logs: Logs, line: dict[str, Any], counts: tuple[int, int, int, int]
) -> None:
    logs.ask(logs.line("a", **line))
    stable = read(logs).at_step(0).stable
    assert (stable.failed, stable.client_errors, stable.disconnected, stable.answered) == counts
    assert stable.judged_requests == stable.failed + stable.answered
    assert stable.latencies.total == stable.answered


def test_only_inference_of_this_rollout_counts(logs: Logs) -> None:
    logs.ask(
        logs.line("a"),
        logs.line("b", rollout="another"),
        logs.line("c", rollout=None, track=None, step=None),
        logs.line("d", path="/v2/health/ready"),
        logs.line("e", path="/v2/models/demo"),
        logs.line("f", step=None),
        logs.line("g", step="9"),  # no such step
        logs.line("h", path="/v2/models/demo/versions/3/infer?x=1"),
    )
    logs.answer({"request_id": "a"}, {"request_id": "b", "rollout": "another"}, {"request_id": "c", "rollout": None})
    evidence = read(logs)
    assert (evidence.whole.stable.requests, evidence.whole.stable.logged) == (2, 1)


def test_tracks_and_steps_are_told_apart_by_what_envoy_wrote(logs: Logs) -> None:
    logs.ask(logs.line("a"), logs.line("b", track="canary", user="u2"))
    logs.ask(logs.line("c", step="1", track="canary"), logs.line("d", step="1", track="canary"), envoy="b")
    logs.ask(logs.line("e", step="1", user="u3"), logs.line("f", step="1", user="u4"))
    evidence = read(logs)
    assert [(step.stable.requests, step.canary.requests) for step in evidence.steps] == [(1, 1), (2, 2), (0, 0), (0, 0)]
    assert (evidence.whole.stable.users, evidence.whole.canary.users) == (3, 2)  # u1 moved and counts on both
    assert (
        evidence.at_step(0).canary_share,
        evidence.at_step(1).canary_share,
        evidence.whole.users_on_both_tracks,
    ) == (
        0.5,
        1 / 3,
        0,
    )


def test_users_are_compared_up_to_the_newest_answer_of_the_slower_track(logs: Logs) -> None:
    times = [f"2026-11-21T03:34:{second:02}.000000Z" for second in range(20)]
    reader = EvidenceReader(logs.paths, "r1", 4, KPI())
    for number in range(0, 20, 2):  # the canary has answered all of its users, the stable track is being restarted
        logs.ask(logs.line(f"c{number}", track="canary", user=f"c{number}", time=times[number]))
    assert polled(reader).at_step(0).canary_share is None
    for number in range(1, 10, 2):  # it comes back
        logs.ask(logs.line(f"s{number}", user=f"s{number}", time=times[number]))
    now = polled(reader).at_step(0)
    assert (now.canary.users, now.stable.users, now.canary.requests) == (5, 5, 10)
    logs.ask(logs.line("s19", user="s19", time=times[19]))
    now = polled(reader).at_step(0)
    assert (now.canary.users, now.stable.users, now.stable.requests) == (
        10,
        5,
        6,
    )  # now the canary's next is waited for


def test_users_are_settled_when_all_that_began_with_their_requests_must_have_ended(logs: Logs) -> None:
    reader = EvidenceReader(logs.paths, "r1", 4, KPI())
    time_format = "2026-11-21T03:34:{:02}.000000Z"
    for number in range(4):  # the stable track is slow: only one of its requests has ended, and it began last
        logs.ask(logs.line(f"c{number}", track="canary", user=f"c{number}", time=time_format.format(number)))
    logs.ask(
        logs.line("s4", user="s4", time=time_format.format(4)), logs.line("n", user=None, time=time_format.format(1))
    )
    now = polled(reader).at_step(0)
    assert (now.canary.users, now.stable.users, now.stable.anonymous) == (4, 1, 1)  # s4 is held back
    assert (now.canary.settled_users, now.stable.settled_users) == (0, 0)
    for number in range(4):
        logs.ask(logs.line(f"s{number}", user=f"s{number}", time=time_format.format(number)))
    logs.ask(logs.line("s49", user="s49", time=time_format.format(48)))
    now = polled(reader).at_step(0)
    assert (now.canary.settled_users, now.stable.settled_users) == (4, 5)  # s0 to s3, and the one without a name


def test_users_who_go_away_are_counted_once_and_move_no_track_forward(logs: Logs) -> None:
    times = [f"2026-11-21T03:34:{second:02}.000000Z" for second in range(6)]
    logs.ask(*(logs.line(f"c{second}", track="canary", user="c", time=times[second]) for second in range(6)))
    logs.ask(*(logs.line(f"s{second}", status=0, us=None, time=times[second]) for second in range(5)))
    logs.ask(logs.line("n", user=None, status=0, us=None, time=times[5]))
    now = read(logs).at_step(0)
    assert (now.stable.disconnected, now.stable.disconnected_users, now.canary.disconnected_users) == (6, 2, 0)
    assert (now.stable.judged_requests, now.stable.failed, now.canary.users) == (
        0,
        0,
        0,
    )  # the stable track answered nobody yet


def test_at_the_last_step_nobody_is_left_to_compare_with(logs: Logs) -> None:
    logs.ask(logs.line("a", step="3", track="canary"), logs.line("b", step="3", track="canary", user="u2"))
    assert read(logs).at_step(3).canary.users == 2


def test_refused_users_are_counted_once_per_track(logs: Logs) -> None:
    logs.ask(
        *(logs.line(f"a{number}", status=400) for number in range(38)),
        *(logs.line(f"b{number}", status=200, user=f"v{number}") for number in range(3)),
        logs.line("c", status=400, user="v1", track="canary"),
        logs.line("d", grpc=3, path=GRPC, user="v2", track="canary"),
        logs.line("e", status=404, user=None, track="canary"),
        logs.line("f", status=404, user=None, track="canary"),
    )
    now = read(logs).at_step(0)
    assert (now.stable.client_errors, now.stable.refused_users) == (38, 1)
    assert (now.canary.client_errors, now.canary.refused_users) == (4, 4)  # who names no user is one for each request


def test_what_one_address_sends_without_a_backend_is_counted_and_hardly_evidence(logs: Logs) -> None:
    sent = {"sender": "192.0.2.1", "track": "canary"}
    logs.ask(
        *(logs.line(f"a{number}", user=f"v{number}", track="canary") for number in range(1_200)),
        *(logs.line(f"b{number}", **sent, user=f"w{number}", status=400) for number in range(50)),
        *(logs.line(f"c{number}", **sent, user="w0", status=(0, 200)[number % 2]) for number in range(50)),
    )
    slate = {"routed_by_user": True, "slate:asked": 3, "items": [], "scores": []}
    logs.answer(*({"request_id": f"b{number}", **sent, "user": f"w{number}", **slate} for number in range(50)))
    logs.outcome(*((f"b{number}", 0, 1) for number in range(50)))
    evidence = read(logs)
    canary, total = evidence.at_step(0).canary, evidence.request_totals().canary
    assert (canary.requests, canary.left_out) == (1_200 + 3, 97)
    assert (canary.refused_users, canary.disconnected_users, canary.empty_slate_users) == (1, 1, 1)
    assert (total.requests, total.client_errors, total.disconnected, total.answered) == (1_300, 50, 25, 1_225)
    assert (total.left_out, total.logged, total.logged_left_out) == (97, 50, 49)
    assert (canary.logged, canary.logged_left_out, canary.left_out_senders) == (1, 49, ("192.0.2.1",))
    assert evidence.accounting.lost == 1_225 and canary.kpi_users == 0  # no row of an empty slate has an outcome


def test_senders_of_what_is_no_evidence_are_kept_by_track_those_of_most_first(logs: Logs) -> None:
    logs.ask(*(logs.line(f"a{number}", user=f"v{number}", sender="2001:db8:1:7::1") for number in range(5)))
    rows = [{"request_id": f"b{number}", "user": f"v{number}"} for number in range(13)]
    logs.answer(*(row | {"sender": None} for row in rows[:10]), *(row | {"sender": "192.0.2.2"} for row in rows[10:]))
    logs.answer(*(row | {"sender": "192.0.2.3", "track": "canary"} for row in rows))
    evidence = read(logs)
    stable = evidence.at_step(0).stable
    assert (stable.left_out, stable.logged_left_out) == (4, 9 + 2)
    assert stable.left_out_senders == ("", "2001:db8:1::/48", "192.0.2.2") == evidence.whole.stable.left_out_senders
    assert evidence.at_step(0).canary.left_out_senders == ("192.0.2.3",)


def test_senders_beyond_the_most_frequent_are_forgotten() -> None:
    counter = TrackCounter()
    often = ["192.0.2.1", "192.0.2.2", "192.0.2.1"]
    rare_senders = [f"10.0.{number // 256}.{number % 256}" for number in range(2 * MAX_SENDERS)]
    counter.add_left_out(pl.DataFrame({"sender": [*rare_senders, *often, "192.0.2.2", "192.0.2.1"]}), "left_out")
    assert (counter.counts.left_out, len(counter.left_out_senders)) == (2 * MAX_SENDERS + 5, MAX_SENDERS)
    both = counter + counter
    assert both.left_out_senders.most_common(2) == [("192.0.2.1", 6), ("192.0.2.2", 4)]


def test_requests_in_plain_json_are_evidence(logs: Logs) -> None:
    paths = "/v1/rank", "/v1/recommend?debug=1", "/v1/events", "/v1/other"
    logs.ask(*(logs.line(path, path=path, status=503) for path in paths))
    assert read(logs).at_step(0).stable.failed == 2


def test_users_who_get_an_empty_slate_are_counted(logs: Logs) -> None:
    slate = {"track": "canary", "routed_by_user": True, "slate:asked": 3}
    logs.answer(
        {"request_id": "a", **slate},
        {"request_id": "b", **slate, "items": [], "scores": []},
        {"request_id": "c", **slate, "items": [], "scores": []},
        {"request_id": "d", **slate, "user": "u2"},
        {"request_id": "e", **slate, "user": "u3", "items": [], "scores": [], "status": 500},  # a failure
        {"request_id": "f", "track": "canary", "user": "u4", "items": [], "scores": []},  # brought no candidates
    )
    canary = read(logs).at_step(0).canary
    assert (canary.slate_users, canary.empty_slate_users) == (2, 1)
    assert read(logs).whole.canary.empty_slate_users == 1


def test_a_user_on_both_tracks_of_one_step_flaps(logs: Logs) -> None:
    logs.ask(logs.line("a"), logs.line("b", track="canary"), logs.line("c", user="u2"))
    assert read(logs).at_step(0).users_on_both_tracks == 1


def test_each_request_without_a_user_counts_as_one_user(logs: Logs) -> None:
    logs.ask(logs.line("a", user=None), logs.line("b", user=None), logs.line("c"), logs.line("d", track="canary"))
    logs.answer({"request_id": "a", "user": None}, {"request_id": "b", "user": None}, {"request_id": "c"})
    logs.outcome(("a", 1, 1), ("b", 1, 0), ("c", 1, 0))
    stable = read(logs).at_step(0).stable
    assert (stable.users, stable.kpi_users, stable.kpi) == (3, 3, pytest.approx(1 / 3))


def test_users_without_the_header_count_by_request_on_both_tracks(logs: Logs) -> None:
    # A hundred users with six requests each, whose user is a column of the request: Envoy chooses a track for each.
    for number in range(600):
        track = ("stable", "canary")[(number * 7919) % 11 % 2]
        logs.ask(logs.line(f"a{number}", user=None, track=track))
    rows = [
        {
            "request_id": f"a{number}",
            "user": f"u{number % 100}",
            "track": ("stable", "canary")[(number * 7919) % 11 % 2],
        }
        for number in range(600)
    ]
    logs.answer(*({**row, "routed_by_user": False} for row in rows))
    logs.outcome(*((f"a{number}", 1, int(number % 3 == 0)) for number in range(600)))
    evidence = read(logs)
    assert evidence.kpi.stable_users + evidence.kpi.canary_users == 600
    assert evidence.at_step(0).users_on_both_tracks == 0
    assert evidence.at_step(0).stable.anonymous + evidence.at_step(0).canary.anonymous == 600
    assert evidence.kpi.value == pytest.approx(evidence.kpi.canary_mean - evidence.kpi.stable_mean)


def test_the_log_of_an_earlier_version_says_nothing_of_the_header(logs: Logs) -> None:
    schema = prediction_schema(DATA)
    earlier = schema.remove(schema.get_field_index("routed_by_user"))
    logs.answer({"request_id": "a"}, {"request_id": "b"}, {"request_id": "c", "user": None}, schema=earlier)
    logs.answer({"request_id": "d", "routed_by_user": True}, {"request_id": "e", "routed_by_user": False})
    logs.outcome(*((name, 1, 1) for name in "abcde"))
    stable = read(logs).at_step(0).stable
    assert (stable.logged, stable.kpi_users) == (5, 3)  # u1, the request without a user, the one routed by chance


def test_half_a_line_is_read_when_it_is_whole(logs: Logs) -> None:
    text = json.dumps(logs.line("a")) + "\n"
    log = AccessLog(logs.access)
    logs.access.write_text(text + text[:40])
    assert [frame.height for frame in log.read()] == [1]
    assert list(log.read()) == []
    with logs.access.open("a") as file:
        file.write(text[40:] + text)
    assert [frame.height for frame in log.read()] == [2]
    assert log.unreadable == 0


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 2_000), max_size=6))
def test_every_line_is_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.jsonl"
    content = b"".join(json.dumps({"id": str(number), "status": 200}).encode() + b"\n" for number in range(60))
    log, frames = AccessLog(path), []
    for cut in [*sorted(cuts), len(content)]:
        path.write_bytes(content[:cut])
        frames += [name for frame in log.read() for name in frame["id"]]
    assert frames == [str(number) for number in range(60)]


def test_an_unreadable_line_is_skipped_and_counted(logs: Logs) -> None:
    logs.ask(logs.line("a"))
    with logs.access.open("ab") as file:
        file.write(b'{"id": "torn\n\x00\xff\n[1]\n{"id": "x", "status": "soon"}\n')
    logs.ask(logs.line("b"))
    evidence = read(logs)
    assert (evidence.whole.stable.requests, evidence.accounting.unreadable) == (2, 4)


def test_a_rotated_log_is_read_to_its_end_and_the_new_one_from_its_start(logs: Logs) -> None:
    reader = EvidenceReader(logs.paths, "r1", steps=1, kpi=KPI())
    logs.ask(logs.line("a"))
    reader.poll()
    logs.ask(logs.line("b"))
    logs.access.rename(logs.access.with_name(logs.access.name + ".1"))
    reader.poll()  # there is no file now
    logs.ask(logs.line("c"), logs.line("d"))
    reader.poll()
    assert reader.snapshot().whole.stable.requests == 4
    assert read(logs).whole.stable.requests == 4  # also by a new reader
    logs.access.write_text(json.dumps(logs.line("e")) + "\n")  # cut short in place
    reader.poll()
    assert reader.snapshot().whole.stable.requests == 5


def test_a_new_reader_knows_what_one_before_it_knew(logs: Logs) -> None:
    first = EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI())
    for number in range(3):
        logs.ask(logs.line(f"a{number}"))
        logs.answer({"request_id": f"a{number}"})
        logs.outcome((f"a{number}", 1, number % 2))
        first.poll()
    assert first.snapshot().summary() == read(logs).summary()
    totals = first.snapshot().request_totals()
    assert totals.by_track() == [
        (name, 3, 0) for name in ("requests", "answered", "to_log", "logged", "rankable", "with_outcomes")
    ]
    assert (totals.total, totals.logged, totals.lost, totals.doubled) == (3, 3, 0, 0)


def test_a_record_that_holds_no_rows_is_counted_and_skipped(logs: Logs) -> None:
    logs.answer({"request_id": "a"})
    stream = ServingLog.on_disk(logs.paths.predictions, PREDICTIONS).open_stream()
    stream.append([b"half a record"]).result()
    stream.close()
    logs.answer({"request_id": "b"}, process=1)
    evidence = read(logs)
    assert (evidence.whole.stable.logged, evidence.accounting.unreadable) == (2, 1)


def test_days_before_the_rollout_are_not_read(logs: Logs) -> None:
    log = ServingLog.on_disk(logs.paths.predictions, PREDICTIONS)
    logs.answer({"request_id": "old", "time": NOW - timedelta(days=3)})
    log.commit()
    (old,) = logs.paths.predictions.rglob("*.parquet")
    old.write_bytes(b"spoilt, and nobody should look")
    logs.answer({"request_id": "a"})
    log.commit()
    logs.answer({"request_id": "b"})
    evidence = read(logs, since=NOW)
    assert (evidence.whole.stable.logged, evidence.accounting.unreadable) == (2, 0)


def test_a_late_reader_has_the_evidence_of_one_that_followed(logs: Logs) -> None:
    first = EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI(), since=NOW)
    for number in range(6):
        logs.answer({"request_id": f"a{number}", "rollout": "r1" if number < 4 else None}, process=number % 2)
        logs.outcome((f"a{number}", 1, 1))
        first.poll()
        if number % 3 == 2:
            ServingLog.on_disk(logs.paths.predictions, PREDICTIONS).commit()
            ServingLog.on_disk(logs.paths.outcomes, outcome_schema(pa.int64())).commit()
    late = read(logs, since=NOW)
    assert (late.whole.stable.logged, late.whole.stable.with_outcomes) == (4, 4)
    assert first.snapshot().summary() == late.summary()


def test_answers_missing_from_the_log_are_lost_and_those_twice_in_it_doubled(logs: Logs) -> None:
    logs.ask(*(logs.line(name) for name in "abcd"), logs.line("e", status=500), logs.line("f", status=0))
    logs.answer({"request_id": "a"}, {"request_id": "b"})
    logs.answer({"request_id": "b"}, {"request_id": "e", "status": 500, "scores": None}, {"request_id": "f"})
    books = read(logs).accounting
    assert (books.answered, books.logged, books.lost, books.doubled, books.unanswered) == (4, 4, 2, 1, 1)


def test_an_id_that_a_client_uses_twice_is_not_doubled(logs: Logs) -> None:
    logs.ask(logs.line("a"), logs.line("a"))
    logs.answer({"request_id": "a"}, {"request_id": "a"})
    assert (read(logs).accounting.lost, read(logs).accounting.doubled) == (0, 0)


def test_requests_that_were_not_sampled_are_not_lost(logs: Logs) -> None:
    logs.ask(*(logs.line(name) for name in "abcd"))
    logs.answer({"request_id": "a"}, {"request_id": "c"})
    evidence = read(logs, sampled=lambda request: request in {"a", "c"})
    assert (
        evidence.accounting.lost,
        evidence.accounting.answered,
        evidence.whole.stable.to_log,
        evidence.whole.stable.answered,
    ) == (
        0,
        2,
        2,
        4,
    )


def test_a_short_memory_forgets_ids_but_no_totals() -> None:
    ledger, short = RequestAccountant(), RequestAccountant(max_open=10)
    for number in range(20):
        ids = pl.Series([2 * number, 2 * number + 1], dtype=pl.UInt64)
        for book in (ledger, short):
            book.add(ids, ids.head(1) if number % 5 == 0 else ids)
            book.add(ids.clear(), ids.head(1) if number % 7 == 0 else ids.clear())
    assert short.accounting() == ledger.accounting()
    assert (ledger.accounting().lost, ledger.accounting().doubled) == (4, 3)


def test_scores_that_are_no_numbers_are_bad(logs: Logs) -> None:
    logs.answer(
        {"request_id": "a"},
        {"request_id": "b", "scores": [0.1, float("nan")]},
        {"request_id": "c", "scores": [float("inf")]},
        {"request_id": "d", "status": 500, "scores": None},
        {"request_id": "e", "scores": [], "items": []},  # nobody to rank is no fault
        {"request_id": "f", "scores": [0.5, 0.5]},
        {"request_id": "g", "scores": [0.5], "degraded": True},
    )
    stable = read(logs).at_step(0).stable
    assert (stable.logged, stable.bad, stable.rankable, stable.flat, stable.degraded) == (7, 3, 2, 1, 1)
    assert stable.scores.tolist() == pytest.approx([0.1, 0.2, 0.5, 0.5, 0.5])


def test_a_sample_is_as_independent_as_its_users(logs: Logs) -> None:
    heavy = [{"request_id": f"h{number}", "user": "heavy"} for number in range(9)]
    logs.answer(*heavy, {"request_id": "l", "user": "light"})
    assert read(logs).at_step(0).stable.score_users == pytest.approx(20**2 / (18**2 + 2**2))


def test_a_users_value_is_the_mean_over_the_best_scored_items_with_an_outcome(logs: Logs) -> None:
    logs.answer(
        {"request_id": "a", "scores": [0.1, 0.9, 0.5, 0.7], "items": [1, 2, 3, 4]},
        {"request_id": "b", "scores": [0.3, 0.2], "items": [1, 2]},
        {"request_id": "c", "user": "u2"},
    )
    # Of a, the best row has no outcome: rows 3 and 2 are shown. Of b, both are.
    logs.outcome(("a", 3, 1), ("a", 2, 1), ("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("c", 1, 0), ("other", 0, 1))
    stable = read(logs, top=2).at_step(0).stable
    assert (stable.kpi, stable.kpi_users, stable.with_outcomes) == (pytest.approx((2 / 4 + 0 / 1) / 2), 2, 3)


def test_outcomes_may_come_first_or_late_or_change(logs: Logs) -> None:
    reader = EvidenceReader(logs.paths, "r1", steps=1, kpi=KPI())

    def kpi() -> tuple[float | None, int, int]:
        reader.poll()
        stable = reader.snapshot().at_step(0).stable
        return stable.kpi, stable.kpi_users, stable.with_outcomes

    logs.outcome(("a", 0, 1))
    assert kpi() == (None, 0, 0)
    logs.answer({"request_id": "a", "scores": [0.1, 0.2]})
    assert kpi() == (1.0, 1, 1)
    logs.outcome(("a", 1, 0))  # the better-scored row's outcome is known now: it was shown first
    assert kpi() == (0.0, 1, 1)
    logs.outcome(("a", 1, 1))
    assert kpi() == (1.0, 1, 1)
    logs.outcome(("a", 5, 0))  # no such row
    assert kpi() == (1.0, 1, 1)


SLATE = {"items": [7, 8, 9], "scores": [0.1, 0.9, 0.5], "slate:asked": 3}
"""Three items, of which the last is not the best-scored one: an ordering put them into their places."""


@pytest.mark.parametrize(
    ("slate", "stable", "canary"),
    # Of the stable track's two slates one has a click, of the canary's both have two.
    [("hits", 0.5, 1.0), ("clicks", 0.5, 2.0)],
)
def test_a_slate_counts_as_one_shown_item(
    logs: Logs, slate: Literal["hits", "clicks"], stable: float, canary: float
) -> None:
    logs.answer(*({"request_id": f"s{number}", **SLATE} for number in range(2)))
    logs.answer(*({"request_id": f"c{number}", "user": f"u{number}", "track": "canary", **SLATE} for number in (2, 3)))
    logs.outcome(*(("s0", row, int(row == 0)) for row in range(3)), ("s1", 1, 0))
    logs.outcome(*((f"c{number}", row, int(row != 1)) for number in (2, 3) for row in range(3)))
    evidence = polled(EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI(slate=slate)))
    assert (evidence.kpi.stable_mean, evidence.kpi.canary_mean) == (stable, canary)
    of_stable, of_canary = evidence.at_step(0).stable, evidence.at_step(0).canary
    assert (of_stable.slates, of_stable.hits, of_stable.clicks) == (2, 1, 1)
    assert (of_canary.slates, of_canary.hit_rate, of_canary.clicks_per_slate) == (2, 1.0, 2.0)
    assert evidence.summary()["steps"][0]["canary"]["clicks_per_slate"] == 2.0


def test_a_click_that_comes_later_turns_a_slate_into_a_hit_once(logs: Logs) -> None:
    reader = EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI())
    logs.answer({"request_id": "s", **SLATE}, {"request_id": "brought"})
    counted = []
    for outcome in (("s", 1, 0), ("s", 2, 1), ("s", 0, 1), ("brought", 1, 1)):
        logs.outcome(outcome)
        stable = polled(reader).at_step(0).stable
        counted.append((stable.slates, stable.hits, stable.clicks, stable.with_outcomes, stable.kpi))
    # Candidates that the client brought count as before, beside the slates of the same user.
    assert counted == [(1, 0, 0, 1, 0.0), (1, 1, 1, 1, 1.0), (1, 1, 2, 1, 1.0), (1, 1, 2, 2, 1.0)]


@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("answers_first", [True, False])
def test_an_outcome_that_names_its_item_alone_counts_for_its_row(logs: Logs, kind: str, answers_first: bool) -> None:
    """A server of the other version received it, which does not know the answer, and the sender named no index."""
    as_key = str if kind == "string" else int
    schema = prediction_schema(Data.model_validate({**DATA.model_dump(), "columns": [
        {"name": "item_id", "type": kind}, {"name": "is_click", "type": "integer"}]}))  # fmt: skip
    reader = EvidenceReader(logs.paths, "r1", steps=4, kpi=KPI(top=1))
    answered = {"items": [as_key(7), as_key(8), as_key(8)], "scores": [0.9, 0.2, 0.1]}
    answers = {"request_id": "s", **answered}, {"request_id": "c", "user": "u2", "track": "canary", **answered}
    # Of the canary the item 7, of the stable track item 8, whose first row counts; no request has an item 9.
    events = [{"request_id": "c", "item": as_key(7), "label": 1}, {"request_id": "s", "item": as_key(8), "label": 0},
              {"request_id": "s", "item": as_key(9), "label": 1}]  # fmt: skip
    for write_answers in (answers_first, not answers_first):
        if write_answers:
            logs.answer(*answers, schema=schema)
        else:
            rows = [{"time": NOW, **event} for event in events]
            append_rows(logs.paths.outcomes, outcome_schema(pa.string() if kind == "string" else pa.int64()), rows)
        evidence = polled(reader)
    assert (evidence.kpi.stable_mean, evidence.kpi.canary_mean) == (0.0, 1.0)
    assert (evidence.whole.stable.with_outcomes, evidence.whole.canary.with_outcomes) == (1, 1)


def test_items_are_remembered_up_to_a_limit() -> None:
    finder = RowFinder(max_items=4, max_outcomes=1)

    def requests(*ids: int) -> pl.DataFrame:
        return pl.DataFrame({"request": ids, "items": [[7, 8]] * len(ids)}, schema_overrides={"request": pl.UInt64})

    def outcomes(*ids: int) -> pl.DataFrame:
        schema = {"request": pl.UInt64, "item": pl.Int64, "row": pl.Int32, "label": pl.Int8}
        return pl.DataFrame({"request": ids, "item": 8, "row": None, "label": 1}, schema=schema)

    assert finder.add_requests(requests(1, 2, 3)) is None  # six items: the newest request stays
    assert finder.add_outcomes(outcomes(1, 2, 3)).rows() == [(3, 1, 1)]
    placed = finder.add_requests(requests(1, 2))  # one outcome waited, the newest
    assert placed is not None
    assert placed.select("request", "row").rows() == [(2, 1)]


def test_a_user_who_moved_has_a_value_on_each_track(logs: Logs) -> None:
    logs.answer({"request_id": "a"}, {"request_id": "b", "user": "u2", "track": "canary"})
    logs.answer({"request_id": "c", "track": "canary", "step": 1}, {"request_id": "d", "user": "u3", "step": 1})
    logs.outcome(("a", 1, 1), ("b", 1, 0), ("c", 1, 0), ("d", 1, 1))
    evidence = read(logs)
    assert (evidence.whole.stable.kpi, evidence.whole.canary.kpi) == (1.0, 0.0)
    assert (evidence.kpi.stable_users, evidence.kpi.canary_users) == (2, 2)  # u1 is among both
    assert evidence.kpi.value == -1.0


def test_the_join_forgets_the_oldest_requests() -> None:
    join = OutcomeJoin(top=1, max_scores=10, max_outcomes=3)
    schema = {"request": pl.UInt64, "user": pl.UInt64, "step": pl.Int32, "canary": pl.Boolean}

    def requests(*ids: int) -> pl.DataFrame:
        rows = {"request": ids, "user": ids, "step": [0] * len(ids), "canary": [False] * len(ids)}
        return pl.DataFrame(rows, schema=schema).with_columns(
            scores=pl.Series([[0.1, 0.2]] * len(ids), dtype=pl.List(pl.Float32)), slate=False
        )

    def outcomes(*ids: int) -> pl.DataFrame:
        return pl.DataFrame({"request": ids, "row": [1] * len(ids), "label": [1] * len(ids)}, schema=OUTCOMES)

    join.add(requests(1, 2, 3, 4), outcomes())
    join.add(requests(5, 6), outcomes())  # twelve scores: the newest two requests stay
    assert join.add(requests().cast(REQUESTS), outcomes(1, 5, 6))["user"].sort().to_list() == [5, 6]


def test_many_users_are_sampled_without_moving_the_mean() -> None:
    users, number = UserTable(max_rows=1_000), 20_000
    ids = pl.Series(range(number)).hash()
    frame = pl.DataFrame({"user": ids, "step": [0] * number, "canary": np.arange(number) % 4 == 0})
    users.add_event(frame, "users")
    users.add_outcomes(frame.with_columns(shown=pl.lit(1), positive=(pl.int_range(pl.len()) % 10 < 3).cast(pl.Int64)))
    values = users.values(1)
    assert values.shown_items.shape[0] <= 1_000
    assert values.positive_items.mean() == pytest.approx(0.3, abs=0.06)
    counts = users.count_by_step()[0]
    assert counts[True].users + counts[False].users == pytest.approx(number, rel=0.15)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=300), st.floats(0.01, 0.999))
def test_a_quantile_is_exact_to_one_percent(microseconds: list[int], share: float) -> None:
    milliseconds = np.array(microseconds) / 1000
    exact = float(np.quantile(milliseconds, share, method="inverted_cdf"))
    quantile_ms = Latencies.from_milliseconds(milliseconds).quantile_ms(share)
    assert quantile_ms is not None
    assert exact * (1 - 1e-9) <= quantile_ms * (1 + 1e-9)
    assert quantile_ms <= exact * 1.011 + 0.001


@given(st.lists(st.integers(1, 10**7), max_size=100), st.integers(1, 10**7))
def test_nothing_within_a_limit_counts_as_slower(microseconds: list[int], limit: int) -> None:
    latencies = Latencies.from_milliseconds(np.array(microseconds, dtype=float) / 1000)
    slower = latencies.count_slower(limit / 1000)
    assert (
        sum(latency > 1.02 * limit for latency in microseconds)
        <= slower
        <= sum(latency > limit for latency in microseconds)
    )
