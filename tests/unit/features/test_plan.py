from typing import Any

import pytest

from shortlist.features.counts.keyed import Total
from shortlist.features.declared.plan import FeatureColumn, Plan, plan
from shortlist.features.values.columns import PlanError
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates


def planned(world: Any, *columns: dict[str, Any], slices: tuple[str, ...] = (), data: Data | None = None) -> Plan:
    return plan(data or world.data, Features.model_validate({"columns": list(columns)}), Gates(slices=slices))


def count(*key: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "count", "key": key, "name": "n_" + "_".join(key), **settings}


def test_user_and_item_are_always_counted(world: Any) -> None:
    views = planned(world, {"kind": "numeric", "each": "price"}).counted_views
    assert [(view.name, view.features) for view in views] == [("by_user_id", ("rows",)), ("by_item_id", ("rows",))]


def test_a_key_has_one_view_in_any_order_of_its_columns(world: Any) -> None:
    target = {"kind": "target", "key": ["user_id", "page"], "window_days": 3, "name": "rate"}
    views = planned(world, count("page", "user_id"), target).counted_views
    assert [view.name for view in views] == ["by_user_id", "by_item_id", "by_user_id__page", "all_rows"]
    assert views[2].totals == (Total("rows"), Total("rows", 3), Total("sum_label", 3))
    assert views[3].totals == views[2].totals  # the mean over the same window


def test_a_nullable_outcome_has_its_own_row_count(world: Any) -> None:
    of = [{"kind": "target", "key": [], "of": name, "name": name} for name in ("seconds_rate", "likes_rate")]
    of = [{**feature, "of": feature["of"].removesuffix("_rate")} for feature in of]
    assert planned(world, *of).counted_views[-1].features == ("rows", "rows_seconds", "sum_seconds", "sum_likes")


def test_only_the_columns_that_are_read_become_static_views(world: Any) -> None:
    views = planned(world, count("maker"), count("city", of="watched"), slices=("released",)).static_views
    assert [(view.name, view.keys, view.features) for view in views] == [
        ("homes", ("user_id",), ("city",)),  # the list itself is only counted
        ("items", ("item_id",), ("maker", "released")),
    ]


def test_outputs_have_a_kind(world: Any) -> None:
    columns = [
        {"kind": "vocabulary", "each": ["page", "words"]},
        {"kind": "cross", "columns": ["page", "user_id"], "name": "pair", "buckets": 9},
        {"kind": "vector", "each": "vector"},
        {"kind": "cyclic", "period": "day", "name": "hour"},
    ]
    assert planned(world, *columns).outputs == (
        FeatureColumn("page_id", "id"),
        FeatureColumn("words_id", "ids"),
        FeatureColumn("pair", "id"),
        FeatureColumn("vector_vector", "vector"),
        FeatureColumn("hour_sin", "dense"),
        FeatureColumn("hour_cos", "dense"),
    )


def test_a_vocabulary_alone_needs_no_view(world: Any) -> None:
    plan_of_vocabulary = planned(world, {"kind": "vocabulary", "each": "page"})
    assert [view.name for view in plan_of_vocabulary.counted_views] == ["by_user_id", "by_item_id", "by_page"]
    assert [view.name for view in plan_of_vocabulary.views] == ["by_user_id", "by_item_id"]


@pytest.mark.parametrize("key", ["price", "made", "query"])
def test_a_key_of_another_type_is_refused(world: Any, key: str) -> None:
    with pytest.raises(PlanError, match=f"key column '{key}' is of type .*; wanted integer, hex, string or tags"):
        planned(world, count(key))


@pytest.mark.parametrize("days", ["window_days", "skip_days"])
def test_a_history_takes_no_window_of_days(world: Any, days: str) -> None:
    with pytest.raises(PlanError, match=rf"count 'n_maker': a history \('watched'\) has no days, so {days} has no"):
        planned(world, count("maker", of="watched", **{days: 3}))


