"""Edge-case values, read by ingest and the training table, and from a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shortlist.serving.server.request_inputs.input_reader import InputReader
from shortlist.serving.validation.edge_cases import ROWS, build_request, edge_case_rows
from shortlist.serving.validation.served_rows import ServedRows, draw_reference_rows
from shortlist.spec.data import Column, null_texts


@pytest.fixture
def served(trained: Any) -> ServedRows:
    return ServedRows(trained.model, trained.log, trained.fitted, draw_reference_rows(trained.scores, 10, seed=1))


def test_rare_values_are_the_same_in_training_and_in_serving(served: ServedRows) -> None:
    assert served.edge_case_difference() is None


def test_a_null_text_read_as_a_value_is_detected(served: ServedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    original_init: Callable[..., None] = InputReader.__init__

    def careless(self: InputReader, *settings: Any) -> None:
        original_init(self, *settings)
        self._nulls = frozenset()

    monkeypatch.setattr(InputReader, "__init__", careless)
    difference = served.edge_case_difference()
    assert difference is not None
    assert difference == "rows with rare values, sent as JSON: inputs surface differ from the training table's"


def test_edge_case_rows_contain_rare_values() -> None:
    columns = [
        Column(name="page", type="string"), Column(name="price", type="number"), Column(name="seen", type="integer"),
    ]  # fmt: skip
    raw = edge_case_rows(columns, {}, ["", "NULL"])
    assert {None, "", "NULL", "\U0001f600"} <= set(raw["page"])
    assert raw["price"].is_nan().any()
    assert raw["price"].is_infinite().any()
    assert str(-0.0) in {str(value) for value in raw["price"]}
    assert 2**63 - 1 in set(raw["seen"])
    body, length = build_request(raw, columns, [0] * ROWS, binary=False)
    assert length is None
    assert [tensor["name"] for tensor in json.loads(body)["inputs"]] == ["event_time", "page", "price", "seen"]


def test_an_empty_text_is_null() -> None:
    assert null_texts(()) == {""}
    assert null_texts(["NA"]) == {"", "NA"}
