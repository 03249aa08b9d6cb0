import math
from collections.abc import Callable
from datetime import date
from typing import Any

import polars as pl
import pytest

ROWS_3_DAYS = [{"day": 0}, {"day": 1}, {"day": 2}]


def approx(values: list[float | None]) -> list[Any]:
    return [None if value is None else pytest.approx(value, rel=1e-6) for value in values]


def test_number_is_filled_then_clipped_then_logged(world: Any) -> None:
    rows = [world.row(day, price=price) for day, price in ((0, 3.0), (1, None), (1, 100.0), (2, -5.0), (2, math.nan))]
    table = world.features(rows, {"kind": "numeric", "each": "price", "fill": 1.0, "clip": (-9, 9), "log": True})
    # a value below 0 counts as 0; NaN is no number, so it is filled
    assert table["price_number"].to_list() == approx([math.log(4), math.log(2), math.log(10), 0.0, math.log(2)])


def test_number_without_fill_stays_missing(world: Any) -> None:
    rows = [world.row(0, price=None), world.row(1, price=2.0), world.row(2, price=math.inf)]
    assert world.features(rows, {"kind": "numeric", "each": "price"})["price_number"].to_list() == [None, 2.0, None]


def test_number_is_standardised_by_the_training_days_alone(world: Any) -> None:
    rows = [world.row(day, price=price) for day, price in ((0, 1.0), (0, 3.0), (0, None), (1, 50.0), (2, 70.0))]
    table = world.features(rows, {"kind": "numeric", "each": "price", "standardise": True})
    # day 0 trains: mean 2, deviation 1
    assert table["price_number"].to_list() == approx([-1.0, 1.0, None, 48.0, 68.0])


def test_constant_number_standardises_to_0(world: Any) -> None:
    rows = [world.row(day, price=7.0) for day in (0, 0, 1, 2)]
    table = world.features(rows, {"kind": "numeric", "each": "price", "standardise": True})
    assert table["price_number"].to_list() == [0.0] * 4


def test_count_covers_earlier_days(world: Any) -> None:
    rows = [world.row(day, user_id=user) for day, user in ((0, 1), (0, 1), (1, 1), (1, 2), (2, 1), (2, 2), (2, 3))]
    table = world.features(rows, {"kind": "count", "key": ["user_id"], "name": "n"})
    assert table["n"].to_list() == approx([math.log(1 + n) for n in (0, 0, 2, 0, 3, 1, 0)])


def test_count_drops_days_outside_its_window(world: Any) -> None:
    rows = [world.row(day) for day in (0, 0, 0, 1, 3, 4, 5)]  # no impression on day 2
    table = world.features(rows, {"kind": "count", "key": ["user_id"], "window_days": 2, "name": "n"})
    # day 1 sees day 0; day 3 sees 1 and 2; day 4 sees 2 and 3; day 5 sees 3 and 4
    assert table["n"].to_list() == approx([math.log(1 + n) for n in (0, 0, 0, 3, 1, 1, 2)])


def test_count_skips_the_newest_days(world: Any) -> None:
    rows = [world.row(day) for day in (0, 0, 0, 1, 3, 4, 5)]  # no impression on day 2
    skipping = {"kind": "count", "key": ["user_id"], "skip_days": 1, "name": "n"}
    in_window = {**skipping, "window_days": 2, "name": "n_2d"}
    table = world.features(rows, skipping, in_window)
    # day 1 sees nothing, as day 0 is skipped; day 3 sees 0 and 1; day 4 sees 0 to 2; day 5 sees 0 to 3
    assert table["n"].to_list() == approx([math.log(1 + n) for n in (0, 0, 0, 0, 4, 4, 5)])
    # of two days: day 3 sees 0 and 1; day 4 sees 1 and 2; day 5 sees 2 and 3
    assert table["n_2d"].to_list() == approx([math.log(1 + n) for n in (0, 0, 0, 0, 4, 1, 1)])


def test_count_of_all_rows_has_an_empty_key(world: Any) -> None:
    rows = [world.row(0, user_id=1), world.row(0, user_id=2), world.row(1), world.row(2)]
    assert world.features(rows, {"kind": "count", "key": [], "name": "n"})["n"].to_list() == approx(
        [0, 0, math.log(3), math.log(4)]
    )