def test_a_history_is_not_counted_by_columns_of_the_log(world: Any) -> None:
    with pytest.raises(
        PlanError, match="'page' is not known of a user or an item alone, so 'watched' cannot be counted"
    ):
        planned(world, count("user_id", "page", of="watched"))


@pytest.mark.parametrize(
    "feature",
    [count("maker", of="watched"), {"kind": "similarity", "list": "watched", "vector": "vector", "name": "close"}],
)
def test_a_history_must_have_the_type_of_the_item_column(world: Any, feature: dict[str, Any]) -> None:
    declared = world.data.model_dump(mode="json")
    next(column for column in declared["side_tables"][0]["columns"] if column["name"] == "watched")["tag_type"] = (
        "string"
    )
    with pytest.raises(
        PlanError, match="'watched' holds items, but its tag_type is string and 'item_id' is of type int"
    ):
        planned(world, feature, data=Data.model_validate(declared))


def test_a_column_has_one_vocabulary(world: Any) -> None:
    columns = [{"kind": "vocabulary", "each": "page", "suffix": f"v{rows}", "min_rows": rows} for rows in (1, 2)]
    with pytest.raises(PlanError, match="vocabularies of 'page' differ in min_rows or max_size"):
        planned(world, *columns)


def renamed(world: Any, old: str, new: str) -> Data:
    declared = world.data.model_dump(mode="json")
    for column in declared["columns"]:
        column["name"] = new if column["name"] == old else column["name"]
    return Data.model_validate(declared)


@pytest.mark.parametrize("name", ["last_time", "rows_7d", "sum_label", "last_impression"])
def test_a_key_may_not_be_named_like_a_statistic(world: Any, name: str) -> None:
    key = {"kind": "target", "key": [name], "window_days": 7, "name": "rate"}
    whole = {"kind": "target", "key": [], "name": "whole"}
    last = {"kind": "lag", "key": ["user_id"], "column": "likes", "name": "last"}
    with pytest.raises(PlanError, match=f"'{name}' is the name of a statistic; give that column another name"):
        planned(world, key, whole, last, data=renamed(world, "page", name))


def test_two_keys_may_not_share_a_name(world: Any) -> None:
    declared = renamed(world, "page", "user_id__words")
    with pytest.raises(PlanError, match=r"keys \['user_id__words'\] and \['user_id', 'words'\] would both be named"):
        planned(world, count("user_id__words"), count("user_id", "words"), data=declared)


def test_a_side_table_may_not_be_named_like_a_view(world: Any) -> None:
    declared = world.data.model_dump(mode="json")
    declared["side_tables"][2]["name"] = "by_user_id"
    with pytest.raises(PlanError, match="two views would be named 'by_user_id'"):
        planned(world, count("maker"), data=Data.model_validate(declared))


def test_a_window_and_a_column_may_not_share_a_name(world: Any) -> None:
    columns = [{"kind": "target", "key": ["page"], "of": "likes", "window_days": 7, "name": "one"}]
    columns.append({"kind": "target", "key": ["page"], "of": "likes_7d", "name": "two"})
    with pytest.raises(PlanError, match="view 'by_page' would hold a column twice: rows, rows_7d, sum_likes_7d, "):
        planned(world, *columns, data=renamed(world, "seconds", "likes_7d"))


def test_the_table_keeps_the_columns_that_conditions_and_queries_of_gates_read(world: Any) -> None:
    gates = {
        "slices": ["city", {"where": "price > 2 AND NOT cold_user", "max_drop": 0.1}],
        "queries": {"long": {"sql": "SELECT avg(score) FROM test_rows WHERE Page = 'x'", "max": 1}},
    }
    sections = Features.model_validate({"columns": [{"kind": "numeric", "each": "price"}]}), Gates.model_validate(gates)
    assert plan(world.data, *sections).slices == ("city", "price", "page")
