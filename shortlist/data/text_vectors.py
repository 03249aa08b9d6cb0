"""Vectors of the texts in a column, by a model that the user gives; texts that are known already are not computed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.storage.artefacts import atomic_folder, read_json, sha256, write_json
from shortlist.system.progress import progress

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

VECTORS: Final = "vectors.parquet"
"""In the folder: the key, and `<column>_vector`; declare it as a side table."""
_CACHE: Final = "cache.parquet"
_MADE_BY: Final = "model.json"
_DIGEST, _VECTOR = "digest", "vector"
_KEYS: Final = (pl.Int64, pl.Int32, pl.UInt32, pl.UInt64, pl.String)
_WIDER: Final = 65_536
"""A model that answers more numbers per text answers no vector, but words or characters."""


class Written(NamedTuple):
    """What became of a table."""

    rows: int
    width: int
    """Numbers of a vector."""
    computed: int
    """Different texts that the model was run on; the others were known."""
    without_text: int
    """Rows whose text is null; so is their vector."""


def write_text_vectors(table: Path, key: str, column: str, model: Path, out: Path, batch_rows: int = 256) -> Written:
    """Write a folder with the vectors of a table's texts: `vectors.parquet`, and a cache for the next call.

    Args:
        table: Parquet, CSV or TSV with one row per key.
        key: Column that the log's rows are joined by.
        column: Column of the texts.
        model: ONNX file with one input of texts, shape (rows,) or (rows, 1), whose first output is floats, shape
            (rows, width): tokenizer and network in one graph.
        out: Folder to write; vectors of the same texts by the same file are taken from what lies there.
        batch_rows: Texts that the model gets at once.

    Raises:
        DataError: The table or the model cannot be read, keys are missing or twice, or a vector is not finite or of
            another width.
    """
    rows = _read(table, key, column)
    digests = rows.with_columns(_digests(rows[column]))
    made_by = {"model": sha256(_there(model, "model")), "column": column}
    known = _known(out, made_by)
    wanted = digests.filter(pl.col(_DIGEST).is_not_null()).unique(_DIGEST, maintain_order=True)
    new = wanted.join(known, _DIGEST, "anti", maintain_order="left")
    computed = _computed(new, key, column, model, batch_rows)
    every = pl.concat([known, computed]).unique(_DIGEST, maintain_order=True)
    width = _one_width(every, model)
    named = f"{column}_vector"
    vectors = digests.join(every, _DIGEST, "left", maintain_order="left").select(key, pl.col(_VECTOR).alias(named))
    with atomic_folder(out) as staging:
        vectors.write_parquet(staging / VECTORS)
        every.join(wanted.select(_DIGEST), _DIGEST, "semi", maintain_order="left").write_parquet(staging / _CACHE)
        write_json(staging / _MADE_BY, made_by)
    return Written(rows.height, width, computed.height, rows[column].null_count())


def _read(table: Path, key: str, column: str) -> pl.DataFrame:
    path = _there(table, "table")
    if path.suffix == ".parquet":
        rows = pl.read_parquet(path)
    elif path.suffix in (".csv", ".tsv"):
        rows = pl.read_csv(path, separator="\t" if path.suffix == ".tsv" else ",", schema_overrides={column: pl.String})
    else:
        raise DataError(f"{path}: wanted a .parquet, .csv or .tsv file")
    for name in (key, column):
        if name not in rows.columns:
            raise DataError(f"{path}: has no column '{name}'{did_you_mean(name, rows.columns)}")
    if rows.schema[column] != pl.String or rows.schema[key] not in _KEYS:
        raise DataError(
            f"{path}: '{key}' is {rows.schema[key]} and '{column}' is {rows.schema[column]}; wanted integers or texts,"
            " and texts"
        )
    if rows[key].null_count() or not rows[key].is_unique().all():
        raise DataError(f"{path}: '{key}' is null or occurs twice; wanted one row per key")
    return rows.select(key, column)


def _there(path: Path, what: str) -> Path:
    if not path.is_file():
        raise DataError(f"{path}: no such file; wanted the {what}")
    return path


def _digests(texts: pl.Series) -> pl.Series:
    found = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in texts]
    return pl.Series(_DIGEST, found, dtype=pl.String)


def _known(out: Path, made_by: dict[str, str]) -> pl.DataFrame:
    """Return the vectors of an earlier call with the same model, by the digest of their text."""
    nothing = pl.DataFrame(schema={_DIGEST: pl.String, _VECTOR: pl.List(pl.Float32)})
    if not (out / _CACHE).is_file() or read_json(out / _MADE_BY).get("model") != made_by["model"]:
        return nothing
    return pl.read_parquet(out / _CACHE).cast(nothing.schema)


def _computed(new: pl.DataFrame, key: str, column: str, model: Path, batch_rows: int) -> pl.DataFrame:
    found: list[pl.DataFrame] = []
    if new.height:
        running, name, is_column = _session(model)
        with progress("text vectors", total=new.height) as advance:
            for part in new.iter_slices(batch_rows):
                vectors = _vectors(running, name, is_column, part, key, column, model)
                found.append(part.select(_DIGEST, pl.Series(_VECTOR, vectors.tolist(), dtype=pl.List(pl.Float32))))
                advance(part.height, "")
    return pl.concat([new.select(_DIGEST, pl.lit(None, pl.List(pl.Float32)).alias(_VECTOR)).clear(), *found])


def _session(model: Path) -> tuple[InferenceSession, str, bool]:
    """Return what runs the model, the name of its input, and whether that is a column (rows, 1)."""
    from onnxruntime import InferenceSession

    try:
        running = InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises what it likes
        raise DataError(f"{model}: no ONNX model that runs here: {error}") from None
    inputs = running.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(string)" or len(inputs[0].shape) not in (1, 2):
        got = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        raise DataError(
            f"{model}: reads {got}; wanted one tensor of texts, shape (rows,) or (rows, 1). Put the tokenizer into the"
            " graph"
        )
    return running, inputs[0].name, len(inputs[0].shape) == 2


def _vectors(
    running: InferenceSession, name: str, is_column: bool, part: pl.DataFrame, key: str, column: str, model: Path
) -> np.ndarray:
    texts = np.array(part[column].to_list(), dtype=object)
    try:
        found: Any = running.run(None, {name: texts[:, None] if is_column else texts})[0]
    except Exception as error:  # as above
        raise DataError(f"{model}: does not run on texts from '{key}' {part[key][0]} on: {error}") from None
    shape = np.shape(found)
    if len(shape) != 2 or shape[0] != part.height or not 1 <= shape[1] <= _WIDER or found.dtype.kind != "f":
        raise DataError(
            f"{model}: answers {found.dtype} of shape {shape} for {part.height} texts; wanted (rows, width)"
        )
    if len(broken := np.flatnonzero(~np.isfinite(found).all(axis=1))):
        raise DataError(f"{model}: the vector of '{column}' of '{key}' {part[key][int(broken[0])]} is not finite")
    return np.asarray(found, np.float32)


def _one_width(every: pl.DataFrame, model: Path) -> int:
    widths = every[_VECTOR].list.len().unique().sort().to_list()
    if len(widths) > 1:
        raise DataError(f"{model}: vectors of {widths[0]} and of {widths[-1]} numbers; wanted one length")
    return int(widths[0]) if widths else 0