def test_target_is_smoothed_with_the_mean_of_earlier_days(world: Any) -> None:
    rows = [world.row(0, item_id=10, label=1), world.row(0, item_id=20, label=0), world.row(0, item_id=20, label=0)]
    rows += [world.row(1, item_id=10, label=0), world.row(1, item_id=30), world.row(2, item_id=10)]
    table = world.features(rows, {"kind": "target", "key": ["item_id"], "prior": 2.0, "name": "rate"})
    mean = 1 / 3  # of day 0
    expected = [0.5, 0.5, 0.5, (1 + 2 * mean) / (1 + 2), mean, (1 + 2 * (1 / 5)) / (2 + 2)]
    assert table["rate"].to_list() == approx(expected)


def test_target_and_its_mean_share_a_window(world: Any) -> None:
    rows = [world.row(0, item_id=10, label=1), world.row(1, item_id=10, label=0), world.row(1, item_id=20, label=1)]
    rows += [world.row(2, item_id=10), world.row(4, item_id=10)]
    table = world.features(rows, {"kind": "target", "key": ["item_id"], "prior": 1.0, "window_days": 1, "name": "rate"})
    # day 1 sees day 0 (mean 1); day 2 sees day 1 (mean 1/2); day 4 sees day 3, on which nothing happened
    assert table["rate"].to_list() == approx([0.5, (1 + 1) / (1 + 1), 1.0, (0 + 0.5) / (1 + 1), 0.5])


def test_target_and_its_mean_skip_the_newest_days(world: Any) -> None:
    rows = [world.row(0, item_id=10, label=1), world.row(0, item_id=20, label=0), world.row(1, item_id=10, label=0)]
    rows += [world.row(2, item_id=10, label=0), world.row(3, item_id=10)]
    table = world.features(rows, {"kind": "target", "key": ["item_id"], "prior": 1.0, "skip_days": 1, "name": "rate"})
    # day 2 sees day 0 (mean 1/2); day 3 sees days 0 and 1 (mean 1/3)
    expected = [0.5, 0.5, 0.5, (1 + 1 / 2) / (1 + 1), (1 + 1 / 3) / (2 + 1)]
    assert table["rate"].to_list() == approx(expected)


def test_target_of_an_outcome_leaves_its_nulls_out(world: Any) -> None:
    rows = [world.row(0, seconds=2.5), world.row(0, seconds=None), world.row(0, item_id=20, seconds=0.5)]
    rows += [world.row(1), world.row(2)]
    table = world.features(rows, {"kind": "target", "key": ["item_id"], "of": "seconds", "prior": 1.0, "name": "s"})
    assert table["s"].to_list()[3] == pytest.approx((2.5 + (3.0 / 2)) / (1 + 1))


def test_target_of_the_declared_label_is_the_default(world: Any) -> None:
    rows = [world.row(0, label=1), world.row(1), world.row(2)]
    named = {"kind": "target", "key": ["item_id"], "of": "clicked", "name": "named"}
    table = world.features(rows, named, {"kind": "target", "key": ["item_id"], "name": "default"})
    assert table["named"].to_list() == table["default"].to_list()


def test_target_of_a_pair_is_smoothed_with_the_mean_of_its_part(world: Any) -> None:
    rows = [world.row(0, page="x", label=1), world.row(0, page="y"), world.row(0, user_id=2, page="x")]
    rows += [world.row(1, page="x"), world.row(1, page="z"), world.row(1, page=None), world.row(1, user_id=9, page="x")]
    pair = {"kind": "target", "key": ["user_id", "page"], "prior_key": "user_id", "prior": 2.0, "name": "rate"}
    table = world.features([*rows, world.row(2)], pair)
    of_user = (1 + 5 * 2 * (1 / 3)) / (2 + 5 * 2)
    assert table["rate"].to_list()[3:7] == approx([(1 + 2 * of_user) / (1 + 2), of_user, of_user, 1 / 3])


