"""Vectors of texts by an ONNX model: computed once per text, and models and tables that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from onnx import TensorProto, helper, save
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.contracts import DataError
from shortlist.data import text_vectors
from shortlist.data.text_vectors import VECTORS, write_text_vectors

WORDS = ["red", "shoe", "book"]


def word_counts(path: Path, nodes: list[Any] | None = None, inputs: list[Any] | None = None, width: Any = 3) -> Path:
    """Write a model that counts three words in a text, split at spaces."""
    given = inputs or [helper.make_tensor_value_info("text", TensorProto.STRING, [None])]
    counts = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node(
            "TfIdfVectorizer", ["words"], ["vectors"], mode="TF", min_gram_length=1, max_gram_length=1,
            max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=WORDS,
        ),
    ]  # fmt: skip
    answers = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [None, width])]
    graph = helper.make_graph(nodes or counts, "words", given, answers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


@pytest.fixture
def items(tmp_path: Path) -> Path:
    path = tmp_path / "items.parquet"
    pl.DataFrame({"item": [1, 2, 3, 4], "title": ["red shoe", "book book", None, "red shoe"]}).write_parquet(path)
    return path


def vectors(folder: Path) -> dict[int, list[float] | None]:
    frame = pl.read_parquet(folder / VECTORS)
    assert frame.columns == ["item", "title_vector"]
    return dict(frame.iter_rows())


def test_every_text_gets_its_vector_and_no_text_none(items: Path, tmp_path: Path) -> None:
    model = word_counts(tmp_path / "words.onnx")
    found = write_text_vectors(items, "item", "title", model, tmp_path / "out", batch_rows=1)
    assert vectors(tmp_path / "out") == {1: [1, 1, 0], 2: [0, 0, 2], 3: None, 4: [1, 1, 0]}
    assert found == (4, 3, 2, 1)  # two different texts


def test_only_new_texts_are_computed_and_a_new_model_computes_all(
    items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = word_counts(tmp_path / "words.onnx"), tmp_path / "out"
    write_text_vectors(items, "item", "title", model, out)
    rows = pl.read_parquet(items)
    pl.concat([rows, pl.DataFrame({"item": [5], "title": ["red book"]})]).write_parquet(items)
    assert write_text_vectors(items, "item", "title", model, out).computed == 1
    assert vectors(out)[5] == [1, 0, 1]
    monkeypatch.setattr(text_vectors, "_session", lambda model: pytest.fail("nothing is new"))
    assert write_text_vectors(items, "item", "title", model, out).computed == 0
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "WORDS", [*reversed(WORDS)])
    assert write_text_vectors(items, "item", "title", word_counts(tmp_path / "words.onnx"), out).computed == 3
    assert vectors(out)[5] == [1, 0, 1][::-1]


def test_the_command_says_how_to_declare_it(items: Path, tmp_path: Path) -> None:
    model = word_counts(tmp_path / "words.onnx")
    options = ["--key", "item", "--column", "title", "--model", str(model), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["text-vectors", str(items), *options])
    assert result.exit_code == 0, result.output
    assert "4 rows, vectors of 3 numbers; 2 texts computed, 1 rows without a text" in result.output
    assert "{name: title_vector, type: vector}" in result.output


def test_a_vector_that_is_no_number_names_its_row(items: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Cast", ["numbers"], ["length"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Div", ["length", "zero"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "one"], ["vectors"]),
    ]
    model = word_counts(tmp_path / "nan.onnx", nodes, width=1)
    with pytest.raises(DataError, match=r"nan\.onnx: the vector of 'title' of 'item' 1 is not finite"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_vectors_of_changing_width_are_refused(items: Path, tmp_path: Path) -> None:
    nodes = [  # one number per row of the batch: batches of one text and of two differ
        helper.make_node("Shape", ["text"], ["rows"]),
        helper.make_node("Concat", ["rows", "rows"], ["square"], axis=0),
        helper.make_node("ConstantOfShape", ["square"], ["vectors"], value=helper.make_tensor("v", 1, [1], [1.0])),
    ]
    model = word_counts(tmp_path / "square.onnx", nodes, width=None)
    more = pl.concat([pl.read_parquet(items), pl.DataFrame({"item": [5], "title": ["shoe"]})])
    more.write_parquet(items)
    with pytest.raises(DataError, match=r"square\.onnx: vectors of 1 and of 2 numbers; wanted one length"):
        write_text_vectors(items, "item", "title", model, tmp_path / "out", batch_rows=2)


def test_a_model_that_reads_no_texts_is_refused(items: Path, tmp_path: Path) -> None:
    numbers = [helper.make_tensor_value_info("ids", TensorProto.FLOAT, [None, 3])]
    model = word_counts(tmp_path / "ids.onnx", [helper.make_node("Identity", ["ids"], ["vectors"])], numbers)
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
def test_a_table_that_cannot_be_used_says_why(
    rows: dict[str, list[Any]], column: str, message: str, tmp_path: Path
) -> None:
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    model = word_counts(tmp_path / "words.onnx")
    with pytest.raises(DataError, match=message):
        write_text_vectors(tmp_path / "rows.parquet", "item", column, model, tmp_path / "out")
    with pytest.raises(DataError, match=r"nothing\.parquet: no such file; wanted the table"):
        write_text_vectors(tmp_path / "nothing.parquet", "item", column, model, tmp_path / "out")


def test_csv_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\na,red\nb,7\n")
    write_text_vectors(tmp_path / "items.csv", "item", "title", word_counts(tmp_path / "w.onnx"), tmp_path / "out")
    assert np.array(list(vectors(tmp_path / "out").values())).tolist() == [[1, 0, 0], [0, 0, 0]]
