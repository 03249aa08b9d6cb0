"""One user or sender moves live counts by at most its share, and honest traffic keeps its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from shortlist.features.counts.tiles import Tiles, microseconds
from shortlist.features.live.open_events import AnsweredRequest, OpenList, RowOutcome, StreamingPlan
from shortlist.features.live.open_shares import name_sender, name_user
from shortlist.features.live.open_tiles import OpenTiles

START = microseconds(datetime(2026, 3, 2, 12, tzinfo=UTC))
SECOND = 1_000_000
KEYS = (("item",), ("category",), ("user",))
PLAN = StreamingPlan(
    KEYS, Tiles(timedelta(hours=1), timedelta(minutes=5)), timedelta(seconds=1), timedelta(minutes=5),
    timedelta(minutes=5), (OpenList("users_of_item", "item", "user", 50),), user="user", item="item", max_share=0.01,
)  # fmt: skip
HOSTILE = name_sender("192.0.2.7")


class Traffic:
    """Requests of one row, which a server answers in order."""

    def __init__(self, tiles: OpenTiles) -> None:
        self.tiles, self.seconds, self.number, self.uncounted = tiles, 0.0, 0, 0
        tiles.advance(START)

    def send(self, contributor: str | None, items: Sequence[int], user: int = 1, times: int | None = None) -> list[int]:
        """Answer a request, and return its rows that do not count."""
        self.number += 1
        now = START + round(self.seconds * SECOND)
        keys: dict[str, list[int | str | None]] = {
            "item": [*items], "category": [f"c{item % 5}" for item in items], "user": [user],
        }  # fmt: skip
        event = self.tiles.decide(
            AnsweredRequest(str(self.number), now, [now], keys, len(items), str(contributor), [contributor])
        )
        self.tiles.add_request(event)
        self.uncounted += len(event.uncounted)
        return list(event.uncounted)

    def honest(self, requests: int, senders: bool = False) -> None:
        """Answer requests of 2 000 users, of 1 to 5 of 300 items each, in half an hour."""
        random = Random(round(self.seconds))
        for _ in range(requests):
            user = random.randrange(2_000)
            items = random.sample(range(300), random.randint(1, 5))
            self.send(name_sender(f"10.0.{user}") if senders else name_user(user), items, user)
            self.seconds += 1_800 / requests

    def count(self, name: str, value: int | str) -> int:
        self.seconds += 3.0
        self.tiles.advance(START + round(self.seconds * SECOND))
        return int(self.tiles.counts((name,), [value])[0][0])


@pytest.mark.parametrize("senders", [False, True])
def test_honest_users_of_one_backend_and_many_honest_senders_lose_no_row(senders: bool) -> None:
    traffic = Traffic(OpenTiles(PLAN))
    for _ in range(5):  # tiles
        traffic.honest(2_000, senders)
        traffic.seconds += 1_800
    assert traffic.uncounted == 0


@pytest.mark.parametrize(
    ("hostile", "senders"), [(HOSTILE, False), (HOSTILE, True), (name_user("greedy"), False)]
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])  # the tile before had traffic in any case
def test_ten_thousand_rows_of_one_item_count_as_a_share_of_its_tile(hostile: str, senders: bool, first: bool) -> None:
    quiet, attacked = (Traffic(OpenTiles(PLAN)) for _ in range(2))
    for traffic in (quiet, attacked):
        traffic.honest(4_000, senders)
        traffic.seconds = 3_600.0
        if traffic is attacked and first:
            traffic.send(hostile, [7] * 5_000)
            for _ in range(5_000):
                traffic.send(hostile, [7])
        traffic.honest(4_000, senders)
        if traffic is attacked:
            traffic.send(hostile, [7] * 5_000)
            for _ in range(5_000):
                traffic.send(hostile, [7])
    moved = attacked.count("item", 7) - quiet.count("item", 7)
    assert 0 < moved <= 4  # a share of about 40 rows is less than four times a typical contribution
    assert attacked.count("category", "c2") - quiet.count("category", "c2") == moved
    assert [attacked.count("item", item) for item in range(300) if item != 7] == [
        quiet.count("item", item) for item in range(300) if item != 7
    ]


def test_ten_thousand_addresses_of_one_network_count_as_one_address() -> None:
    counts = []
    for client in ("192.0.2.7", "2001:db8:0:{:x}::1"):
        traffic = Traffic(OpenTiles(PLAN))
        traffic.honest(4_000)
        for address in range(10_000):
            traffic.send(name_sender(client.format(address)), [7])
        counts.append(traffic.count("item", 7))
    assert counts[0] == counts[1]


def test_an_item_with_most_rows_of_a_tile_is_moved_by_the_share() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    for user in range(10_000):
        traffic.send(name_user(user), [7], user)
    for _ in range(10_000):
        traffic.send(HOSTILE, [7])
    assert traffic.count("item", 7) == 10_000 + 101  # c = 0.01 (10 000 + c)


def test_rows_of_many_items_count_as_a_share_of_the_tile() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(4_000)
    before = [traffic.count("item", item) for item in range(300)]
    for repeat in range(100):
        traffic.send(HOSTILE, [(repeat + item) % 300 for item in range(300)])
    moved = [traffic.count("item", item) - count for item, count in enumerate(before)]
    assert 0 < sum(moved) <= 0.0102 * sum(before)
    assert max(moved) <= 1 + 0.01 * max(before)


def test_rows_that_do_not_count_have_no_outcome_and_are_in_no_list() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    traffic.seconds = 3_600.0
    traffic.honest(400)
    before = traffic.count("item", 7)
    (first, *_), uncounted = range(100), traffic.send(HOSTILE, [7] * 100, user=99)
    assert first not in uncounted and len(uncounted) > 90
    moment = START + round(traffic.seconds * SECOND)
    for row in range(100):
        traffic.tiles.add_outcome(RowOutcome(str(traffic.number), row, 1, moment))
    traffic.seconds += 310
    counted = 100 - len(uncounted)
    assert traffic.count("item", 7) == before + counted
    assert traffic.tiles.counts(("item",), [7])[1].tolist() == [counted]
    listed = traffic.tiles.sessions.event_lists(PLAN.lists[0], [7]).codes.tolist()
    assert listed.count(99) == counted


def test_whoever_is_alone_is_not_cut_until_another_one_comes() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    assert traffic.send(HOSTILE, [7] * 1_000) == []
    traffic.honest(100)
    assert len(traffic.send(HOSTILE, [7] * 1_000)) == 1_000


def test_a_sender_beside_a_backend_has_the_share_or_that_of_one_user() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    other = Traffic(OpenTiles(PLAN))
    other.honest(2_000)
    sent = [7] * 4
    assert (len(traffic.send(HOSTILE, sent)), len(other.send(name_user("other"), sent))) == (3, 0)


def test_users_that_a_sender_invents_have_its_share_together() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    before = traffic.count("item", 7)
    for user in range(3_000, 4_000):
        traffic.send(HOSTILE, [7], user)
    assert traffic.count("item", 7) == before + 1


def test_rows_of_other_days_and_moments_take_no_share() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    state = traffic.tiles.state().shares
    now = START + round(traffic.seconds * SECOND)
    for time in (-1, 0, START - 86_400 * SECOND, now + 400 * SECOND):
        event = AnsweredRequest(f"at {time}", now, [time], {"item": [7]}, 1, "x", [HOSTILE])
        assert traffic.tiles.decide(event) == event
    assert list(traffic.tiles.state().shares.tiles) == list(state.tiles)


def test_a_repeated_request_has_the_previously_uncounted_rows() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    event = AnsweredRequest("a", START, [START], {"item": [7] * 9}, 9, "x", [HOSTILE])
    decided = traffic.tiles.decide(event)
    assert decided.uncounted == [*range(1, 9)]
    assert traffic.tiles.decide(event) == decided  # it waits to be read
    traffic.tiles.add_request(decided)
    assert traffic.tiles.decide(event) == decided
    assert traffic.tiles.decide(replace(event, rows=3)).uncounted == [1, 2]


def test_rows_that_another_server_counted_are_of_the_share() -> None:
    traffic = Traffic(OpenTiles(PLAN))
    traffic.honest(2_000)
    now = START + round(traffic.seconds * SECOND)
    traffic.tiles.add_request(AnsweredRequest("other", now, [now], {"item": [7]}, 1, "x", [HOSTILE]))
    assert traffic.send(HOSTILE, [7]) == [0]


def test_memory_is_bounded_and_costs_no_honest_row() -> None:
    plan = replace(PLAN, max_count_bytes=2**20)
    tiles = OpenTiles(plan)
    traffic = Traffic(tiles)
    for user in range(4_000):
        traffic.send(name_user(user), [user % 900, 900 + user % 700], user)
    assert traffic.uncounted == 0
    (shares,) = tiles.state().shares.tiles.values()
    assert sum(shares.sizes) == sum(len(counts) for group in shares.groups for counts in group.values())
    assert 120 * sum(shares.sizes) <= 2**17 * 17 / 16 + 2_000
    for _ in range(3_000):
        traffic.send(HOSTILE, [7])
    assert traffic.count("item", 7) <= 10


def test_an_empty_value_counts_like_any_value() -> None:
    traffic = Traffic(OpenTiles(replace(PLAN, keys=(("page",),), item=None)))
    for user in range(2_000):
        traffic.send(name_user(user), [user], user)
    later = START + 3_600 * SECOND
    event = AnsweredRequest("empty", later, [later], {"page": [""]}, 15, "x", [HOSTILE])
    traffic.tiles.add_request(replace(event, request="others", contributors=["u1"], sender="y"))
    assert len(traffic.tiles.decide(event).uncounted) == 14


def test_a_share_of_one_is_no_limit() -> None:
    traffic = Traffic(OpenTiles(replace(PLAN, max_share=1.0)))
    traffic.honest(200)
    before = traffic.count("item", 7)
    assert traffic.send(HOSTILE, [7] * 1_000) == []
    assert traffic.count("item", 7) == before + 1_000