def test_target_by_tags_adds_up_the_rows_distinct_tags(world: Any) -> None:
    rows = [world.row(0, item_id=10, label=1), world.row(0, item_id=20, label=0), world.row(1, item_id=10)]
    rows += [world.row(1, item_id=30), world.row(2)]
    table = world.features(rows, {"kind": "target", "key": ["topics"], "prior": 2.0, "name": "rate"})
    # item 10 has topics a, b; item 20 has b twice, which counts once; item 30 has none
    clicks_a, rows_a, clicks_b, rows_b, mean = 1, 1, 1, 2, 0.5
    expected = (clicks_a + clicks_b + 2 * mean) / (rows_a + rows_b + 2)
    assert table["rate"].to_list()[2:4] == approx([expected, mean])


def test_a_null_key_is_counted_nowhere(world: Any) -> None:
    rows = [world.row(0, page=None, label=1), world.row(0, page="x", label=1), world.row(1, page=None), world.row(2)]
    table = world.features(rows, {"kind": "count", "key": ["page"], "name": "n"})
    assert table["n"].to_list() == [0.0] * 4
    assert pl.read_parquet(world.folder / "world-fitted" / "views" / "by_page.parquet")["page"].to_list() == ["x"]


def test_key_of_two_columns_needs_both_values(world: Any) -> None:
    rows = [world.row(0, user_id=1, page="x"), world.row(0, user_id=1, page="y"), world.row(0, user_id=2, page="x")]
    rows += [world.row(1, user_id=1, page="x"), world.row(1, user_id=2, page="y"), world.row(2)]
    table = world.features(rows, {"kind": "count", "key": ["page", "user_id"], "name": "n"})
    assert table["n"].to_list()[3:5] == approx([math.log(2), 0.0])


def test_history_counts_before_the_first_day(world: Any) -> None:
    rows = [world.row(day, user_id=user, item_id=item) for day, user, item in ((0, 1, 10), (0, 1, 30), (1, 3, 30))]
    rows += [world.row(2, user_id=2, item_id=10)]
    by_maker = {"kind": "count", "key": ["user_id", "maker"], "of": "watched", "name": "of_maker"}
    by_topic = {"kind": "count", "key": ["user_id", "topics"], "of": "watched", "name": "of_topic"}
    by_item = {"kind": "count", "key": ["item_id"], "of": "watched", "name": "of_item"}
    by_city = {
        "kind": "count",
        "key": ["city", "topics"],
        "of": "watched",
        "name": "of_city",
    }  # from another side table
    table = world.features(rows, by_maker, by_topic, by_item, by_city)
    # user 1 watched 10, 10, 20 (maker 7: three; topics a: two, b: three); user 3 watched 30 and 99, of no known maker
    # user 4 watched 10
    assert table["of_maker"].to_list() == approx([math.log(4), 0.0, math.log(2), 0.0])
    assert table["of_topic"].to_list() == approx([math.log(1 + 2 + 3), 0.0, 0.0, 0.0])
    assert table["of_city"].to_list() == table["of_topic"].to_list()
    assert table["of_item"].to_list() == approx([math.log(4), math.log(2), math.log(2), math.log(4)])


def test_time_since_is_the_logarithm_of_hours_up_to_its_cap(world: Any) -> None:
    rows = [world.row(0, 12.0), world.row(0, 18.5), world.row(1, 10.0), world.row(2, 10.0), world.row(2, user_id=2)]
    table = world.features(rows, {"kind": "time_since", "key": ["user_id"], "cap_hours": 20.0, "name": "age"})
    first, second = 10 + 24 - 18.5, 20.0  # 24 hours since the morning before are cut
    assert table["age"].to_list() == approx(
        [math.log(21)] * 2 + [math.log(1 + first), math.log(1 + second), math.log(21)]
    )


def test_time_since_by_tags_takes_the_newest(world: Any) -> None:
    rows = [world.row(0, 10.0, words=["a"]), world.row(0, 20.0, words=["b"]), world.row(1, 20.0, words=["a", "b", "c"])]
    rows += [world.row(2, words=[])]
    table = world.features(rows, {"kind": "time_since", "key": ["words"], "cap_hours": 48.0, "name": "age"})
    assert table["age"].to_list()[2:] == approx([math.log(1 + 24), math.log(49)])


def test_lag_is_the_value_at_the_last_impression_of_an_earlier_day(world: Any) -> None:
    rows = [world.row(0, 9.0, seconds=5.0), world.row(0, 8.0, seconds=7.0), world.row(1, 9.0, seconds=None)]
    rows += [world.row(2, 9.0, seconds=3.0), world.row(2, user_id=2)]
    table = world.features(rows, {"kind": "lag", "key": ["user_id"], "column": "seconds", "name": "last", "fill": -1.0})
    # on day 2 the last impression, of day 1, had no value
    assert table["last"].to_list() == [-1.0, -1.0, 5.0, -1.0, -1.0]


