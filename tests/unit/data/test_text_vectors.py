"""Vectors of texts by an ONNX model: computed once per text, with refusals of unusable models and tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from onnx import TensorProto, helper, save
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.contracts import DataError
from shortlist.data.digest import input_digest
from shortlist.data.ingest import ingest
from shortlist.data.side_tables import text_model, vector_cache
from shortlist.data.side_tables.text_vectors import VECTORS, TextVectors, write_text_vectors
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects import CACHE_VARIABLE

VOCABULARY = ["red", "shoe", "book"]


def write_word_count_model(
    path: Path, nodes: list[Any] | None = None, inputs: list[Any] | None = None, width: Any = 3, *, shaped: bool = True
) -> Path:
    """Write a model that counts three words in a text, split at spaces."""
    model_inputs = inputs or [helper.make_tensor_value_info("text", TensorProto.STRING, [None])]
    counts = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node(
            "TfIdfVectorizer", ["words"], ["vectors"], mode="TF", min_gram_length=1, max_gram_length=1,
            max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=VOCABULARY,
        ),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [None, width] if shaped else None)]
    graph = helper.make_graph(nodes or counts, "words", model_inputs, outputs)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "text-vectors"


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.parquet"
    pl.DataFrame({"item": [1, 2, 3, 4], "title": ["red shoe", "book book", None, "red shoe"]}).write_parquet(path)
    return path


def read_vectors(folder: Path) -> dict[int, list[float] | None]:
    frame = pl.read_parquet(folder / VECTORS)
    assert frame.columns == ["item", "title_vector"]
    return dict(frame.iter_rows())


def test_every_text_has_a_vector_and_a_null_text_has_none(items: Path, tmp_path: Path) -> None:
    model = write_word_count_model(tmp_path / "words.onnx")
    report = write_text_vectors(items, "item", "title", model, tmp_path / "out", batch_rows=1)
    assert read_vectors(tmp_path / "out") == {1: [1, 1, 0], 2: [0, 0, 2], 3: None, 4: [1, 1, 0]}
    assert report == (4, 3, 2, 1)  # two different texts


def test_cached_vectors_are_used_until_the_model_changes(
    items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = write_word_count_model(tmp_path / "words.onnx"), tmp_path / "out"
    write_text_vectors(items, "item", "title", model, out)
    rows = pl.read_parquet(items)
    pl.concat([rows, pl.DataFrame({"item": [5], "title": ["red book"]})]).write_parquet(items)
    assert write_text_vectors(items, "item", "title", model, out).computed == 1
    assert read_vectors(out)[5] == [1, 0, 1]
    monkeypatch.setattr(text_model, "_open_session", lambda model: pytest.fail("nothing is new"))
    assert write_text_vectors(items, "item", "title", model, out).computed == 0
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setitem(globals(), "VOCABULARY", [*reversed(VOCABULARY)])
    assert (
        write_text_vectors(items, "item", "title", write_word_count_model(tmp_path / "words.onnx"), out).computed == 3
    )
    assert read_vectors(out)[5] == [1, 0, 1][::-1]


def test_the_command_prints_the_declaration_of_the_side_table(items: Path, tmp_path: Path) -> None:
    model = write_word_count_model(tmp_path / "words.onnx")
    options = ["--key", "item", "--column", "title", "--model", str(model), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["text-vectors", str(items), *options])
    assert result.exit_code == 0, result.output
    assert "4 rows, vectors of 3 numbers; 2 texts computed, 1 rows without a text" in result.output
    assert "{name: title_vector, type: vector}" in result.output


def test_a_vector_that_is_not_finite_is_refused_with_its_row(items: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Cast", ["numbers"], ["length"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Div", ["length", "zero"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["vectors"]),
    ]
    model = write_word_count_model(tmp_path / "nan.onnx", nodes, width=1)
    with pytest.raises(DataError, match=r"nan\.onnx: the vector of 'title' of 'item' [12] is not finite"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_vectors_of_changing_width_are_refused(items: Path, tmp_path: Path) -> None:
    nodes = [  # one number per row of the batch: batches of one text and of two differ
        helper.make_node("Shape", ["text"], ["rows"]),
        helper.make_node("Concat", ["rows", "rows"], ["square"], axis=0),
        helper.make_node("ConstantOfShape", ["square"], ["vectors"], value=helper.make_tensor("v", 1, [1], [1.0])),
    ]
    model = write_word_count_model(tmp_path / "square.onnx", nodes, width=None)
    items_with_shoe = pl.concat([pl.read_parquet(items), pl.DataFrame({"item": [5], "title": ["shoe"]})])
    items_with_shoe.write_parquet(items)
    with pytest.raises(DataError, match=r"square\.onnx: vectors of [12] and of [12] numbers; wanted one length"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out", batch_rows=2)


@pytest.mark.parametrize(
    ("last", "shape"),
    [
        (helper.make_node("ReduceSum", ["counts", "first"], ["vectors"]), r"float32 of shape \(1, 3\)"),
        (helper.make_node("Concat", ["counts", "counts"], ["vectors"], axis=0), r"float32 of shape \(4, 3\)"),
        (helper.make_node("Unsqueeze", ["counts", "first"], ["vectors"]), r"float32 of shape \(1, 2, 3\)"),
        (helper.make_node("ReduceSum", ["counts", "second"], ["vectors"], keepdims=0), r"float32 of shape \(2,\)"),
        (helper.make_node("Slice", ["counts", "first", "first", "second"], ["vectors"]), r"float32 of shape \(2, 0\)"),
    ],
    ids=["fewer rows", "more rows", "a dimension more", "a dimension less", "no width"],
)
def test_an_output_that_is_not_one_vector_per_text_is_refused(
    items: Path, tmp_path: Path, last: Any, shape: str
) -> None:
    constants = [
        helper.make_node("Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [1], [number]))
        for number, name in enumerate(("first", "second"))
    ]
    counts = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node(
            "TfIdfVectorizer", ["words"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1,
            max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=VOCABULARY,
        ),
    ]  # fmt: skip
    model = write_word_count_model(tmp_path / "shape.onnx", [*constants, *counts, last], shaped=False)
    message = rf"shape\.onnx: answers {shape} for 2 texts from 'item' \d on; wanted a vector of floats for each text"
    with pytest.raises(DataError, match=rf"{message}, shape \(2, width\)"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_reads_no_texts_is_refused(items: Path, tmp_path: Path) -> None:
    numbers = [helper.make_tensor_value_info("ids", TensorProto.FLOAT, [None, 3])]
    model = write_word_count_model(tmp_path / "ids.onnx", [helper.make_node("Identity", ["ids"], ["vectors"])], numbers)
    with pytest.raises(DataError, match=r"reads ids: tensor\(float\) .*; wanted one tensor of texts"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"broken\.onnx: no ONNX model that runs here"):
        write_text_vectors(items, "item", "title", tmp_path / "broken.onnx", tmp_path / "out")


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ({"item": [1, 1], "title": ["a", "b"]}, "title", r"'item' is null or occurs twice; wanted one row per key"),
        ({"item": [1, None], "title": ["a", "b"]}, "title", r"'item' is null or occurs twice"),
        ({"item": [1], "title": ["a"]}, "titel", r"has no column 'titel'; did you mean 'title'\?"),
        ({"item": [1], "title": [0.5]}, "title", r"'title' is Float64; wanted integers or texts, and texts"),
    ],
)
def test_an_unusable_table_is_refused_with_the_reason(
    rows: dict[str, list[Any]], column: str, message: str, tmp_path: Path
) -> None:
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    model = write_word_count_model(tmp_path / "words.onnx")
    with pytest.raises(DataError, match=message):
        write_text_vectors(tmp_path / "rows.parquet", "item", column, model, tmp_path / "out")
    with pytest.raises(DataError, match=r"nothing\.parquet: no such file; wanted the table"):
        write_text_vectors(tmp_path / "nothing.parquet", "item", column, model, tmp_path / "out")


def test_csv_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\na,red\nb,7\n")
    write_text_vectors(
        tmp_path / "items.csv", "item", "title", write_word_count_model(tmp_path / "w.onnx"), tmp_path / "out"
    )
    assert np.array(list(read_vectors(tmp_path / "out").values())).tolist() == [[1, 0, 0], [0, 0, 0]]


def texts_with_keys(texts: list[str | None]) -> tuple[pl.Series, pl.Series]:
    return pl.Series("title", texts, dtype=pl.String), pl.Series("item", range(len(texts)))


def test_a_text_is_computed_once_over_blocks_and_tables(tmp_path: Path, cache: Path) -> None:
    model = write_word_count_model(tmp_path / "words.onnx")
    with TextVectors(model, 2) as first:
        assert first.compute(*texts_with_keys([None, None])).to_list() == [None, None]
        assert first.compute(*texts_with_keys(["red", None, "book", "red"])).to_list() == [
            [1, 0, 0],
            None,
            [0, 0, 1],
            [1, 0, 0],
        ]
        assert first.compute(*texts_with_keys(["book", "shoe", ""])).to_list() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
        assert first.computed == 4
    with TextVectors(model, 2) as second:
        assert second.compute(*texts_with_keys(["shoe", "red shoe"])).to_list() == [[0, 1, 0], [1, 1, 0]]
        assert (second.computed, second.width) == (1, 3)
    assert len(list(cache.glob("*.sqlite"))) == 1


def test_unused_vectors_are_deleted_after_the_retention_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_word_count_model(tmp_path / "words.onnx")

    def count_computed(*texts: str | None) -> int:
        with TextVectors(model, 2) as vectors:
            vectors.compute(*texts_with_keys([*texts]))
            return vectors.computed

    monkeypatch.setattr(vector_cache.time, "time", lambda: 0.0)
    assert count_computed("red", "book") == 2
    monkeypatch.setattr(vector_cache.time, "time", lambda: 60 * 86_400.0)
    assert count_computed("red") == 0
    monkeypatch.setattr(vector_cache.time, "time", lambda: 100 * 86_400.0)  # "red" was wanted 40 days ago
    assert count_computed() == 0
    assert count_computed("red", "book") == 1


def test_a_broken_cache_is_recreated_and_an_unusable_one_is_refused(tmp_path: Path, cache: Path) -> None:
    model = write_word_count_model(tmp_path / "words.onnx")
    with TextVectors(model, 2) as vectors:
        vectors.compute(*texts_with_keys(["red"]))
    (file,) = cache.glob("*.sqlite")
    file.write_bytes(b"no database at all, and long enough to be looked at" * 100)
    with TextVectors(model, 2) as vectors:
        assert vectors.compute(*texts_with_keys(["red"])).to_list() == [[1, 0, 0]]
    file.unlink()
    file.mkdir()
    with pytest.raises(
        DataError, match=r"cache of vectors cannot be used: .*; delete the file, or let SHORTLIST_CACHE"
    ):
        TextVectors(model, 2)


def test_external_weights_are_part_of_the_model(tmp_path: Path) -> None:
    from onnx import load

    model = write_word_count_model(tmp_path / "words.onnx")
    onnx_model = load(model)
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [3, 300], np.ones(900, np.float32).tobytes(), raw=True)
    onnx_model.graph.initializer.append(weights)
    onnx_model.graph.node[-1].output[0] = "counts"
    onnx_model.graph.node.append(helper.make_node("MatMul", ["counts", "weights"], ["vectors"]))
    onnx_model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 300
    save(onnx_model, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with TextVectors(model, 2) as vectors:
        assert vectors.compute(*texts_with_keys(["red shoe"])).to_list() == [[2.0] * 300]
    (tmp_path / "weights.bin").write_bytes(np.full(900, 5, np.float32).tobytes())
    with TextVectors(model, 2) as vectors:
        assert vectors.compute(*texts_with_keys(["red shoe"])).to_list() == [[10.0] * 300]
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(DataError, match=r"weights\.bin: no such file; words\.onnx keeps weights in it"):
        TextVectors(model, 2)


DATA: dict[str, Any] = {
    "source": {"kind": "files", "path": "log.csv"},
    "columns": [{"name": "item_id", "type": "integer"}, {"name": "clicked", "type": "integer"}],
    "label": "clicked",
    "clock": {"kind": "column", "column": "time", "unit": "iso"},
    "rules": {"min_rows": 1},
    "side_tables": [
        {
            "name": "items", "path": "items.csv", "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "integer"},
                {"name": "title_vector", "type": "vector", "embedding": {"text": "title", "model": "words.onnx"}},
                {"name": "title", "type": "string"},
            ],
        }
    ],
    "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
}  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    write_word_count_model(folder / "words.onnx")
    rows = [f"{1 + number % 3},{number % 2},2026-03-0{1 + number // 10}T10:00:{number % 10:02}" for number in range(30)]
    (folder / "log.csv").write_text("item_id,clicked,time\n" + "\n".join(rows))
    (folder / "items.csv").write_text("item_id,title\n1,red shoe\n2,book book\n3,\n")
    return folder


def test_a_vector_column_of_a_side_table_is_computed_during_ingest(shop: Path, tmp_path: Path) -> None:
    data, runtime, now = Data.model_validate(DATA), Runtime(engine="cpu"), datetime(2026, 3, 4, tzinfo=UTC)
    ingest(data, shop, tmp_path / "raw", runtime)
    validate(data, tmp_path / "raw", tmp_path / "valid", tmp_path / "quarantine", runtime, now)
    items = pl.read_parquet(tmp_path / "valid/side/items.parquet")
    assert items.schema["title_vector"] == pl.List(pl.Float32)
    assert dict(items.select("item_id", "title_vector").iter_rows()) == {1: [1, 1, 0], 2: [0, 0, 2], 3: None}


def test_the_input_digest_changes_with_the_model(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data.model_validate(DATA)
    digest = input_digest(data, shop)
    assert digest == input_digest(data, shop)
    monkeypatch.setitem(globals(), "VOCABULARY", [*reversed(VOCABULARY)])
    write_word_count_model(shop / "words.onnx")
    assert digest != input_digest(data, shop)
    (shop / "words.onnx").unlink()
    with pytest.raises(DataError, match=r"words\.onnx: no such file; .*wanted the model of column 'title_vector'"):
        input_digest(data, shop)


def test_a_model_without_finite_vectors_stops_the_run(shop: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Cast", ["numbers"], ["length"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Sub", ["length", "two"], ["less"]),
        helper.make_node("Div", ["less", "less"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["vectors"]),
    ]
    write_word_count_model(shop / "words.onnx", nodes, width=1)
    with pytest.raises(DataError, match=r"words\.onnx: the vector of 'title' of 'item_id' [12] is not finite"):
        ingest(Data.model_validate(DATA), shop, tmp_path / "raw", Runtime(engine="cpu"))
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"type": "string"}, "'title_vector' has an embedding, so it is computed and read from no file"),
        ({"source": "vector"}, "declare type: vector and no source"),
        (
            {"embedding": {"text": "titel", "model": "m"}},
            "'titel' is no other column of the table; did you mean 'title'\\?",
        ),
        ({"embedding": {"text": "item_id", "model": "m"}}, "'item_id' is no other column of the table"),
        ({"embedding": {"text": "title", "model": ""}}, "at least 1 character"),
    ],
)
def test_an_embedding_that_cannot_be_computed_is_refused(column: dict[str, Any], message: str) -> None:
    (table,) = DATA["side_tables"]
    first, computed, text = table["columns"]
    changed = {**table, "columns": [first, {**computed, **column}, text]}
    with pytest.raises(ValueError, match=message):
        Data.model_validate({**DATA, "side_tables": [changed]})


def test_an_embedding_in_a_log_column_is_refused() -> None:
    (table,) = DATA["side_tables"]
    with pytest.raises(ValueError, match=r"'title_vector' has an embedding, which only columns of side tables have"):
        Data.model_validate({**DATA, "columns": [*DATA["columns"], table["columns"][1]], "side_tables": []})
