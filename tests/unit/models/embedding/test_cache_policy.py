from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.embedding.table.cache_policy import HALF_LIFE, WINDOW, CacheError, CacheState, CacheUpdate

Batches = list[list[int]]


class SlowResidents:
    """The documented cache policy, one slot at a time. Between rows of equal frequency it accepts either choice."""

    def __init__(self, slots: int) -> None:
        self.slots, self.hand, self.batch = slots, 0, 0
        self.row: list[int] = []
        self.looked_up: list[list[int]] = []
        """Numbers of the batches that looked up the row of each slot since it was fetched."""

    def follow(self, batch: list[int], update: CacheUpdate) -> None:
        """Check an update against the policy, then apply it."""
        self.batch += 1
        missing = sorted(set(batch) - set(self.row))
        assert update.fetched_K.tolist() == missing
        assert update.hits == sum(row in self.row for row in batch)
        free = min(len(missing), self.slots - len(self.row))
        assert update.slots_K[:free].tolist() == list(range(len(self.row), len(self.row) + free))
        assert update.evicted_K[:free].tolist() == [-1] * free
        self.row += [-1] * free
        self.looked_up += [[] for _ in range(free)]
        spoken_for = set(update.slots_K[:free].tolist())
        victims = update.slots_K[free:].tolist()
        self._check_victims(victims, batch, spoken_for)
        assert update.evicted_K[free:].tolist() == [self.row[slot] for slot in victims]
        for slot, row in zip(update.slots_K.tolist(), missing, strict=True):
            self.row[slot], self.looked_up[slot] = row, []
        for row in set(batch):
            self.looked_up[self.row.index(row)].append(self.batch)
        assert update.slots_L.tolist() == [self.row.index(row) for row in batch]

    def _check_victims(self, victims: list[int], batch: list[int], spoken_for: set[int]) -> None:
        if not victims:
            return
        hand_range = WINDOW * len(victims)
        while True:
            passed = [(self.hand + i) % self.slots for i in range(min(hand_range, self.slots))]
            idle = {slot for slot in passed if self.row[slot] not in batch} - spoken_for
            if len(idle) >= len(victims):
                break
            hand_range *= 2
        assert len(set(victims)) == len(victims)
        assert set(victims) <= idle
        idle_frequencies = [self._frequency(slot) for slot in idle - set(victims)]
        assert max(map(self._frequency, victims)) <= min(idle_frequencies, default=np.inf) * (1 + 1e-9)
        self.hand = (passed[-1] + 1) % self.slots

    def _frequency(self, slot: int) -> float:
        return sum(0.5 ** ((self.batch - batch) / HALF_LIFE) for batch in self.looked_up[slot])


@st.composite
def traffic(draw: st.DrawFn) -> tuple[int, int, Batches]:
    slots = draw(st.integers(1, 12))
    rows = draw(st.integers(slots, 40))
    lookups = st.lists(st.integers(0, rows - 1), max_size=20)
    batches = draw(st.lists(lookups, max_size=25))
    fitting = [batch for batch in batches if len(set(batch)) <= slots]
    return rows, slots, fitting


@given(traffic())
def test_cached_rows_are_those_of_the_slow_policy(batches_of_table: tuple[int, int, Batches]) -> None:
    rows, slots, batches = batches_of_table
    fast, slow = CacheState(rows, slots), SlowResidents(slots)
    for batch in batches:
        slow.follow(batch, fast.admit_batch(np.array(batch, np.int32)))
        assert fast.rows.tolist() == slow.row


@given(traffic())
def test_every_look_up_finds_its_row_and_no_row_of_the_batch_leaves(batches_of_table: tuple[int, int, Batches]) -> None:
    rows, slots, batches = batches_of_table
    residents = CacheState(rows, slots)
    device = np.full(slots, -1)
    for batch in batches:
        update = residents.admit_batch(np.array(batch, np.int32))
        assert np.array_equal(device[update.slots_K], update.evicted_K)  # evicted rows are the rows in the slots
        assert not set(update.evicted_K.tolist()) & set(batch)
        device[update.slots_K] = update.fetched_K
        assert device[update.slots_L].tolist() == batch
        assert len(residents.rows) <= slots
        assert len(set(residents.rows.tolist())) == len(residents.rows)


