from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.dlrm.section import DLRMModel
from models.embedding.reading.layout import Layout
from models.embedding.table.placement import Memory, MemoryDemand, PlacementError, cached_rows, memory_demand
from shortlist.planning.plan import PUBLISHED, step_bytes
from shortlist.ranking.inputs import TableFeature

GB = 10**9
SECTION = DLRMModel(features=("*",), embedding_dim=16, bottom_mlp=(64,), top_mlp=(128,), batch_size=1_000)
ROWS = 10_000_000
ROW = (16 + 1) * 4


def demand(rows: int = ROWS, section: DLRMModel = SECTION) -> MemoryDemand:
    features = (TableFeature(name="user", kind="id", size=rows - 100), TableFeature(name="item", kind="id", size=100))
    return memory_demand(Layout.from_features((*features, TableFeature(name="age", kind="dense"))), section, "fp32", 0)


def device(bytes_for_rows: float, of: MemoryDemand | None = None, host: int = 1_000 * GB) -> Memory:
    """A device with this many free bytes for rows, beside those of a step and the reserve."""
    step = step_bytes((of or demand()).shape, (of or demand()).shape.batch, "fp32")
    total = 10 * GB
    return Memory(total, int(0.15 * total + step + bytes_for_rows), host)


def test_a_table_that_fits_lies_on_the_device() -> None:
    assert cached_rows(demand(), None, device(ROWS * ROW)) is None


def test_a_table_one_row_too_large_leaves_its_hot_rows_on_the_device() -> None:
    assert cached_rows(demand(), None, device((ROWS - 1) * ROW)) == ROWS - 1
    assert cached_rows(demand(), None, device(2_000 * ROW)) == 2_000


def test_a_declared_number_of_rows_is_cached() -> None:
    assert cached_rows(demand(), 5_000, device(ROWS * ROW)) == 5_000
    assert cached_rows(demand(), 5_000, None) == 5_000  # on the CPU too
    assert cached_rows(demand(), ROWS + 7, device(ROWS * ROW)) is None  # all of them is no cache
    assert cached_rows(demand(), None, None) is None


def test_what_is_kept_beside_a_row_takes_its_room() -> None:
    counted = demand()._replace(extra_row_bytes=8)
    assert cached_rows(counted, None, device(ROWS * ROW)) == int(ROWS * ROW // (ROW + 8))


def test_no_room_for_a_batch_says_what_is_missing_and_what_would_fit() -> None:
    # A batch of 1 000 rows looks up 2 000 distinct rows at most, there is room for 1 500.
    section = SECTION.model_copy(update={"embedding_dim": 64, "batch_size": 100_000})
    large = demand(section=section)
    row = 65 * 4
    memory = device(150_000 * row, large)
    with pytest.raises(PlacementError) as refused:
        cached_rows(large, None, memory)
    text = str(refused.value)
    assert "the rows that a batch may look up (200,000 of 10,000,000, 0.05 GB with their accumulators)" in text
    assert "0.01 GB are missing. What would fit: " in text  # 50 000 rows of 260 bytes
    width, batch = (int(re.search(rf"{key}: (\d+)", text).group(1)) for key in ("embedding_dim", "batch_size"))  # type: ignore[union-attr]
    assert batch == 50_000
    for change in ({"embedding_dim": width}, {"batch_size": batch}):
        fitting = demand(section=section.model_copy(update=change))
        assert cached_rows(fitting, None, memory) is not None


def test_more_declared_than_there_is_room_for_says_how_many_fit() -> None:
    message = (
        r"embedding table: cached_rows \(9,000 of 10,000,000, 0\.00 GB with their accumulators\).*"
        r"What would fit: cached_rows: 5000; embedding_dim: \d+"
    )
    with pytest.raises(PlacementError, match=message):
        cached_rows(demand(), 9_000, device(5_000 * ROW))


def test_not_even_a_step_fits() -> None:
    memory = Memory(10 * GB, 1 * GB, 1_000 * GB)  # less free than the reserve
    with pytest.raises(PlacementError, match=r"the device has 1\.00 GB free: .* What would fit: a larger device"):
        cached_rows(demand(), None, memory)


def test_a_table_that_neither_side_can_hold_is_refused() -> None:
    memory = device(ROWS * ROW / 2, host=ROWS * ROW // 2)
    message = r"the host has none either: they take 0\.68 GB .* 0\.34 GB are missing\. .*, or embedding_dim: 4\."
    with pytest.raises(PlacementError, match=message):  # 34 bytes a row: 4 floats and the accumulator are 20, 8 are 36
        cached_rows(demand(), None, memory)
    with pytest.raises(PlacementError, match=r"Declare fewer buckets or smaller vocabularies\."):
        cached_rows(demand(), None, memory._replace(host_free=ROWS * 19))


def test_lists_count_with_their_longest_length() -> None:
    tags = TableFeature(name="tags", kind="ids", size=1_000_000)
    assert memory_demand(Layout.from_features((tags,)), SECTION, "fp32", 0).batch_rows == 64 * 1_000


@given(st.integers(0, 2 * GB), st.one_of(st.none(), st.integers(1, 2 * ROWS)))
def test_what_is_decided_fits_and_is_enough(bytes_free: int, declared: int | None) -> None:
    memory_demand_of_table, memory = demand(), device(0)
    memory = memory._replace(device_free=bytes_free)
    try:
        decided = cached_rows(memory_demand_of_table, declared, memory)
    except PlacementError:
        return
    rows_on_device = ROWS if decided is None else decided
    assert rows_on_device * ROW <= bytes_free
    assert rows_on_device <= memory_demand_of_table.max_rows(memory)
    assert declared is not None or rows_on_device >= memory_demand_of_table.batch_rows


def test_the_published_model_lies_whole_on_its_device() -> None:
    published = MemoryDemand(PUBLISHED, "tf32")
    assert cached_rows(published, None, Memory(80 * GB, 79 * GB, 0)) is None
