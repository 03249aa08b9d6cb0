"""Served feature values are logged for a sample of the responses and compared with the feature table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from monitoring.served_features.comparison import ServedModelFiles, comparable_masks
from monitoring.served_features.record import ServedFeaturesReport
from monitoring.served_features.served_features import PublishedViews, compare_served_features
from monitoring.windows.answered_requests import select_answered
from monitoring.windows.feature_sample import COUNTED_UNTIL, drop_streamed_inputs, log_rows
from shortlist.contracts import Columns
from shortlist.features.counts.tiles import Tiles
from shortlist.features.declared.joined_lists import JoinedList
from shortlist.features.fits.fit import fit
from shortlist.features.live.open_events import OpenList, StreamingPlan
from shortlist.features.rows.transform import Transformer
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.export.signature import FOLDER, NO_CODE, SECOND_OF_DAY, ListInput, Signature
from shortlist.serving.log.log_writer import is_sampled
from shortlist.serving.log.logs import FEATURE_COLUMNS, logged_inputs, prediction_schema
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.features.snapshot import load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.inference.service import InferenceRequest
from shortlist.serving.server.prediction_log.feature_sample import UsedFeatures
from shortlist.serving.server.prediction_log.logged_columns import to_arrow_column
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import ServedFeaturesLimits
from shortlist.spec.runtime import Runtime
from tests.served_log import logged_rows

LAST = date(2026, 3, 9)
STRICT = ServedFeaturesLimits(max_unequal=0.02, max_age="12h", min_rows=1)
NOW = datetime(2026, 3, 12, tzinfo=UTC)
Fault = Callable[[dict[str, Any]], None]


def requests_of(
    shop: Any, signature: Signature, snapshot: date = LAST, zone: str = "", fault: Fault | None = None,
    together: int = 10, **columns: Any,
) -> pl.DataFrame:  # fmt: skip
    """Return a server's log of the last day's rows, ten per request, with the views of a day's start.

    Args:
        shop: Plan, views and log.
        signature: What the model reads.
        snapshot: The day.
        zone: The server's; empty: the declared one.
        fault: What spoils the snapshot.
        together: Rows of a request that the server compares with each other: all of them, if it is sound.
        columns: Further columns of the prediction log.
    """
    plan = shop.plan
    if zone:
        clock = {**plan.declared.data.model_dump()["clock"], "timezone": zone}
        data = plan.declared.data.model_validate({**plan.declared.data.model_dump(), "clock": clock})
        plan = replace(plan, declared=DeclaredColumns(data))
    assembler, day = TensorAssembler(plan, signature), DayAssembler(shop.plan, signature, shop.views)
    moment = shop.views.start_of(snapshot)
    tables = dict(load_with_users(assembler, shop.views, moment).tables)
    if fault is not None:
        fault(tables)
    schema = prediction_schema(shop.plan.declared.data)
    request_columns, features = [], []
    for start in range(0, 200, 10):
        rows = shop.rows(LAST)[start : start + 10]
        parts = [
            assembler.tensors(day.columns(slate_rows), tables, slate_rows.height)
            for slate_rows in rows.iter_slices(together)
        ]
        tensors = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        features.append(UsedFeatures(tensors, moment.timestamp()).columns(signature))
        sent_values = {name: rows[name].to_list() for name in logged_inputs(shop.plan.declared.data)}
        request_columns.append({
            "time": rows[Columns.TIME].max(), "request_id": f"r{start}", "track": "stable", "version": 3, "status": 200,
            "scores": [0.5] * 10, "items": rows["item_id"].to_list(), Columns.TIME: rows[Columns.TIME].to_list(),
            **sent_values, **columns,
        })  # fmt: skip
    log = pa.Table.from_pylist(request_columns, schema=schema)
    for name, values in zip(FEATURE_COLUMNS, zip(*features, strict=True), strict=True):
        at = schema.get_field_index(name)
        log = log.set_column(at, schema.field(at), to_arrow_column(values, schema.field(at)))
    log_rows = pl.from_arrow(log)
    assert isinstance(log_rows, pl.DataFrame)
    return select_answered(log_rows)


@pytest.fixture
def model(start: Any) -> Path:
    """A model folder."""
    folder: Path = start.model
    return folder


def compared(
    shop: Any, model: Path, requests: pl.DataFrame, limits: ServedFeaturesLimits = STRICT,
    signature: Signature | None = None,
) -> ServedFeaturesReport:  # fmt: skip
    files = ServedModelFiles(model / "preprocessing", signature or shop.signature, model / FOLDER)
    views = PublishedViews(shop.folder / "fitted/views", shop.until)
    return compare_served_features("shop", [requests], lambda version: files, views, limits, NOW)


def test_features_logged_by_a_correct_server_equal_the_table(shop: Any, model: Path) -> None:
    comparison = compared(shop, model, requests_of(shop, shop.signature))
    assert (comparison.requests, comparison.rows, comparison.versions) == (20, 200, {3: 200})
    all_columns = {*shop.signature.numbers, "users:city", "words", "items:topics", "items:picture", "position (key)"}
    assert (
        all_columns < comparison.columns.keys() and "query" not in comparison.columns
    )  # vectors of requests are not logged
    assert {column.equal for column in comparison.columns.values()} == {200}
    assert {column.largest_difference for column in comparison.columns.values()} == {0.0}
    assert (comparison.problems, comparison.blocker) == ((), "")


def slated(shop: Any, folder: Path) -> Any:
    """Return a shop whose model reads slate statistics of a request's candidates."""
    declared = [
        {"kind": "target", "key": "maker", "name": "maker_rate"},
        {"kind": "slate", "feature": "maker_rate", "gives": ["rank", "share", "difference", "size"]},
        {"kind": "slate", "column": "price"},
    ]
    data = Data.model_validate({**shop.plan.declared.data.model_dump(), "slate": {"gap_seconds": 3600}})
    (folder / "log").symlink_to(shop.folder / "log")
    fit(
        data,
        Features.model_validate({"columns": declared}),
        None,
        Runtime(engine="cpu"),
        folder / "log",
        folder / "fitted",
    )
    plan = Transformer.load(folder / "fitted", "cpu").plan
    places = [place for value in plan.slates for place, _ in value.statistics]
    no_other_inputs = {"codes": (), "lists": (), "vectors": shop.signature.vectors[:1]}
    signature = shop.signature.model_copy(update={"numbers": ("price", *places), **no_other_inputs})
    return replace(shop, folder=folder, plan=plan, signature=signature)


