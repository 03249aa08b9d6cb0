"""Inputs of requests are read from the prediction log as they were sent."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shortlist.contracts import Columns
from shortlist.rollout import unsent_inputs
from shortlist.rollout.unsent_inputs import describe_unsent_inputs
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.log.log_writer import LogWriter
from shortlist.serving.log.logs import NO_SLATE, REPLAYED_ID, logged_inputs, prediction_schema
from shortlist.serving.log.serving_log import stream_folder
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.features.feature_requirements import FeatureRequirements
from shortlist.serving.server.prediction_log import logged_columns as logged
from shortlist.serving.server.prediction_log.feature_sample import NO_FEATURES
from shortlist.serving.server.prediction_log.logged_columns import to_arrow_column
from shortlist.serving.server.request_inputs.input_reader import InputReader
from shortlist.serving.server.request_inputs.version_inputs import VersionInputs
from shortlist.serving.server.requests.tensors import Tensor, TensorHead, from_values, validate_message
from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.spec.data import Data
from shortlist.spec.serving import PredictionLog
from shortlist.storage.objects import ObjectStore
from tests.served_log import logged_rows

NOW = datetime(2026, 2, 2, 2, 40, tzinfo=UTC)
MICROSECONDS = 1_770_000_000_000_000
ITEMS = ["item 0", "item 1", "item 2"]


@pytest.fixture
def data(shop: Any) -> Data:
    data_section: Data = shop.plan.declared.data
    return data_section


@pytest.fixture
def reader(shop: Any) -> InputReader:
    return InputReader(FeatureRequirements.from_plan(shop.plan, shop.signature), {"query": 2}, max_rows=20_000)


def head(name: str, datatype: str, shape: list[int]) -> TensorHead:
    return validate_message(TensorHead, {"name": name, "datatype": datatype, "shape": shape})


def tensor(name: str, datatype: str, values: list[Any], shape: list[int] | None = None) -> Tensor:
    return from_values(head(name, datatype, shape or [len(values)]), values)


def written_rows(
    folder: Path,
    reader: InputReader,
    data: Data,
    *requests: list[Tensor],
    track: str | None = None,
    id_prefix: str = "",
) -> list[dict[str, Any]]:
    """Write requests as the server does, and read them back."""
    log = LogWriter(stream_folder(folder), prediction_schema(data), PredictionLog(flush_seconds=600), to_arrow_column)
    for number, tensors in enumerate(requests):
        inputs = reader.read([tensor("item_id", "BYTES", list(ITEMS)), *tensors], MICROSECONDS)
        answer = (
            NOW,
            f"{id_prefix}{number}",
            None,
            False,
            None,
            track,
            None,
            None,
            3,
            200,
            inputs.digest,
            1.0,
            False,
            None,
            None,
            1.0,
        )
        scores = np.zeros(inputs.rows, np.float32)
        sent = map(inputs.sent.get, (Columns.TIME, *logged_inputs(data)))
        assert log.add((*answer, inputs.keys["item_id"], scores, *sent, *NO_FEATURES, *NO_SLATE))
    log.close()
    assert (log.written, log.problem) == (len(requests), None)
    return logged_rows(folder, prediction_schema(data)).to_dicts()


def test_every_type_comes_back_as_it_was_sent(tmp_path: Path, reader: InputReader, data: Data) -> None:
    first, second = written_rows(
        tmp_path, reader, data,
        [
            tensor("user_id", "INT64", [7]),
            tensor("page", "BYTES", ["home", "Zürich, 漢字", None]),
            tensor("position", "INT32", [1, 2, 3]),
            tensor("code", "BYTES", ["ff", "FFFFFFFFFFFFFFFF", "0"]),
            tensor("price", "FP32", [0.5, None, 2.0]),
            tensor("words", "BYTES", ["a", "b", "", None, "c", ""], [3, 2]),
            tensor("places", "INT64", [1, NO_CODE], [1, 2]),
            tensor("made", "BYTES", ["2026-01-31"]),
            tensor("query", "FP32", [1.0, 2.0], [1, 2]),
            tensor("event_time", "INT64", [MICROSECONDS, MICROSECONDS + 1, None]),
        ],
        [tensor("made", "INT64", [1, None, 2**40]), tensor("position", "INT64", [NO_CODE])],
    )  # fmt: skip
    moment = datetime(2026, 2, 2, 2, 40, tzinfo=UTC)
    assert first["items"] == ITEMS
    assert {name: first[name] for name in ("user_id", "page", "position", "code", "price")} == {
        "user_id": [7],  # length 1: the same for every row
        "page": ["home", "Zürich, 漢字", None],  # texts, no fingerprints
        "position": [1, 2, 3],
        "code": [255, -1, 0],  # as the valid log has them
        "price": [0.5, None, 2.0],
    }
    assert (first["words"], first["places"]) == ([["a", "b"], [], ["c"]], [[1]])
    assert first["made"] == [date(2026, 1, 31)]
    assert first["event_time"] == [moment, moment.replace(microsecond=1), None]
    assert second["made"] == [date(1970, 1, 2), None, None]  # no date has so many days
    assert second["position"] == [None]
    assert {name for name in ("user_id", "page", "code", "words", "event_time") if second[name] is not None} == set()
    assert "query" not in first  # a vector tells no distribution


def test_long_columns_are_converted_in_pieces(
    tmp_path: Path, reader: InputReader, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "_CHUNK_VALUES", 4)
    requests = [[tensor("page", "BYTES", [str(number)] * 3)] if number % 3 else [] for number in range(10)]
    rows = written_rows(tmp_path, reader, data, *requests)
    assert [row["page"] for row in rows] == [[str(number)] * 3 if number % 3 else None for number in range(10)]
    assert [row["items"] for row in rows] == [ITEMS] * 10


def test_a_request_without_rows_is_logged(tmp_path: Path, reader: InputReader, data: Data) -> None:
    log = LogWriter(stream_folder(tmp_path), prediction_schema(data), PredictionLog(), to_arrow_column)
    inputs = reader.read([tensor("item_id", "BYTES", []), tensor("page", "BYTES", ["home"])], MICROSECONDS)
    answer = (
        NOW,
        "a",
        None,
        False,
        None,
        None,
        None,
        None,
        3,
        200,
        inputs.digest,
        1.0,
        False,
        None,
        None,
        1.0,
        [],
        np.zeros(0, np.float32),
    )
    assert log.add((*answer, *map(inputs.sent.get, (Columns.TIME, *logged_inputs(data))), *NO_FEATURES, *NO_SLATE))
    log.close()
    (row,) = logged_rows(tmp_path, prediction_schema(data)).to_dicts()
    assert (row["items"], row["scores"], row["page"]) == ([], [], ["home"])


def test_a_column_of_the_candidate_that_no_request_carries_is_named(
    tmp_path: Path, reader: InputReader, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsent_inputs, "_NEWEST_HOURS", 1_000_000)  # the rows are of another year
    paths = ServingPaths(root=tmp_path, rollouts=tmp_path / "rollouts")
    objects = ObjectStore.in_folder(tmp_path)
    stable, candidate = (VersionInputs(objects, version, Metrics(), 5) for version in (1, 2))
    stable.declare(["item_id", "page"], ["item_id"])
    candidate.declare(["item_id", "page", "price"], ["item_id", "page", "price"])
    candidate.poll()
    stable.poll()
    of_load_test = [[tensor("price", "FP64", [1.5, 1.5, 1.5])]] * 120
    written_rows(paths.predictions, reader, data, *of_load_test)
    written_rows(paths.predictions, reader, data, *of_load_test, track="canary", id_prefix=REPLAYED_ID)
    assert describe_unsent_inputs(objects, paths, 1, 2, data) == (
        "version 2 reads 'page', 'price', which version 1 does not; clients sent 0 requests in the last 1000000 h, too"
        " few to see whether they send it. Where they do not, its rows are scored without it. Clients may send it from"
        " now on; version 1 passes it over"
    )
    sent = [[tensor("page", "BYTES", ["home"])], *[[]] * 119]
    written_rows(paths.predictions, reader, data, *sent, track="stable", id_prefix="users-")
    assert describe_unsent_inputs(objects, paths, 1, 2, data).startswith(
        "version 2 reads 'price', which none of the newest 120 requests carries"
    )
    assert stable.passes_over("price")  # a request carried it
    stable.poll()
    assert describe_unsent_inputs(objects, paths, 1, 2, data) == ""
