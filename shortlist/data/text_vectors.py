"""Vectors of the texts in a column, by a model that the user gives; texts that are known already are not computed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.data.quarantine import ParquetFileWriter
from shortlist.data.text_model import TextModel, Vectors
from shortlist.data.vector_cache import VectorCache
from shortlist.storage.artefacts import atomic_folder

VECTORS: Final = "vectors.parquet"
"""In the folder: the key, and `<column>_vector`; declare it as a side table."""
BLOCK_ROWS: Final = 16_384
"""Rows whose vectors are in memory at once: 25 MB of vectors of 384 numbers."""
_KEYS: Final = (pl.Int64, pl.Int32, pl.UInt32, pl.UInt64, pl.String)


class TextVectors:
    """Gives blocks of texts their vectors, each different text computed once by a model.

    Args:
        path: The model's file; see `TextModel`.
        batch_rows: Texts that the model gets at once.

    Raises:
        DataError: There is no such model, or the cache cannot be used.
    """

    def __init__(self, path: Path, batch_rows: int) -> None:
        self._model = TextModel(path)
        self._cache = VectorCache(self._model.digest)
        self._batch_rows = batch_rows
        self.width = 0
        """Numbers of a vector; 0 as long as there was no text."""
        self.computed = 0
        """Texts that the model was run on; the others were known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cache.close()

    def of(self, texts: pl.Series, keys: pl.Series) -> pl.Series:
        """Return the vectors of a block, List(Float32); null where the text is.

        Args:
            texts: The texts; the name is that of the column, for messages.
            keys: Of their rows, likewise.

        Raises:
            DataError: A vector is not finite, or of another length; or the model does not run.
        """
        numbered = pl.DataFrame({"text": texts, "key": keys}).with_columns(number=pl.col("text").rank("dense") - 1)
        different = numbered.filter(pl.col("text").is_not_null()).unique("number", keep="first").sort("number")
        vectors = self._of_different(different["text"].alias(texts.name), different["key"].alias(keys.name))
        if not len(vectors):
            return pl.Series(texts.name, [None] * len(texts), dtype=pl.List(pl.Float32))
        listed = pl.Series(texts.name, vectors, dtype=pl.Array(pl.Float32, self.width)).cast(pl.List(pl.Float32))
        return listed.gather(numbered["number"])

    def _of_different(self, texts: pl.Series, keys: pl.Series) -> Vectors:
        """Return the vectors of different texts, shape (texts, width)."""
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        found = self._cache.known(digests)
        new = [number for number, digest in enumerate(digests) if digest not in found]
        for first in range(0, len(new), self._batch_rows):
            some = new[first : first + self._batch_rows]
            vectors = self._model.vectors(texts.gather(some), keys.gather(some))
            self._check_width(vectors.shape[1])
            computed = {digests[number]: vector for number, vector in zip(some, vectors, strict=True)}
            self._cache.add(computed)
            found |= computed
        self.computed += len(new)
        for digest in digests:
            self._check_width(len(found[digest]))
        return np.stack([found[digest] for digest in digests]) if digests else np.empty((0, 0), np.float32)

    def _check_width(self, width: int) -> None:
        self.width = self.width or width
        if width != self.width:
            narrow, wide = sorted((width, self.width))
            raise DataError(f"{self._model.path}: vectors of {narrow} and of {wide} numbers; wanted one length")


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
    """Write a folder with the vectors of a table's texts: `vectors.parquet`.

    Args:
        table: Parquet, CSV or TSV with one row per key.
        key: Column that the log's rows are joined by.
        column: Column of the texts.
        model: ONNX file; see `TextModel`.
        out: Folder to write.
        batch_rows: Texts that the model gets at once.

    Raises:
        DataError: The table or the model cannot be read, keys are missing or twice, or a vector is not finite or of
            another width.
    """
    rows, named = _read(table, key, column), f"{column}_vector"
    schema = pl.Schema({key: rows.schema[key], named: pl.List(pl.Float32)})
    with (
        TextVectors(model, batch_rows) as known,
        atomic_folder(out) as staging,
        ParquetFileWriter(staging / VECTORS, schema) as writer,
    ):
        for block in rows.iter_slices(BLOCK_ROWS):
            writer.append(block.select(key, known.of(block[column], block[key]).alias(named)))
    return Written(rows.height, known.width, known.computed, rows[column].null_count())


def _read(table: Path, key: str, column: str) -> pl.DataFrame:
    if not table.is_file():
        raise DataError(f"{table}: no such file; wanted the table")
    if table.suffix == ".parquet":
        rows = pl.read_parquet(table)
    elif table.suffix in (".csv", ".tsv"):
        separator = "\t" if table.suffix == ".tsv" else ","
        rows = pl.read_csv(table, separator=separator, schema_overrides={column: pl.String})
    else:
        raise DataError(f"{table}: wanted a .parquet, .csv or .tsv file")
    for name in (key, column):
        if name not in rows.columns:
            raise DataError(f"{table}: has no column '{name}'{did_you_mean(name, rows.columns)}")
    if rows.schema[column] != pl.String or rows.schema[key] not in _KEYS:
        raise DataError(
            f"{table}: '{key}' is {rows.schema[key]} and '{column}' is {rows.schema[column]}; wanted integers or texts,"
            " and texts"
        )
    if rows[key].null_count() or not rows[key].is_unique().all():
        raise DataError(f"{table}: '{key}' is null or occurs twice; wanted one row per key")
    return rows.select(key, column)
