from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shortlist.contracts import Columns
from shortlist.serving.export.signature import NO_CODE, Signature
from shortlist.serving.server.features.columns import Ragged
from shortlist.serving.server.features.feature_requirements import FeatureRequirements
from shortlist.serving.server.request_inputs.input_reader import InputReader, Inputs
from shortlist.serving.server.request_inputs.version_inputs import (
    VersionInputs,
    carried_inputs,
    read_version_inputs,
)
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.serving.server.requests.tensors import Tensor, TensorHead, from_values, validate_message
from shortlist.serving.server.runtime.metrics import Metrics
from shortlist.spec.serving import Limits
from shortlist.storage.objects import ObjectStore

NOW = 1_770_000_000_000_000


@pytest.fixture
def reader(shop: Any) -> InputReader:
    return InputReader(FeatureRequirements.from_plan(shop.plan, shop.signature), {"query": 2}, max_rows=5)


def head(name: str, datatype: str, shape: list[int]) -> TensorHead:
    return validate_message(TensorHead, {"name": name, "datatype": datatype, "shape": shape})


def tensor(name: str, datatype: str, values: list[Any], shape: list[int] | None = None) -> Tensor:
    return from_values(head(name, datatype, shape or [len(values)]), values)


ITEM = tensor("item_id", "BYTES", ["item 0", "item 1"])


