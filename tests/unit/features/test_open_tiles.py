"""Open tiles: live counts equal those of training and, when a tile ends, those of batch counting."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import KeyedView, Total, with_rows
from shortlist.features.counts.statistics import KeyCount, count, countable
from shortlist.features.counts.tiles import TILE, Tiles, microseconds
from shortlist.features.live.open_counts import OpenCounts, open_positives_column, open_rows_column, open_settled_column
from shortlist.features.live.open_events import (
    AnsweredRequest,
    OpenList,
    OpenRequest,
    RowOutcome,
    StreamingPlan,
    join_key_values,
)
from shortlist.features.live.open_lists import open_list_column
from shortlist.features.live.open_sessions import OpenSessions
from shortlist.features.live.open_tiles import ClosedTile, OpenTiles
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import codes_of
from shortlist.features.values.lists import map_values
from shortlist.serving.log.event_checkpoint import (
    EventCheckpoint,
    checkpoint_path,
    read_checkpoint,
    write_checkpoint,
)
from shortlist.spec.data import Data

START = datetime(2026, 3, 28, 20, tzinfo=UTC)  # the clocks of Berlin go forward that night
SECOND = 1_000_000
SECONDS = 12 * 3600
KEYS = (("user_id",), ("page",), ("page", "user_id"))
LISTS = (OpenList("pages", "user_id", "page", 3), OpenList("liked", "page", "user_id", 2, positives=True))
DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "page", "type": "string"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": "Europe/Berlin"},
        "user": "user_id",
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)


def at(seconds: float) -> int:
    return microseconds(START + timedelta(seconds=seconds))


def streaming(tile: timedelta, delay: timedelta, outcome_delay: timedelta) -> StreamingPlan:
    tiles = Tiles(tile, outcome_delay, "Europe/Berlin")
    skew = timedelta(seconds=5)
    return StreamingPlan(KEYS, tiles, delay, outcome_delay if outcome_delay else None, skew, LISTS)


STREAMINGS = st.builds(
    streaming,
    st.sampled_from([timedelta(minutes=10), timedelta(hours=1), timedelta(days=1)]),
    st.sampled_from([timedelta(), timedelta(seconds=1), timedelta(minutes=5)]),
    st.sampled_from([timedelta(), timedelta(minutes=1), timedelta(hours=2)]),
)
PAGES = st.sampled_from(["home", "Zürich", None])
ROWS = st.lists(
    st.tuples(st.integers(0, 2), PAGES, st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 1)), max_size=3)),
    min_size=1,
    max_size=3,
)
REQUESTS = st.lists(
    # Four seconds apart at least: which of two requests of one moment comes first, a log says and a server does not.
    st.tuples(
        st.integers(0, SECONDS // 4).map(lambda place: 4 * place),
        st.sampled_from([1, 2, 2**60, None]),
        ROWS,
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda request: request[0],
)


class Log:
    """Requests and their outcomes, as events and as rows of the log."""

    def __init__(self, requests: Sequence[tuple], plan: StreamingPlan) -> None:
        self.impressions: list[AnsweredRequest] = []
        self.outcomes: list[RowOutcome] = []
        rows = []
        for number, (seconds, user, impressions, one_time) in enumerate(requests):
            times = [at(seconds)] if one_time else [at(seconds + seconds_later) for seconds_later, _, _ in impressions]
            keys = {"user_id": [user], "page": [page for _, page, _ in impressions]}
            request = AnsweredRequest(str(number), at(seconds), times, keys, len(impressions))
            self.impressions.append(request)
            for row, (_, page, outcomes_of_row) in enumerate(impressions):
                outcomes = [
                    RowOutcome(str(number), row, label, at(seconds + seconds_after))
                    for seconds_after, label in outcomes_of_row
                ]
                self.outcomes += outcomes
                counted = sorted(
                    (outcome.time, outcome.label)
                    for outcome in outcomes
                    if plan.longest_outcome is None
                    or timedelta(microseconds=outcome.time - request.answered) <= plan.longest_outcome
                )
                time = times[row if len(times) > 1 else 0]
                rows.append((user, page, time, counted[-1][1] if counted else 0))
        names = ("user_id", "page", Columns.TIME, Columns.LABEL)
        schema = dict(zip(names, (pl.Int64, pl.String, pl.Int64, pl.Int8), strict=True))
        self.rows = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
            pl.col(Columns.TIME).cast(pl.Datetime("us", "UTC"))
        )

    def deliver(self, tiles: OpenTiles, seed: int) -> None:
        """Add all events, in any order, some of them twice."""
        random = Random(seed)
        events: list[AnsweredRequest | RowOutcome] = [*self.impressions, *self.outcomes]
        events += random.choices(events, k=len(events) // 2)
        random.shuffle(events)
        for event in events:
            tiles.add_request(event) if isinstance(event, AnsweredRequest) else tiles.add_outcome(event)


def counts_and_lists(tiles: OpenTiles, users: Sequence[int | None], pages: Sequence[str | None]) -> list[list]:
    values_by_key = (users, pages, join_key_values([pages, users]))
    columns: list[list] = [counts.tolist() for key, values in zip(KEYS, values_by_key, strict=True)
                         for counts in tiles.counts(key, values)]  # fmt: skip
    for open_list, values in zip(LISTS, (users, pages), strict=True):
        event_lists = tiles.sessions.event_lists(open_list, values)
        ends = np.cumsum(event_lists.lengths)[:-1]
        columns += [
            [part.tolist() for part in np.split(numbers_of_lists, ends)]
            for numbers_of_lists in (event_lists.codes, event_lists.times)
        ]
    return columns


def trained(counts: OpenCounts, moment: int, users: Sequence[int | None], pages: Sequence[str | None]) -> list[list]:
    times = pl.Series([moment] * len(users)).cast(pl.Datetime("us", "UTC"))
    rows = pl.DataFrame({"user_id": users, "page": pages, Columns.TIME: times})
    columns = counts.columns(rows)
    counted: list[list] = [
        columns[place(key)].to_list()
        for key in KEYS
        for place in (open_rows_column, open_positives_column, open_settled_column)
    ]
    list_columns = [
        columns[open_list_column(open_list, feature)] for open_list in LISTS for feature in open_list.features
    ]
    return [*counted, *(map_values(list_column, codes_of).to_list() for list_column in list_columns)]


@settings(deadline=None, max_examples=60)
@given(REQUESTS, STREAMINGS, st.lists(st.integers(0, 2 * SECONDS), min_size=1, max_size=6), st.integers())
def test_a_request_sees_the_counts_and_lists_of_training(
    requests: list[tuple], plan: StreamingPlan, moments: list[int], seed: int
) -> None:
    log = Log(requests, plan)
    tiles, counts = OpenTiles(plan), OpenCounts(plan, log.rows)
    log.deliver(tiles, seed)
    users, pages = [1, 2, 2**60, None, 7], ["home", "Zürich", None, "never seen", "home"]
    for moment in sorted(map(at, moments)):
        tiles.advance(moment)
        assert counts_and_lists(tiles, users, pages) == trained(counts, moment, users, pages)


@settings(deadline=None, max_examples=40)
@given(REQUESTS, STREAMINGS, st.integers(0, 2 * SECONDS), st.integers(0, 20_000))
def test_a_collected_row_has_the_counts_of_its_delayed_server(
    requests: list[tuple], plan: StreamingPlan, second: int, behind_ms: int
) -> None:
    counts = OpenCounts(plan, Log(requests, plan).rows)
    moment = pl.Series([at(second)] * 5).cast(pl.Datetime("us", "UTC"))
    rows = pl.DataFrame(
        {"user_id": [1, 2, 2**60, None, 7], "page": ["home", "Zürich", None, "never seen", "home"],
         Columns.TIME: moment}
    )  # fmt: skip
    slower = OpenCounts(
        replace(plan, delay=max(plan.delay, timedelta(milliseconds=behind_ms))), Log(requests, plan).rows
    )

    def served(delay: float | None) -> pl.DataFrame:
        return counts.columns(rows.with_columns(pl.lit(delay, pl.Float32).alias(Columns.COUNTS_DELAY)))

    assert served(float(behind_ms)).equals(slower.columns(rows))
    assert served(None).equals(counts.columns(rows))  # a row of the declared source
    infinitely_delayed = served(float("inf")).select(open_rows_column(key) for key in KEYS)
    assert infinitely_delayed.sum_horizontal().sum() == 0  # nothing was counted yet


@settings(deadline=None, max_examples=40)
@given(REQUESTS, STREAMINGS, st.lists(st.integers(0, 2 * SECONDS), min_size=1, max_size=6), st.integers())
def test_a_restored_checkpoint_continues_like_the_original(
    requests: list[tuple], plan: StreamingPlan, moments: list[int], seed: int
) -> None:
    log, tiles, random = Log(requests, plan), OpenTiles(plan), Random(seed)
    ahead = [
        AnsweredRequest("ahead", at(0), [at(3)], {"user_id": [1], "page": ["home"]}, 1),
        AnsweredRequest("0", at(0), [at(3)], {"user_id": [1], "page": ["home"]}, 1, "192.0.2.7"),
        RowOutcome("nobody", 0, 1, at(9)),
    ]
    events: list[AnsweredRequest | RowOutcome] = [*log.impressions, *log.outcomes, *ahead]
    random.shuffle(events)
    users, pages = [1, 2, 2**60, None, 7], ["home", "Zürich", None, "never seen", "home"]
    for moment in sorted(map(at, moments)):
        for event in events[: len(events) // 2]:
            tiles.add_request(event) if isinstance(event, AnsweredRequest) else tiles.add_outcome(event)
        random.shuffle(events)
        tiles.advance(moment)
        with TemporaryDirectory() as folder:
            path = checkpoint_path(Path(folder), plan)
            write_checkpoint(path, EventCheckpoint(tiles.state(), {"stream": 3}, {"outcomes": 4}))
            checkpoint = read_checkpoint(path, plan)
        assert checkpoint is not None
        assert (checkpoint.events, checkpoint.outcomes) == ({"stream": 3}, {"outcomes": 4})
        restored = OpenTiles(plan)
        restored.restore(checkpoint.state)
        for event in events:
            for open_tiles in (tiles, restored):
                open_tiles.add_request(event) if isinstance(event, AnsweredRequest) else open_tiles.add_outcome(event)
        later_moment = moment + random.randrange(2 * SECONDS) * SECOND
        assert tiles.advance(later_moment) == restored.advance(later_moment)
        assert counts_and_lists(tiles, users, pages) == counts_and_lists(restored, users, pages)
        tiles = restored  # the next one is of a restored one


@settings(deadline=None, max_examples=25)
@given(REQUESTS, STREAMINGS, st.lists(st.integers(0, 2 * SECONDS), max_size=4), st.integers())
def test_a_closed_tile_equals_the_batch_counts_byte_by_byte(
    requests: list[tuple], plan: StreamingPlan, moments: list[int], seed: int
) -> None:
    log, tiles = Log(requests, plan), OpenTiles(plan)
    log.deliver(tiles, seed)
    closed: list[ClosedTile] = []
    for moment in [*sorted(map(at, moments)), at(10 * SECONDS)]:
        closed += tiles.advance(moment)
    with TemporaryDirectory() as folder:
        for (key,), dtype in zip(KEYS[:2], (pl.Int64(), pl.String()), strict=True):
            view = KeyedView((key,), totals=with_rows(Total("sum_label")), by_tile=True)
            batch, streamed = (KeyCount(view, Path(folder), "cpu") for _ in range(2))
            ends = [plan.tiles.tile_bounds(time)[1] for time in log.rows[Columns.TIME].to_physical()]
            rows = log.rows.with_columns(pl.Series(TILE, ends))
            batch.add(count(countable(rows, [view], DeclaredColumns(DATA)), [view], "cpu")[0])
            for tile in closed:
                streamed.add(tile.statistics(key, dtype))
            files = [Path(folder, f"{key}-{name}.parquet") for name in ("batch", "streamed")]
            batch.finish(files[0], 1000)
            streamed.finish(files[1], 1000)
            assert files[0].read_bytes() == files[1].read_bytes()


HOUR = StreamingPlan(KEYS, Tiles(timedelta(hours=1), timedelta(minutes=5)), timedelta(seconds=1), timedelta(minutes=5))


def answered_request(request: str, seconds: float, user: int = 1, rows: int = 1) -> AnsweredRequest:
    return AnsweredRequest(request, at(seconds), [at(seconds)], {"user_id": [user]}, rows)


def rows_and_positives(tiles: OpenTiles, user: int = 1) -> tuple[int, int]:
    rows, positives, _ = tiles.counts(("user_id",), [user])
    return int(rows[0]), int(positives[0])


def test_an_impression_counts_after_the_delay_and_its_outcome_after_outcome_delay() -> None:
    tiles = OpenTiles(HOUR)
    tiles.add_request(answered_request("a", 0))
    tiles.add_outcome(RowOutcome("a", 0, 1, at(2)))
    counts_by_second = []
    for seconds in (1, 1.001, 301, 301.001, 3_600, 3_899.9, 3_900):
        tiles.advance(at(seconds))
        counts_by_second.append(rows_and_positives(tiles))
    assert counts_by_second == [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 1), (0, 0)]


def test_the_last_of_several_outcomes_of_a_row_counts() -> None:
    tiles = OpenTiles(HOUR)
    tiles.add_request(answered_request("a", 0))
    tiles.add_outcome(RowOutcome("a", 0, 1, at(20)))
    tiles.add_outcome(RowOutcome("a", 0, 0, at(10)))  # delivered later, but happened earlier
    tiles.advance(at(350))
    assert rows_and_positives(tiles) == (1, 1)
    tiles.add_outcome(RowOutcome("a", 0, 0, at(30)))  # also after its label was counted
    assert rows_and_positives(tiles) == (1, 0)


def test_an_outcome_without_a_row_is_that_of_the_first_row_of_its_item() -> None:
    tiles = OpenTiles(replace(HOUR, keys=(("item",),), item="item"))
    keys = {"item": ["tea", "milk", "tea"]}
    tiles.add_outcome(RowOutcome("a", None, 1, at(2), "milk"))  # it waits for its request
    tiles.add_request(AnsweredRequest("a", at(0), [at(0)], keys, 3))
    for item in ("tea", "tea", "coffee", None):
        tiles.add_outcome(RowOutcome("a", None, 1, at(2), item))
    tiles.advance(at(350))
    _, positives, _ = tiles.counts(("item",), ["tea", "milk", "coffee"])
    assert positives.tolist() == [1, 1, 0]


def test_requests_with_guessed_ids_erase_no_count() -> None:
    """One is answered before the request whose id it has, and one is counted twice by nobody."""
    tiles, request = OpenTiles(HOUR), answered_request("a", 2)
    guessed = replace(request, keys={"user_id": [9]}, answered=at(1), times=[at(1)], sender="192.0.2.7")
    for impressions in (guessed, request, guessed, request):
        tiles.add_request(impressions)
    tiles.add_outcome(RowOutcome("a", 0, 1, at(20)))
    tiles.advance(at(350))
    assert rows_and_positives(tiles) == (1, 1)
    assert len(tiles.state().requests) == 2


@pytest.mark.parametrize(
    "outcome",
    [
        RowOutcome("a", 1, 1, at(2)),  # there is no such row
        RowOutcome("a", -1, 1, at(2)),
        RowOutcome("a", 0, 1, at(301)),  # later than the log would count it
        RowOutcome("b", 0, 1, at(2)),  # there is no such request
    ],
)
def test_outcomes_that_batch_counting_ignores_are_ignored(outcome: RowOutcome) -> None:
    tiles = OpenTiles(HOUR)
    tiles.add_request(answered_request("a", 0))
    tiles.add_outcome(outcome)
    tiles.advance(at(400))
    assert rows_and_positives(tiles) == (1, 0)


def test_an_outcome_of_a_clock_that_is_behind_counts_at_the_answer() -> None:
    tiles = OpenTiles(HOUR)
    tiles.add_request(answered_request("a", 0))
    tiles.add_outcome(RowOutcome("a", 0, 1, at(-3_600)))
    tiles.advance(at(400))
    assert rows_and_positives(tiles) == (1, 1)


def test_a_request_with_a_clock_far_ahead_is_not_counted_because_the_log_refuses_its_rows() -> None:
    tiles = OpenTiles(replace(HOUR, clock_skew=timedelta(seconds=2)))
    tiles.add_request(AnsweredRequest("a", at(0), [at(2), at(2.001)], {"user_id": [1]}, 2))
    tiles.advance(at(100))
    assert rows_and_positives(tiles) == (1, 0)


def test_events_of_a_closed_tile_are_counted_as_too_late() -> None:
    tiles = OpenTiles(HOUR)
    tiles.add_request(answered_request("a", 3_599, rows=2))
    tiles.advance(at(3_901))  # its hour ends at 3600, and views can hold it at 3900
    tiles.add_request(answered_request("b", 3_000, rows=2))
    tiles.add_outcome(RowOutcome("a", 0, 1, at(3_600)))
    tiles.advance(at(3_902))
    assert (rows_and_positives(tiles), tiles.too_late) == ((0, 0), 3)


def test_a_request_is_forgotten_when_its_outcomes_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.features.live.open_tiles._MIN_REMEMBERED_REQUESTS", 0)
    tiles = OpenTiles(HOUR)
    for number in range(1000):
        tiles.add_request(answered_request(str(number), number))
        tiles.advance(at(number))
    # Those of the last 300 s outcomes take, 60 s of grace, 1 s of delay.
    assert len(tiles._requests) == 300 + 60 + 1 + 1


def test_outcomes_without_a_request_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.features.live.open_tiles._MAX_UNMATCHED_OUTCOMES", 10)
    tiles = OpenTiles(HOUR)
    for number in range(25):
        tiles.add_outcome(RowOutcome(f"never-{number}", 0, 1, at(0)))
    assert (len(tiles._unmatched), tiles.too_late) == (10, 15)


def sessions(users: int, events: int, max_bytes: int) -> OpenSessions:
    """Return the sessions of users, each with a number of events in one tile, one user after the other."""
    open_sessions = OpenSessions(LISTS[:1], max_bytes)
    for user in range(users):
        for number in range(events):
            answered_request = AnsweredRequest("a", at(0), [at(number)], {"user_id": [user], "page": [number]}, 1)
            open_sessions.add(at(0), OpenRequest(answered_request), [0], positives=False)
    return open_sessions


def test_a_session_of_10_000_events_keeps_its_newest_events() -> None:
    open_sessions = sessions(users=1, events=10_000, max_bytes=2**20)
    event_lists = open_sessions.event_lists(LISTS[0], [0])
    assert event_lists.codes.tolist() == [9_999, 9_998, 9_997]
    assert open_sessions.bytes == 240 + 3 * 15


def test_beyond_the_declared_memory_the_longest_inactive_sessions_are_dropped() -> None:
    bytes_per_user = 240 + 2 * 15
    open_sessions = sessions(users=40, events=2, max_bytes=20 * bytes_per_user)
    lengths = open_sessions.event_lists(LISTS[0], range(40)).lengths
    assert open_sessions.bytes <= 20 * bytes_per_user
    assert open_sessions.dropped == 40 - np.count_nonzero(lengths)
    assert lengths[-19:].tolist() == [2] * 19
    assert not lengths[:20].any()
    open_sessions.close(at(0))
    assert (open_sessions.bytes, open_sessions.event_lists(LISTS[0], [39]).codes.tolist()) == (0, [])


@pytest.mark.long
def test_sessions_take_at_most_the_declared_memory() -> None:
    tracemalloc.start()
    open_sessions = sessions(users=4_000, events=3, max_bytes=2**30)
    traced_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * open_sessions.bytes < traced_bytes <= open_sessions.bytes


def bounded(max_count_bytes: int) -> OpenTiles:
    plan = streaming(timedelta(hours=1), timedelta(), timedelta(minutes=10))
    return OpenTiles(replace(plan, lists=(), max_count_bytes=max_count_bytes))


def answer(number: int, seconds: float, rows: int = 1, text: str = "page") -> AnsweredRequest:
    keys = {"user_id": [number], "page": [f"{text} {number}"]}
    return AnsweredRequest(str(number), at(seconds), [at(seconds)], keys, rows)


def test_memory_is_bounded_and_uncounted_rows_are_reported_until_their_tile_is_complete() -> None:
    tiles, max_count_bytes = bounded(200_000), 0
    for number in range(1_000):
        tiles.add_request(answer(number, number / 100, text="x" * 500))
        tiles.advance(at(number / 100))
        max_count_bytes = max(max_count_bytes, tiles.bytes)
    assert max_count_bytes <= 200_000
    counted = sum(tiles.counts(("user_id",), range(1_000))[0])
    assert 50 < counted < 150
    assert 1_000 - 1 <= counted + tiles.uncounted <= 1_010  # the newest waits; of some one of two values was counted
    assert tiles.problem == (
        f"{tiles.uncounted} rows were not counted: the memory of the open tiles is used up"
        " (features.streaming.max_count_bytes 200000)"
    )
    tiles.advance(at(2 * 3600))
    assert (tiles.bytes < 200_000, tiles.problem) == (True, None)
    uncounted_before = tiles.uncounted
    tiles.add_request(answer(5_000, 2 * 3600 + 1))  # requests of which everything is counted make room
    assert tiles.uncounted == uncounted_before


def test_beyond_the_memory_only_values_that_have_counts_are_counted() -> None:
    tiles = bounded(12_000)
    for number in range(8):
        tiles.add_request(answer(number, number))
        tiles.advance(at(number + 1))
    assert tiles.bytes > 12_000 - 1_500
    counts_before = tiles.counts(("user_id",), [0])[0][0]
    tiles.add_request(AnsweredRequest("again", at(8), [at(8)], {"user_id": [0], "page": ["new"]}, 1))
    tiles._has_room = lambda size: True  # as if it had come before the others
    tiles.add_request(AnsweredRequest("again", at(8), [at(8)], {"user_id": [0], "page": ["new"]}, 1))
    tiles.advance(at(9))
    assert tiles.counts(("user_id",), [0])[0][0] == counts_before + 1


def test_a_withdrawn_label_that_was_not_counted_is_not_subtracted() -> None:
    tiles = bounded(2**20)
    tiles.add_request(answer(1, 0))
    tiles.add_outcome(RowOutcome("1", 0, 1, at(1)))
    tiles._streaming = replace(tiles._streaming, max_count_bytes=0)  # full when the label is counted
    tiles.advance(at(700))
    tiles.add_outcome(RowOutcome("1", 0, 0, at(2)))
    assert tiles.counts(("user_id",), [1])[1][0] == 0


def test_the_number_of_outcomes_without_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shortlist.features.live.open_tiles._MAX_UNMATCHED_OUTCOMES", 10)
    tiles = bounded(2**20)
    for number in range(100):
        tiles.add_outcome(RowOutcome("one", 0, 1, at(number)))
        tiles.add_outcome(RowOutcome(f"other {number}", 0, 1, at(number)))
    assert sum(map(len, tiles._unmatched.values())) <= 10
    assert tiles.too_late == 200 - sum(map(len, tiles._unmatched.values()))