def test_slate_features_of_other_candidates_than_the_logged_ones_are_named(shop: Any, tmp_path: Path) -> None:
    slate_shop = slated(shop, tmp_path)
    files = ServedModelFiles(slate_shop.folder / "fitted", slate_shop.signature, slate_shop.folder)
    views = PublishedViews(slate_shop.folder / "fitted/views", slate_shop.until)

    def compared_slates(together: int) -> ServedFeaturesReport:
        requests = requests_of(slate_shop, slate_shop.signature, together=together)
        return compare_served_features("shop", [requests], lambda version: files, views, STRICT, NOW)

    sound, spoilt = compared_slates(10), compared_slates(5)
    slates = {name for name in sound.columns if "_slate_" in name}
    assert len(slates) >= 4 and {slate.compared for slate in sound.columns.values()} == {200}
    assert {column.equal for column in sound.columns.values()} == {200} and sound.blocker == ""
    # Half of the candidates at a time: every item stands among 5 where the log has 10.
    unequal = {name for name, column in spoilt.columns.items() if column.equal < column.compared}
    assert unequal and unequal <= slates
    place = next(place for value in slate_shop.plan.slates for place, feature in value.statistics if feature == "size")
    size = spoilt.columns[place]
    assert (size.equal, size.largest_difference) == (0, 5.0)
    assert re.search(r"e\.g\. 5 served at .* where the table has 10;", size.reason)
    assert "training is held" in spoilt.blocker


def test_a_stale_snapshot_is_named_with_its_age(shop: Any, model: Path) -> None:
    requests = requests_of(shop, shop.signature, snapshot=LAST - timedelta(days=1))
    comparison = compared(shop, model, requests)
    column = comparison.columns["by_item_id:rows"]
    assert column.cause == "stale snapshot" and 0 < column.equal < column.compared
    assert column.stale == column.compared - column.equal == column.counted
    assert "are of a stale snapshot, up to 23 h older than what the table sees" in column.reason
    assert column.largest_difference is not None and column.largest_difference >= 1
    assert {column.cause for column in comparison.columns.values()} == {None, "stale snapshot"}
    assert "of a stale snapshot" in comparison.blocker and "training is held" in comparison.blocker
    # As old as that, snapshots may be where the spec says so; the differences are shown all the same.
    allowed = compared(shop, model, requests, STRICT.model_copy(update={"max_age": "1d"}))
    assert allowed.blocker == "" and allowed.columns["by_item_id:rows"].stale == column.stale


