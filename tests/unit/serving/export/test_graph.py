from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.features.declared.plan import FeatureColumn
from shortlist.features.kinds.hash import bucket_id_nodes
from shortlist.features.kinds.vocabulary import vocabulary_codes
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import with_buckets
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import ExportError, GraphBuilder, save, tensor_info
from shortlist.serving.export.graph_inputs import GraphInputs, describe_tensors
from shortlist.serving.export.signature import CODES, NO_CODE, NULL_IN_LIST
from shortlist.spec.data import Data
from shortlist.spec.features import Features


def computed(
    fitted: Any, outputs: list[FeatureColumn], rows: pl.DataFrame | None = None
) -> tuple[dict[str, np.ndarray], Any]:
    """The graph's outputs for looked-up rows: `floats`, `ids`, and ids and masks of every list."""
    graph = FeatureGraph(fitted.transformer.preprocessing)
    graph_outputs: dict[str, tuple[str, Any, Any]] = {}
    floats = [output.name for output in outputs if output.kind != "ids"]
    graph_outputs["floats"] = (graph.floats(floats), np.float32, "floats")
    ids = [output.name for output in outputs if output.kind == "id"]
    if ids:
        graph_outputs["ids"] = (graph.ids(ids), np.int64, len(ids))
    for output in outputs:
        if output.kind == "ids":
            list_ids, is_filled = graph.lists(output.name)
            graph_outputs |= {
                output.name: (list_ids, np.int64, "longest"),
                f"{output.name} there": (is_filled, np.bool_, "longest"),
            }
    _, signature = graph.finished(graph_outputs["floats"][0], "whole", 1, "spec", "test")
    model = graph.nodes.model(
        describe_tensors(signature), [tensor_info(*output_tensor) for output_tensor in graph_outputs.values()]
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = encode(fitted.looked_up if rows is None else rows, signature, fitted.transformer.plan.declared)
    answers = session.run([name for name, _, _ in graph_outputs.values()], feeds)
    return dict(zip(graph_outputs, answers, strict=True)), signature


def as_floats(table: pl.DataFrame, outputs: list[FeatureColumn]) -> np.ndarray:
    """Return the features as trees read them: the unknown id, 0, is no number."""

    def block(output: FeatureColumn) -> np.ndarray:
        if output.kind == "vector":
            return table[output.name].to_numpy()
        numbers = table[output.name].cast(pl.Float32)
        return (numbers.replace({0.0: float("nan")}) if output.kind == "id" else numbers).to_numpy()

    return np.column_stack([block(output) for output in outputs if output.kind != "ids"])


def assert_same(fitted: Any, outputs: list[FeatureColumn]) -> None:
    answers, _ = computed(fitted, outputs)
    table = fitted.transformer.compute(fitted.looked_up)
    np.testing.assert_allclose(answers["floats"], as_floats(table, outputs), rtol=1e-6, atol=1e-7)
    ids = [output.name for output in outputs if output.kind == "id"]
    if ids:
        np.testing.assert_array_equal(answers["ids"], table.select(ids).to_numpy())
    for output in outputs:
        if output.kind == "ids":
            pairs = zip(answers[output.name], answers[f"{output.name} there"], strict=True)
            assert [ids[is_filled].tolist() for ids, is_filled in pairs] == table[output.name].to_list()


@pytest.mark.parametrize("name", ["demo", "kuairand", "criteo"])
def test_the_graph_computes_a_shipped_specs_features(fitted_spec: Callable[[str], Any], name: str) -> None:
    fitted = fitted_spec(name)
    assert_same(fitted, list(fitted.transformer.plan.outputs))


def test_the_graph_computes_every_kind_of_feature_of_every_type_of_column(all_features: Any) -> None:
    outputs = list(all_features.transformer.plan.outputs)
    assert {output.kind for output in outputs} == {"dense", "id", "ids", "vector"}
    assert_same(all_features, outputs)


def test_features_come_in_the_requested_order(all_features: Any) -> None:
    outputs = [output for output in all_features.transformer.plan.outputs if output.kind != "ids"]
    order = np.random.default_rng(0).permutation(len(outputs))
    assert_same(all_features, [outputs[number] for number in order])


@pytest.mark.parametrize("number", range(0, 60, 7))
def test_every_feature_can_be_computed_alone(all_features: Any, number: int) -> None:
    outputs = [output for output in all_features.transformer.plan.outputs if output.kind != "ids"]
    assert_same(all_features, [outputs[number % len(outputs)]])


def test_inputs_of_features_that_are_not_requested_are_not_read(all_features: Any) -> None:
    _, signature = computed(all_features, [FeatureColumn("price_number", "dense"), FeatureColumn("user_rate", "dense")])
    assert signature.numbers == (
        "price", "by_user_id:rows", "by_user_id:sum_label", "all_rows:rows", "all_rows:sum_label"
    )  # fmt: skip
    assert not signature.codes + signature.lists + signature.vectors


def test_a_list_is_as_long_as_its_longest_reader(all_features: Any) -> None:
    def longest(*names: str) -> dict[str, int | None]:
        columns = [FeatureColumn("price_number", "dense"), *(FeatureColumn(name, "ids") for name in names)]
        return {tags.place: tags.longest for tags in computed(all_features, columns)[1].lists}

    assert longest("words_id", "words_more_id", "topics_id") == {"words": 3, "items:topics": 2}
    assert longest("places_id") == {"places": 2}
    assert longest("places_id", "places_hash") == {"places": None}  # every value is hashed


def test_kinds_of_operations_are_compiled_once_however_many_columns(fitted_spec: Callable[[str], Any]) -> None:
    preprocessing = fitted_spec("criteo").transformer.preprocessing

    def nodes(columns: int) -> int:
        graph = FeatureGraph(preprocessing)
        graph.floats(
            [f"{kind}{i}_{suffix}" for kind, suffix in (("I", "log"), ("C", "rate")) for i in range(1, columns)]
        )
        return len(graph.nodes)

    assert nodes(14) == nodes(3)


codes = st.integers(-(2**63) + 1, 2**63 - 1) | st.sampled_from([NO_CODE, 0, -1, 2**30, -(2**30), 2**31 - 1, 2**62])


def hashing(columns: int, buckets: int) -> onnxruntime.InferenceSession:
    names = [f"c{number}" for number in range(columns)]
    declared = {
        "source": {"kind": "files"}, "label": "label", "clock": {"kind": "row_order"},
        "columns": [{"name": name, "type": "integer"} for name in (*names, "label")],
    }  # fmt: skip
    nodes = GraphBuilder()
    inputs = GraphInputs(nodes, DeclaredColumns(Data.model_validate(declared)))
    bucket_ids = nodes.transposed(bucket_id_nodes(inputs, [(tuple(names), buckets)]))
    model = nodes.model(describe_tensors(inputs.signature("m", "k")), [tensor_info(bucket_ids, np.int64, 1)])
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


SESSIONS = {(columns, buckets): hashing(columns, buckets) for columns in (1, 2, 3) for buckets in (2, 1000, 2**31 - 1)}


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(codes, codes, codes), min_size=1, max_size=20), session_name=st.sampled_from(list(SESSIONS))
)
def test_hashing_and_crossing_equal_the_training_table(
    rows: list[tuple[int, ...]], session_name: tuple[int, int]
) -> None:
    columns, buckets = session_name
    table = pl.DataFrame(
        {f"{number}": pl.Series([row[number] for row in rows], dtype=pl.Int64) for number in range(columns)}
    )
    nulls = table.with_columns(pl.when(pl.all() != NO_CODE).then(pl.all()))
    expected = with_buckets(nulls.lazy(), "bucket", table.columns, buckets).collect()["bucket"]
    (actual,) = SESSIONS[session_name].run(None, {CODES: table.to_numpy()})
    assert actual[:, 0].tolist() == expected.to_list()


