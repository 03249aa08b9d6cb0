from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import NO_CODE, ListInput, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.features.columns import Ragged, TextCodes
from shortlist.serving.server.features.snapshot import load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.requests.request_errors import BadRequestError

FIRST = date(2026, 3, 6)


def assert_same(actual: dict[str, np.ndarray], expected_tensors: dict[str, np.ndarray], signature: Signature) -> None:
    """Compare every tensor; a difference names its column."""
    assert actual.keys() == expected_tensors.keys()
    for name, expected in expected_tensors.items():
        assert (actual[name].dtype, actual[name].shape) == (expected.dtype, expected.shape), name
        places = getattr(signature, name, None)
        for column, place in enumerate(places or [name]):
            actual_values, right = (tensor[:, column] if places else tensor for tensor in (actual[name], expected))
            np.testing.assert_array_equal(actual_values, right, err_msg=place)


@pytest.mark.parametrize("day", [0, 1, 2, 3])  # the first has no day before it, the third is an hour short
def test_every_row_of_a_log_gets_the_tensors_of_the_training_table(shop: Any, day: int) -> None:
    moment = FIRST + timedelta(days=day)
    rows = shop.rows(moment)
    assembler = DayAssembler(shop.plan, shop.signature, shop.views)
    expected = encode(shop.looked_up(rows, moment), shop.signature, shop.plan.declared)
    assert_same(assembler.tensors(rows, moment), expected, shop.signature)


def test_days_may_come_in_any_order(shop: Any) -> None:
    assembler = DayAssembler(shop.plan, shop.signature, shop.views)
    for number in (3, 1, 3):
        moment = FIRST + timedelta(days=number)
        rows = shop.rows(moment).head(20)
        expected = encode(shop.looked_up(rows, moment), shop.signature, shop.plan.declared)
        assert_same(assembler.tensors(rows, moment), expected, shop.signature)


@pytest.mark.parametrize("user", [1, 2, 2**40, -5, 77, 4711, None])
@pytest.mark.parametrize("count", [1, 11, 64])
def test_a_user_with_many_items_gets_the_tensors_of_as_many_rows(shop: Any, user: int | None, count: int) -> None:
    day = FIRST + timedelta(days=3)
    names = [*(f"item {number}" for number in range(9)), "never shown", "nowhere"]
    items = [names[number % len(names)] for number in range(count)]
    moment = pl.Series([shop.views.start_of(day) + timedelta(hours=5)] * count, dtype=pl.Datetime("us", "UTC"))
    template = shop.rows(day).head(1).drop("user_id", "item_id", Columns.TIME)
    rows = pl.concat([template] * count).with_columns(
        pl.lit(user, pl.Int64).alias("user_id"), pl.Series("item_id", items), moment.alias(Columns.TIME)
    )
    expected = encode(shop.looked_up(rows, day), shop.signature, shop.plan.declared)

    whole = DayAssembler(shop.plan, shop.signature, shop.views)
    assert_same(whole.tensors(rows, day), expected, shop.signature)

    assembler = TensorAssembler(shop.plan, shop.signature)
    columns = whole.columns(rows.head(1))  # one row each ...
    columns["item_id"] = TextCodes().encode(items)  # ... but for the items
    tables = load_with_users(assembler, shop.views, shop.views.start_of(day)).tables
    assert_same(assembler.tensors(columns, tables, count), expected, shop.signature)


def test_only_what_a_signature_reads_is_looked_up(shop: Any) -> None:
    small_signature = Signature(model="m", kind="k", numbers=("by_maker:rows", "price"))
    assembler = TensorAssembler(shop.plan, small_signature)
    assert [step.name for step in assembler.requirements.steps] == ["items", "by_maker"]
    assert set(assembler.requirements.columns) == {"item_id", "price"}
    assert assembler.user is None
    assert assembler.item is not None
    assert assembler.item.numbers == ("by_maker:rows",)  # the maker itself is read by nobody else
    assert assembler.item.codes == ()


def test_the_newest_tag_is_known_even_when_its_time_is_not_asked_for(shop: Any) -> None:
    small_signature = Signature(model="m", kind="k", numbers=("by_topics:last_seconds",))
    day = FIRST + timedelta(days=3)
    rows = shop.rows(day)
    expected = encode(shop.looked_up(rows, day), small_signature, shop.plan.declared)
    assert_same(DayAssembler(shop.plan, small_signature, shop.views).tensors(rows, day), expected, small_signature)
    assert np.isfinite(expected["numbers"]).any()


def test_a_signature_without_look_ups_needs_no_tables(shop: Any) -> None:
    plain = Signature(model="m", kind="k", numbers=("price", "day"), codes=("page",))
    assembler = TensorAssembler(shop.plan, plain)
    assert assembler.steps == ()
    columns = {
        "price": np.array([np.nan, 2.0]),
        "page": np.array([NO_CODE]),
        Columns.TIME: np.array([0, 86_400_000_000]),
    }
    tensors = assembler.tensors(columns, {}, 2)
    # The first moment of 1970 in UTC is the evening before in New York.
    np.testing.assert_array_equal(tensors["numbers"], [[np.nan, -1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(tensors["codes"], [[NO_CODE], [NO_CODE]])


def test_combinations_of_tags_and_lists_of_a_request_are_bounded(shop: Any) -> None:
    whole = DayAssembler(shop.plan, shop.signature, shop.views)
    assembler = TensorAssembler(shop.plan, shop.signature)
    day = FIRST + timedelta(days=3)
    columns = dict(whole.columns(shop.rows(day).head(1)))
    columns["item_id"] = TextCodes().encode([f"item {number}" for number in range(4)])
    columns["words"] = Ragged(np.arange(50), np.zeros(1, np.intp), np.full(1, 50, np.intp))
    tables = load_with_users(assembler, shop.views, shop.views.start_of(day)).tables
    items = tables["item_id"]
    topics = items.tag_lists["items:topics"].take(items.find(columns["item_id"])).numbers.lengths
    assert topics.max() > 1
    combinations = 50 * int(topics.sum())
    assert assembler.tensors(columns, tables, 4, max_tags=combinations)["list_0"].shape == (4, 2)
    with pytest.raises(
        BadRequestError, match=f"the tags of 4 rows make {combinations} combinations of items:topics, words;"
    ):
        assembler.tensors(columns, tables, 4, max_tags=combinations - 1)


def test_a_list_of_any_length_is_bounded_in_all_rows(shop: Any) -> None:
    list_signature = Signature(model="m", kind="k", lists=(ListInput(tensor="list_0", place="words", longest=None),))
    assembler = TensorAssembler(shop.plan, list_signature)
    columns = {"words": Ragged(np.arange(50), np.zeros(1, np.intp), np.full(1, 50, np.intp))}
    assert assembler.tensors(columns, {}, 4, max_tags=200)["list_0"].shape == (4, 50)
    with pytest.raises(BadRequestError, match="the lists of words take 200 values in 4 rows; wanted at most 199"):
        assembler.tensors(columns, {}, 4, max_tags=199)