def test_a_wrong_time_zone_is_named_with_the_shift(shop: Any, model: Path) -> None:
    comparison = compared(shop, model, requests_of(shop, shop.signature, zone="UTC"))
    second = comparison.columns[SECOND_OF_DAY]
    assert (second.equal, second.cause) == (0, "time zone")
    assert "another time zone than America/New_York (by +4 h)" in second.reason
    assert {name for name, column in comparison.columns.items() if column.cause} <= {
        SECOND_OF_DAY,
        "weekday",
        "weekday_",
        "day",
    } | {name for name, column in comparison.columns.items() if column.cause == "time zone"}
    assert "another time zone" in comparison.blocker


def test_a_wrong_default_is_named_with_its_value(shop: Any, model: Path) -> None:
    def fill(tables: dict[str, Any]) -> None:
        item = tables["item_id"]
        tables["item_id"] = replace(item, numbers=np.nan_to_num(item.numbers, nan=-1.0))

    comparison = compared(shop, model, requests_of(shop, shop.signature, fault=fill))
    weight = comparison.columns["items:weight"]
    assert weight.cause == "default" and weight.counted == weight.compared - weight.equal > 0
    assert "the server used the default -1 where the table has no value" in weight.reason
    assert weight.largest_difference is None  # no value is at no distance from one
    assert "used the default -1" in comparison.blocker


def test_a_key_that_the_server_lacks_is_named(shop: Any, model: Path) -> None:
    def forget(tables: dict[str, Any]) -> None:
        user = tables["user_id"]
        tables["user_id"] = replace(
            user, numbers=np.full_like(user.numbers, np.nan), codes=np.full_like(user.codes, NO_CODE)
        )

    comparison = compared(shop, model, requests_of(shop, shop.signature, fault=forget))
    assert comparison.columns["by_user_id:rows"].cause == comparison.columns["users:city"].cause == "missing"
    assert "had no value where the table has one" in comparison.columns["users:city"].reason


def test_other_values_are_shown_by_an_example(shop: Any, model: Path) -> None:
    def double(tables: dict[str, Any]) -> None:
        item = tables["item_id"]
        tables["item_id"] = replace(item, numbers=item.numbers * 2)

    comparison = compared(shop, model, requests_of(shop, shop.signature, fault=double))
    weight = comparison.columns["items:weight"]
    assert weight.cause == "other values" and "e.g." in weight.reason and "where the table has" in weight.reason


def test_rows_that_cannot_be_compared_are_counted_and_never_equal(shop: Any, model: Path) -> None:
    whole = requests_of(shop, shop.signature)
    files = ServedModelFiles(model / "preprocessing", shop.signature, model / FOLDER)
    early = PublishedViews(shop.folder / "fitted/views", shop.views.start_of(LAST) - timedelta(seconds=1))
    waiting = compare_served_features("shop", [whole], lambda version: files, early, STRICT, NOW)
    assert (waiting.rows, waiting.waiting, waiting.columns, waiting.blocker) == (0, 200, {}, "")
    replayed = requests_of(shop, shop.signature, snapshot=LAST + timedelta(days=1))
    ahead = compared(shop, model, replayed)
    assert (ahead.rows, ahead.ahead) == (0, 200)
    degraded = compared(shop, model, requests_of(shop, shop.signature, degraded=True))
    assert (degraded.rows, degraded.degraded) == (0, 200)
    smaller_signature = shop.signature.model_copy(update={"numbers": shop.signature.numbers[:-1]})
    other_comparison = compared(shop, model, whole, signature=smaller_signature)
    assert (other_comparison.rows, other_comparison.problems) == (0, ("version 3: 20 requests hold other columns",))


def test_rows_dated_ahead_are_compared_as_of_the_receipt_of_their_request(shop: Any) -> None:
    """Servers score them so."""
    requests, tiles = requests_of(shop, shop.signature), Tiles(timezone="UTC")
    requests = requests.with_columns(pl.lit(None, requests.schema[COUNTED_UNTIL]).alias(COUNTED_UNTIL))
    received = requests.with_columns(pl.concat_list("time").alias(Columns.TIME))
    ahead = requests.with_columns(pl.concat_list(pl.col("time") + pl.duration(days=2)).alias(Columns.TIME))
    times = log_rows(ahead, shop.plan.declared)[Columns.TIME]
    assert times.to_list() == requests["time"].gather(np.repeat(np.arange(20), 10)).to_list()
    until = requests["time"].dt.offset_by("1h").max()
    assert isinstance(until, datetime)
    masks = [[mask.to_list() for mask in comparable_masks(sent, tiles, until)] for sent in (received, ahead)]
    assert masks[0] == masks[1]
    assert masks[0][0] == [True] * 20