def test_values_that_a_graph_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(ExportError, match=r"vocabulary of 'page': 'b' and 'b' have one fingerprint.*hash the column"):
        vocabulary_codes("page", pl.Series(["a", "b", "c", "b"]))


@pytest.mark.parametrize("value", [NO_CODE, NULL_IN_LIST])
def test_a_value_that_means_null_is_refused(value: int) -> None:
    with pytest.raises(ExportError, match=rf"vocabulary of 'number' holds {value}, which stands for null"):
        vocabulary_codes("number", pl.Series([5, value]))


def test_a_text_read_as_a_number_is_refused_at_export(fit_random: Any, all_features: Any) -> None:
    columns = {**all_features.data.model_dump(), "user": None, "item": None, "side_tables": ()}
    texts = Features.model_validate({"columns": [{"kind": "hash", "each": "page", "buckets": 9}]})
    fitted = fit_random(Data.model_validate(columns), texts).transformer.preprocessing
    numeric = Features.model_validate({"columns": [{"kind": "numeric", "each": "page"}]}).columns
    plan = fitted.plan
    odd = type(plan)(**{**vars(plan), "features": numeric, "outputs": (FeatureColumn("page_number", "dense"),)})
    with pytest.raises(ExportError, match=r"'page' is of type string and read as a number.*wanted type number or date"):
        FeatureGraph(Preprocessing(odd, {}, {}, {})).floats(["page_number"])


def test_lists_as_floats_are_refused(all_features: Any) -> None:
    graph = FeatureGraph(all_features.transformer.preprocessing)
    with pytest.raises(ExportError, match="words_id: no matrix of floats can hold lists"):
        graph.floats(["price_number", "words_id"])


def test_a_missing_feature_is_named(all_features: Any) -> None:
    with pytest.raises(ExportError, match="the model reads 'prices', which its preprocessing does not make"):
        FeatureGraph(all_features.transformer.preprocessing).floats(["prices"])


def test_a_graph_too_large_for_one_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("shortlist.serving.export.graph_builder._MAX_FILE_BYTES", 100)
    nodes = GraphBuilder()
    model = nodes.model([tensor_info("x", np.float32, 1)], [tensor_info(nodes.add("Neg", "x"), np.float32, 1)])
    with pytest.raises(ExportError, match=r"an ONNX file holds 100\. Declare smaller vocabularies"):
        save(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("period", ["hour", "weekday"])
def test_the_clock_equals_the_table_bit_by_bit_at_zeros_of_sine_and_cosine(all_features: Any, period: str) -> None:
    outputs = [FeatureColumn(f"{period}_{curve}", "dense") for curve in ("sin", "cos")]
    quarters = pl.datetime_range(
        pl.datetime(2026, 6, 1, 4), pl.datetime(2026, 6, 8, 4), "6h", time_unit="us", time_zone="UTC", closed="left"
    )  # midnight, six, noon and six in New York, for a week
    rows = all_features.looked_up.head(28).with_columns(quarters.alias("event_time"))
    answers, _ = computed(all_features, outputs, rows)
    table = all_features.transformer.compute(rows)
    np.testing.assert_array_equal(answers["floats"], as_floats(table, outputs))
    assert 0 < np.abs(answers["floats"]).min(where=answers["floats"] != 0, initial=1) < 1e-15
