"""Edge-case values of every type of column, read by ingest and from a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shortlist.serving.export.signature import NO_CODE, NULL_IN_LIST
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.features.feature_requirements import FeatureRequirements
from shortlist.serving.server.request_inputs.input_reader import InputReader
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.serving.server.requests.tensors import Tensor, TensorHead, from_values, validate_message
from shortlist.serving.validation.edge_cases import edge_case_difference
from shortlist.spec.serving import Limits


@pytest.mark.parametrize("nulls", [("",), ("", "NULL", "NA"), ("NA",)])
def test_every_type_is_read_the_same_in_training_and_serving(shop: Any, nulls: tuple[str, ...]) -> None:
    data = shop.plan.declared.data
    data = data.model_copy(update={"source": data.source.model_copy(update={"null_values": nulls})})
    plan = replace(shop.plan, declared=replace(shop.plan.declared, data=data))
    day = shop.views.last_day
    assembler = DayAssembler(plan, shop.signature, shop.views)
    rows = shop.rows(day).head(1)
    assert edge_case_difference(assembler, shop.signature, rows, day, shop.looked_up) is None


@pytest.fixture
def reader(shop: Any) -> InputReader:
    data = shop.plan.declared.data
    data = data.model_copy(update={"source": data.source.model_copy(update={"null_values": ("NULL",)})})
    plan = replace(shop.plan, declared=replace(shop.plan.declared, data=data))
    return InputReader(
        FeatureRequirements.from_plan(plan, shop.signature),
        {"query": 2},
        max_rows=9,
        limits=Limits(max_text_length=100),
    )


def tensor(name: str, datatype: str, values: list[Any], shape: list[int] | None = None) -> Tensor:
    head_fields = {"name": name, "datatype": datatype, "shape": shape or [len(values)]}
    return from_values(validate_message(TensorHead, head_fields), values)


def test_null_texts_are_null_except_within_lists(reader: InputReader) -> None:
    four = ["NULL", "", "null", None]
    read = reader.read(
        [
            tensor("item_id", "BYTES", four),
            tensor("page", "BYTES", four),
            tensor("code", "BYTES", ["NULL", "", " ", "f"]),
            tensor("made", "BYTES", ["NULL", "", " ", "1970-01-02T10:00"]),
            tensor("words", "BYTES", ["NULL", ""], [1, 2]),
        ],
        0,
    )
    assert read.keys["item_id"] == [None, None, "null", None]
    assert read.sent["page"] == [None, None, "null", None]
    page = np.asarray(read.columns["page"])
    assert (page == NO_CODE).tolist() == [True, True, False, True]
    assert np.asarray(read.columns["code"]).tolist() == [NO_CODE, NO_CODE, NO_CODE, 15]
    assert np.asarray(read.columns["made"]).tolist() == [NO_CODE, NO_CODE, NO_CODE, 1]
    words_column = read.columns["words"]
    assert len(words_column.values) == 1  # type: ignore[union-attr]
    assert words_column.values[0] not in (NO_CODE, NULL_IN_LIST)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "datatype", "value", "sentence"),
    [
        ("code", "BYTES", "1_0", "wanted at most 16 hexadecimal digits"),
        ("code", "BYTES", "\u0663", "wanted at most 16 hexadecimal digits"),
        ("made", "BYTES", "2026-W05-6", "wanted ISO dates"),
        ("page", "BYTES", "x" * 101, "got a text of 101 characters; wanted at most 100"),
        ("position", "UINT64", 2**63 + 1, "input 'position': a value is above 9223372036854775807"),
        ("price", "UINT64", 2**64 - 1, "input 'price': a value is above 9223372036854775807"),
    ],
)
def test_values_that_a_log_refuses_are_refused_in_a_request(
    reader: InputReader, name: str, datatype: str, value: Any, sentence: str
) -> None:
    with pytest.raises(BadRequestError, match=sentence):
        reader.read([tensor("item_id", "BYTES", ["a"]), tensor(name, datatype, [value])], 0)


def test_a_hex_column_holds_64_bits(reader: InputReader) -> None:
    read = reader.read([tensor("item_id", "BYTES", ["a"]), tensor("code", "UINT64", [2**64 - 1])], 0)
    assert np.asarray(read.columns["code"]).tolist() == [-1]