def test_scores_that_another_model_gave_are_named(shop: Any, model: Path) -> None:
    signature = Signature.read(model / FOLDER)
    requests = requests_of(shop, signature, position=[1] * 10)
    rows = shop.rows(LAST)
    table = shop.looked_up(rows, LAST).with_columns(
        score=pl.col("items:weight").fill_null(0) + 1000 * pl.col("by_user_id:rows").fill_null(0)
    )
    right = [table["score"][start : start + 10].to_list() for start in range(0, 200, 10)]
    scores = pl.Series("scores", right, dtype=pl.List(pl.Float32))
    sound = compared(shop, model, requests.with_columns(scores), signature=signature)
    assert sound.columns["score"].equal == 200
    foreign = compared(shop, model, requests, signature=signature).columns["score"]
    assert foreign.cause == "model" and "another model than the registered one scored" in foreign.reason


def test_the_server_logs_features_of_the_declared_share_which_nobody_predicts(
    published: Any, model: Path, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets.json"
    key = StackSecrets.open(secrets).sampling_key

    async def scores(tensors: Any, rows: int, place: Any = None) -> Any:
        return np.full(rows, 0.5, np.float32)

    async def ask(parts: ServerComponents) -> None:
        for number in range(100):
            item, user = (
                Tensor("item_id", "BYTES", (2,), ["item 0", "item 1"]),
                Tensor("user_id", "INT64", (1,), np.array([1])),
            )
            await parts.service.answer(InferenceRequest("shop", "", (item, user), RequestContext(f"r{number}")))
            await asyncio.sleep(0)  # the log is told after the answer
        await parts.close()

    def logged(share: float) -> pl.DataFrame:
        settings = ServerSettings.model_validate({
            "model": "shop", "version": 3, "model_folder": model, "predictor": "127.0.0.1:1", "http_port": 1,
            "grpc_port": 1, "store": published.store, "project": "shop", "predictions": tmp_path / str(share),
            "serving": {"log": {"feature_sampling": share}}, "secrets": secrets,
        })  # fmt: skip
        predictor: Any = SimpleNamespace(scores=scores, close=lambda: None)
        parts = ServerComponents(settings, predictor)
        parts.refresh.poll()
        asyncio.run(ask(parts))
        return logged_rows(settings.predictions, prediction_schema(published.plan.declared.data))

    half = logged(0.5)
    with_features = half.filter(pl.col("served:numbers").is_not_null())
    assert half.height == 100 and 30 < with_features.height < 70
    sampled, predicted = (
        {f"r{number}" for number in range(100) if is_sampled(f"r{number}", 0.5, k)} for k in (key, "")
    )
    assert set(with_features["request_id"]) == sampled != predicted
    numbers = with_features["served:numbers"][0].to_list()  # weight, the user's impressions, position; of two rows
    weights = [numbers[0], numbers[3]]
    assert (len(numbers), weights, numbers[2], numbers[1]) == (6, [1.0, None], None, numbers[4])
    assert with_features["served:counted_until"].unique().to_list() == [published.until]
    assert (
        half.filter(pl.col("served:numbers").is_null())["served:counted_until"].null_count()
        == half.height - with_features.height
    )
    none = logged(0.0)
    assert none.height == 100 and all(none[name].null_count() == 100 for name in FEATURE_COLUMNS)


def test_live_counts_and_lists_are_not_compared(shop: Any) -> None:
    opened = OpenList("newest_3", "user_id", "item_id", 3)
    streaming = StreamingPlan((("user_id",),), Tiles(), timedelta(seconds=1), lists=(opened,))
    plan = replace(shop.plan, streaming=streaming, joined_lists=(JoinedList("newest_3", "item_id", 3, opened),))
    places = ("live_newest_3:newest_values", "newest_3:newest_times")
    signature = Signature(
        model="shop", kind="all", numbers=("price", "open_user_id:rows", "open_user_id:positives"),
        lists=tuple(ListInput(tensor=f"list_{number}", place=place, longest=3) for number, place in enumerate(places)),
    )  # fmt: skip
    remaining_signature = drop_streamed_inputs(signature, plan)
    assert remaining_signature.numbers == ("price",)
    assert [(list_input.tensor, list_input.place) for list_input in remaining_signature.lists] == [
        ("list_1", "newest_3:newest_times")
    ]
    assert drop_streamed_inputs(signature, shop.plan) == signature