def test_lag_breaks_ties_by_impression(world: Any) -> None:
    rows = [world.row(0, 9.0, likes=1, impression_id=5), world.row(0, 9.0, likes=2, impression_id=4)]
    rows += [world.row(1, impression_id=6), world.row(2, impression_id=7)]
    table = world.features(rows, {"kind": "lag", "key": ["user_id"], "column": "likes", "name": "last"})
    assert table["last"].to_list() == [None, None, 1.0, 0.0]


def test_lag_by_tags_is_the_value_of_the_newest_tag(world: Any) -> None:
    rows = [world.row(0, 9.0, words=["a"], likes=3), world.row(0, 8.0, words=["b"], likes=4)]
    rows += [world.row(1, words=["b", "a"]), world.row(2)]
    table = world.features(rows, {"kind": "lag", "key": ["words"], "column": "likes", "name": "last"})
    assert table["last"].to_list()[2] == 3.0


def test_age_counts_days_of_the_clock_and_never_below_0(world: Any) -> None:
    rows = [world.row(0, item_id=10), world.row(1, item_id=20), world.row(2, item_id=20), world.row(2, item_id=30)]
    creation_dates = [date(2026, 2, 20), None, date(2026, 3, 4), date(2026, 3, 9)]
    rows = [{**row, "made": day} for row, day in zip(rows, creation_dates, strict=True)]
    table = world.features(rows, {"kind": "age", "each": ["released", "made"]})
    assert table["released_age"].to_list() == approx([math.log(2), 0.0, math.log(2), None])
    assert table["made_age"].to_list() == approx([math.log(11), None, 0.0, 0.0])


@pytest.mark.parametrize(("period", "turn"), [("day", 6.5 / 24), ("week", (24 + 6.5) / (7 * 24))])
def test_cyclic_time_is_the_wall_clock_of_the_timezone(
    world_in: Callable[[str], Any], period: str, turn: float
) -> None:
    world = world_in("Asia/Shanghai")
    rows = [world.row(0), world.row(1, 6.5), world.row(2)]  # 6:30 of a Tuesday there, 22:30 of a Monday in UTC
    table = world.features(rows, {"kind": "cyclic", "period": period, "name": "clock"})
    angle = 2 * math.pi * turn
    assert [table["clock_sin"][1], table["clock_cos"][1]] == approx([math.sin(angle), math.cos(angle)])


def test_similarity_is_the_cosine_to_the_mean_of_the_list(world: Any) -> None:
    rows = [world.row(0, user_id=1, item_id=20), world.row(1, user_id=2, item_id=20), world.row(2, user_id=3)]
    table = world.features(rows, {"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"})
    mean = ((3 + 3 + 0) / 3, (4 + 4 + 2) / 3)  # of items 10, 10, 20
    to_user_1 = mean[1] / math.hypot(*mean)  # item 20 points up
    to_user_3 = 3 / 5  # of its items only 30 is known, which points right; item 10 is (3, 4)
    assert table["close"].to_list() == approx([to_user_1, 0.0, to_user_3])


def test_vector_has_length_1_and_null_is_the_zero_vector(world: Any) -> None:
    rows = [world.row(0, item_id=10), world.row(1, item_id=99), world.row(2, query=[0.0, 0.0, 2.0])]
    table = world.features(
        rows, {"kind": "vector", "each": ["vector"]}, {"kind": "vector", "each": "query", "suffix": "v"}
    )
    assert table["vector_vector"].to_list() == [approx([0.6, 0.8]), [0.0, 0.0], approx([0.6, 0.8])]
    assert table["query_v"].to_list() == [[0.0] * 3, [0.0] * 3, [0.0, 0.0, 1.0]]


def test_vector_without_normalisation_is_unchanged(world: Any) -> None:
    rows = [world.row(day, item_id=10) for day in range(3)]
    table = world.features(rows, {"kind": "vector", "each": "vector", "normalise": False})
    assert table["vector_vector"].to_list() == [[3.0, 4.0]] * 3