def test_the_frequent_row_stays_and_the_rare_ones_leave() -> None:
    residents = CacheState(rows=100, slots=4)
    for rare in range(1, 60):
        update = residents.admit_batch(np.array([0, rare], np.int32))
        assert 0 not in update.evicted_K
    assert residents.admit_batch(np.array([0, 59, 58], np.int32)).hits == 3


def test_what_was_frequent_long_ago_leaves_in_the_end() -> None:
    residents = CacheState(rows=2_000, slots=8)
    for _ in range(20):
        residents.admit_batch(np.array([0], np.int32))
    left_after = next(row for row in range(1, 2_000) if 0 in residents.admit_batch(np.array([row], np.int32)).evicted_K)
    # Twenty look-ups count less than one new one after log2(20) half-lives; before, newer rows leave first.
    assert 0.8 * HALF_LIFE * np.log2(20) < left_after < 1.2 * HALF_LIFE * np.log2(20)


def test_a_row_counts_once_per_batch() -> None:
    residents = CacheState(rows=10, slots=2)
    residents.admit_batch(np.array([3] * 50, np.int32))
    for _ in range(2):
        residents.admit_batch(np.array([4], np.int32))
    assert residents.admit_batch(np.array([5], np.int32)).evicted_K.tolist() == [3]


def test_frequencies_stay_comparable_over_many_batches() -> None:
    residents = CacheState(rows=10, slots=3)
    often, once = np.array([1], np.int32), np.array([2], np.int32)
    for batch in range(600 * HALF_LIFE):  # worth of a look-up doubled 600 times; a float64 holds 2 ** 1023
        residents.admit_batch(once if batch == 599 * HALF_LIFE else often)
    residents.admit_batch(np.array([3], np.int32))
    assert np.isfinite(residents._frequency).all()
    assert residents.admit_batch(np.array([4], np.int32)).evicted_K.tolist() == [2]


def test_a_batch_of_more_rows_than_slots_is_refused_and_leaves_the_cache_unchanged() -> None:
    residents = CacheState(rows=10, slots=3)
    residents.admit_batch(np.array([1, 2], np.int32))
    message = (
        r"cached_rows: a batch looks up 4 distinct rows, the cache has 3 slots;"
        r" declare cached_rows: 4 or more, or a smaller batch_size"
    )
    with pytest.raises(CacheError, match=message):
        residents.admit_batch(np.array([1, 5, 6, 7, 7], np.int32))
    assert residents.rows.tolist() == [1, 2]
    assert residents.admit_batch(np.array([1, 2, 5], np.int32)).slots_L.tolist() == [0, 1, 2]


def test_a_cleared_cache_is_empty() -> None:
    residents = CacheState(rows=10, slots=3)
    residents.admit_batch(np.array([1, 2, 3], np.int32))
    residents.clear()
    assert residents.rows.tolist() == []
    update = residents.admit_batch(np.array([2, 9], np.int32))
    assert (update.hits, update.slots_L.tolist(), update.evicted_K.tolist()) == (0, [0, 1], [-1, -1])


def test_it_has_more_hits_than_keeping_the_most_recently_used_rows() -> None:
    random = np.random.default_rng(0)
    popularity = 1 / np.arange(1, 20_001)
    weights = popularity / popularity.sum()
    residents, recent = CacheState(rows=20_000, slots=1_000), OrderedDict[int, None]()
    hits = recent_hits = 0
    for _ in range(150):
        batch = random.choice(20_000, size=400, p=weights).astype(np.int32)
        hits += residents.admit_batch(batch).hits
        recent_hits += sum(row in recent for row in batch.tolist())
        for row in batch.tolist():
            recent[row] = None
            recent.move_to_end(row)
        while len(recent) > 1_000:
            recent.popitem(last=False)
    assert hits > 1.03 * recent_hits