def read(reader: InputReader, *tensors: Tensor) -> Inputs:
    return reader.read([ITEM, *tensors], NOW)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (tensor("itm_id", "INT64", [1]), "no input 'itm_id'; did you mean 'item_id'?; wanted user_id, item_id, page"),
        (tensor("seconds", "FP32", [1.0]), "input 'seconds' is known only after the impression; leave it out"),
        (tensor("clicked", "INT64", [1]), "input 'clicked' is known only after the impression; leave it out"),
        (tensor("city", "BYTES", ["Rome"]), "input 'city' is looked up in side table 'users'; leave it out"),
        (ITEM, "input 'item_id' is given twice; wanted once"),
        (tensor("user_id", "BYTES", ["1"]), "input 'user_id': got datatype BYTES; wanted an integer type for a column"),
        (tensor("page", "INT64", [1]), "input 'page': got datatype INT64; wanted BYTES for a column of type string"),
        (tensor("price", "BYTES", ["1"]), "got datatype BYTES; wanted an integer type or FP16, FP32 or FP64 for a"),
        (tensor("query", "INT64", [1, 2], [1, 2]), "input 'query': got datatype INT64; wanted FP16, FP32 or FP64"),
        (tensor("places", "BYTES", ["1"], [1, 1]), "input 'places': got datatype BYTES; wanted an integer type"),
        (tensor("position", "INT64", [1, 2, 3]), "input 'position': got 3 rows; wanted 1, or 2 as 'item_id' has"),
        (tensor("position", "INT64", [1, 2], [2, 1]), r"input 'position': got shape [2, 1]; wanted [rows]"),
        (tensor("words", "BYTES", ["a", "b"]), r"input 'words': got shape [2]; wanted [rows, values]"),
        (tensor("query", "FP32", [1.0] * 3, [1, 3]), "input 'query': got vectors of 3 numbers; wanted 2"),
        (
            tensor("made", "BYTES", ["02/01/2026"]),
            "input 'made': got '02/01/2026'; wanted ISO dates, such as 2026-01-31",
        ),
        (tensor("code", "BYTES", ["xyz"]), "input 'code': got 'xyz'; wanted at most 16 hexadecimal digits"),
        (tensor("code", "BYTES", ["1" * 17]), "input 'code': got '11111111111111111'; wanted at most 16 hexadecimal"),
        (
            tensor("event_time", "INT64", [-1]),
            "input 'event_time': got -1; wanted microseconds since 1970-01-01 UTC, of 2000-01-01 to 2100-01-0",
        ),
        (
            tensor("event_time", "INT64", [1_770_000_000_000]),
            "input 'event_time': got 1770000000000, which looks like milliseconds; wanted microseconds",
        ),
        (tensor("event_time", "UINT32", [1_770_000_000]), "got 1770000000, which looks like seconds; wanted micro"),
    ],
)
def test_a_wrong_input_is_refused_with_one_sentence(reader: InputReader, wrong: Tensor, sentence: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read(reader, wrong)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "values", "sentence"),
    [
        ("a", "STRING", [1], ["x"], "datatype: got 'STRING'; wanted 'BOOL', 'INT8'"),
        ("", "INT64", [1], [1], "name: got ''; string should have"),
        ("a", "INT64", [-1], [1], "shape.0: got -1; wanted greater than or equal to 0"),
        ("a", "INT64", [], [1], "shape: got []; list should have at least 1 item"),
        ("a", "INT64", [2], [1], r"input 'a': got 1 values; its shape [2] says 2"),
        ("a", "INT64", [2], [1, 1.5], "input 'a': got 1.5 in a tensor of INT64; wanted a number of that type"),
        ("a", "FP32", [1], ["1"], "input 'a': got '1' in a tensor of FP32; wanted a number of that type"),
        ("a", "INT64", [1], [2**63], "input 'a': a value does not fit into INT64"),
        ("a", "BYTES", [1], [7], "input 'a': got 7 in a tensor of BYTES; wanted text"),
        ("a", "BYTES", [1], [b"\xff"], "input 'a': got bytes that are not UTF-8 text"),
    ],
)
def test_a_wrong_tensor_is_refused_with_one_sentence(
    name: str, datatype: str, shape: list[int], values: list[Any], sentence: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        from_values(head(name, datatype, shape), values)
    assert sentence in str(refused.value)


def test_the_item_must_be_named_and_rows_are_bounded(reader: InputReader) -> None:
    with pytest.raises(BadRequestError, match=r"got \['user_id'\]; wanted 'item_id' among them"):
        reader.read([tensor("user_id", "INT64", [1])], NOW)
    with pytest.raises(BadRequestError, match="got none; wanted 'item_id' among them"):
        reader.read([], NOW)
    with pytest.raises(BadRequestError, match="got 6 rows; wanted at most 5"):
        reader.read([tensor("item_id", "BYTES", ["a"] * 6)], NOW)


def test_values_of_a_row_and_of_all_rows_are_bounded(shop: Any) -> None:
    requirements, limits = (
        FeatureRequirements.from_plan(shop.plan, shop.signature),
        Limits(max_tags=600, max_tag_values=1_000),
    )
    bounded = InputReader(requirements, {"query": 2}, 5, limits)

    def refusal(*tags: Tensor) -> str:
        with pytest.raises(BadRequestError) as refused:
            bounded.read([ITEM, *tags], NOW)
        return str(refused.value)

    def places(rows: int, width: int) -> Tensor:
        return Tensor("places", "INT64", (rows, width), np.arange(rows * width))

    assert refusal(places(1, 601)).startswith("input 'places': got 601 values per row; wanted at most 600 (serving.")
    # One row stands for both items.
    assert refusal(places(1, 501)).startswith("inputs places: got 1002 values in 2 rows; wanted at most 1000 (serving.")
    words_tensor = Tensor("words", "BYTES", (2, 100), ["a"] * 200)
    assert refusal(places(1, 401), words_tensor).startswith("inputs places, words: got 1002 values in 2 rows")
    assert bounded.read([ITEM, places(1, 400), words_tensor], NOW).rows == 2


def test_a_model_without_items_wants_at_least_one_column(shop: Any) -> None:
    plain = InputReader(
        FeatureRequirements.from_plan(shop.plan, Signature(model="m", kind="k", numbers=("price",))), {}, max_rows=5
    )
    with pytest.raises(BadRequestError, match="inputs: got none; wanted at least one of user_id"):
        plain.read([], NOW)
    assert plain.read([tensor("page", "BYTES", ["home"])], NOW).rows == 1  # other versions may read it


def test_every_form_of_null_is_null(reader: InputReader) -> None:
    inputs = read(
        reader,
        tensor("user_id", "INT64", [None]),
        tensor("position", "INT32", [NO_CODE]),
        tensor("price", "FP64", [float("nan"), None]),
        tensor("page", "BYTES", ["", None]),
        tensor("made", "BYTES", [None]),
        tensor("words", "BYTES", ["b", "", None, "a"], [2, 2]),
        tensor("query", "FP32", [1.0, 2.0, float("nan"), 1.0], [2, 2]),
    )
    assert inputs.rows == 2
    for name in ("user_id", "position", "page", "made"):
        assert (np.asarray(inputs.columns[name]) == NO_CODE).all(), name
    assert np.isnan(np.asarray(inputs.columns["price"])).all()
    words_column = inputs.columns["words"]
    assert isinstance(words_column, Ragged)
    assert words_column.lengths.tolist() == [1, 1]
    assert np.asarray(inputs.columns["query"]).tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert inputs.keys["item_id"] == ["item 0", "item 1"]
    assert np.asarray(inputs.keys["user_id"]).tolist() == [NO_CODE]


def test_values_are_parsed_like_the_log(reader: InputReader) -> None:
    inputs = read(
        reader,
        tensor("code", "BYTES", ["ff", "FFFFFFFFFFFFFFFF"]),
        tensor("made", "BYTES", ["1970-01-02", "1969-12-31"]),
        tensor("price", "INT8", [3]),
        tensor("places", "INT64", [1, 2, 3, NO_CODE], [2, 2]),
        tensor("event_time", "INT64", [None, NOW - 5]),
    )
    assert np.asarray(inputs.columns["code"]).tolist() == [255, -1]
    assert np.asarray(inputs.columns["made"]).tolist() == [1, -1]
    assert np.asarray(inputs.columns["price"]).tolist() == [3.0]
    places = inputs.columns["places"]
    assert isinstance(places, Ragged)
    assert (places.values.tolist(), places.lengths.tolist()) == ([1, 2, 3], [2, 1])
    assert np.asarray(inputs.columns[Columns.TIME]).tolist() == [NOW, NOW - 5]
    # Integers stand for themselves: a hex column's bits, a date's days since 1970.
    same = read(reader, tensor("code", "UINT64", [255, 2**64 - 1]), tensor("made", "INT64", [1, -1]))
    assert np.asarray(same.columns["code"]).tolist() == [255, -1]
    assert np.asarray(same.columns["made"]).tolist() == [1, -1]


def test_missing_inputs_are_null_and_digests_differ_between_requests(reader: InputReader) -> None:
    inputs = reader.read([ITEM], NOW)
    assert np.asarray(inputs.columns["page"]).tolist() == [NO_CODE]
    assert np.isnan(np.asarray(inputs.columns["price"])).all()
    assert np.asarray(inputs.columns["query"]).tolist() == [[0.0, 0.0]]
    assert np.asarray(inputs.columns[Columns.TIME]).tolist() == [NOW]
    assert inputs.digest == reader.read([ITEM], NOW + 1).digest
    assert inputs.digest != read(reader, tensor("price", "FP32", [1.0])).digest
    assert len(inputs.digest) == 16


def test_the_metadata_lists_the_accepted_inputs(reader: InputReader) -> None:
    declared_inputs = {spec.name: (spec.datatype, spec.shape, spec.optional) for spec in reader.inputs}
    assert declared_inputs["item_id"] == ("BYTES", (-1,), False)
    assert declared_inputs["user_id"] == ("INT64", (-1,), True)
    assert declared_inputs["words"] == ("BYTES", (-1, -1), True)
    assert declared_inputs["query"] == ("FP32", (-1, 2), True)
    assert declared_inputs["price"] == ("FP64", (-1,), True)
    assert declared_inputs[Columns.TIME] == ("INT64", (-1,), True)
    assert not {"seconds", "clicked", "city"} & declared_inputs.keys()


def test_with_rows_equals_a_request_with_these_items(shop: Any) -> None:
    requirements, limits = FeatureRequirements.from_plan(shop.plan, shop.signature), Limits(max_tag_values=1_000)
    reader = InputReader(requirements, {"query": 2}, 600, limits)
    context = [
        tensor("user_id", "INT64", [1]),
        tensor("page", "BYTES", ["home"]),
        tensor("query", "FP32", [1.0, 2.0], [1, 2]),
        tensor("words", "BYTES", ["b", "a"], [1, 2]),
    ]
    one_row = reader.read([*context, tensor("item_id", "BYTES", ["item 9"])], NOW)
    several_rows, read = reader.with_rows(one_row, ITEM), reader.read([*context, ITEM], NOW)
    assert (several_rows.rows, several_rows.digest, list(several_rows.columns), list(several_rows.keys)) == (
        read.rows, read.digest, list(read.columns), list(read.keys)
    )  # fmt: skip
    np.testing.assert_equal(_plain(several_rows.columns), _plain(read.columns))
    np.testing.assert_equal(several_rows.keys, read.keys)
    assert several_rows.sent["item_id"] == read.sent["item_id"] == ["item 0", "item 1"]
    with pytest.raises(BadRequestError, match="inputs words: got 1002 values in 501 rows; wanted at most 1000"):
        reader.with_rows(one_row, tensor("item_id", "BYTES", ["item 0"] * 501))


def _plain(columns: Any) -> dict[str, Any]:
    return {
        name: (column.values, column.lengths) if isinstance(column, Ragged) else column
        for name, column in columns.items()
    }  # fmt: skip


def test_inputs_that_another_version_knows_are_passed_over_and_counted(shop: Any, tmp_path: Path) -> None:
    requirements, metrics = FeatureRequirements.from_plan(shop.plan, shop.signature), Metrics()
    surface = tensor("surface", "BYTES", ["feed"])
    objects = ObjectStore.in_folder(tmp_path)
    stable, candidate = VersionInputs(objects, 1, metrics, 5), VersionInputs(objects, 2, Metrics(), 5)
    reader = InputReader(requirements, {"query": 2}, 5, passes_over=stable.passes_over)
    stable.declare(reader.accepted_names, ["item_id"])
    stable.poll()
    with pytest.raises(BadRequestError, match="no input 'surface'"):
        reader.read([ITEM, surface], NOW)
    candidate.declare([*reader.accepted_names, "surface"], ["item_id", "surface"])
    candidate.poll()
    stable.poll()
    assert "surface" not in reader.read([ITEM, surface], NOW).sent
    assert reader.read([ITEM, surface], NOW).digest == reader.read([ITEM], NOW).digest
    assert b'shortlist_inputs_passed_over_total{input="surface"} 2.0' in metrics.text()
    stable.poll()
    assert carried_inputs(objects) == {"surface"}
    names = read_version_inputs(objects, 2)
    assert names is not None and names.read == {"item_id", "surface"}
    with pytest.raises(BadRequestError, match="no input 'basket'"):
        reader.read([ITEM, tensor("basket", "INT64", [1])], NOW)
