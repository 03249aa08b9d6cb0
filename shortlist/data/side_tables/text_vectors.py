"""Compute vectors of a column's texts by a user's model, with a cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import polars as pl

from shortlist.contracts import DataError, did_you_mean
from shortlist.data.rules.quarantine import ParquetFileWriter
from shortlist.data.side_tables.text_model import TextModel, Vectors
from shortlist.data.side_tables.vector_cache import VectorCache
from shortlist.storage.artefacts import atomic_folder

VECTORS: Final = "vectors.parquet"
"""Table in the folder, with the key and `<column>_vector`; it can be declared as a side table."""
BLOCK_ROWS: Final = 16_384
"""Rows whose vectors are in memory at once: 25 MB of vectors of 384 numbers."""
_KEYS: Final = (pl.Int64, pl.Int32, pl.UInt32, pl.UInt64, pl.String)


class TextVectors:
    """Computes vectors for blocks of texts, once per distinct text.

    Args:
        path: The model's file; see `TextModel`.
        batch_rows: Texts of one call of the model.

    Raises:
        DataError: There is no such model, or the cache cannot be used.
    """

    def __init__(self, path: Path, batch_rows: int) -> None:
        self._model = TextModel(path)
        self._cache = VectorCache(self._model.digest)
        self._batch_rows = batch_rows
        self.width = 0
        """Width of the vectors; 0 before the first text."""
        self.computed = 0
        """Texts that the model was run on; the others were cached."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._cache.close()

    def compute(self, texts: pl.Series, keys: pl.Series) -> pl.Series:
        """Return the vectors of a block, List(Float32); null where the text is.

        Args:
            texts: The texts; the series' name is that of the column, for messages.
            keys: Keys of their rows, likewise.

        Raises:
            DataError: A vector is not finite, or of another width; or the model does not run.
        """
        numbered_texts = pl.DataFrame({"text": texts, "key": keys}).with_columns(
            number=pl.col("text").rank("dense") - 1
        )
        distinct_texts = (
            numbered_texts.filter(pl.col("text").is_not_null()).unique("number", keep="first").sort("number")
        )
        vectors = self._compute_distinct(
            distinct_texts["text"].alias(texts.name), distinct_texts["key"].alias(keys.name)
        )
        if not len(vectors):
            return pl.Series(texts.name, [None] * len(texts), dtype=pl.List(pl.Float32))
        vector_lists = pl.Series(texts.name, vectors, dtype=pl.Array(pl.Float32, self.width)).cast(pl.List(pl.Float32))
        return vector_lists.gather(numbered_texts["number"])

    def _compute_distinct(self, texts: pl.Series, keys: pl.Series) -> Vectors:
        """Return the vectors of distinct texts, shape (texts, width)."""
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        vector_by_digest = self._cache.read_vectors(digests)
        uncached = [number for number, digest in enumerate(digests) if digest not in vector_by_digest]
        for first in range(0, len(uncached), self._batch_rows):
            batch = uncached[first : first + self._batch_rows]
            vectors = self._model.compute_vectors(texts.gather(batch), keys.gather(batch))
            self._check_width(vectors.shape[1])
            computed_vectors = {digests[number]: vector for number, vector in zip(batch, vectors, strict=True)}
            self._cache.add(computed_vectors)
            vector_by_digest |= computed_vectors
        self.computed += len(uncached)
        for digest in digests:
            self._check_width(len(vector_by_digest[digest]))
        return np.stack([vector_by_digest[digest] for digest in digests]) if digests else np.empty((0, 0), np.float32)

    def _check_width(self, width: int) -> None:
        self.width = self.width or width
        if width != self.width:
            narrow, wide = sorted((width, self.width))
            raise DataError(f"{self._model.path}: vectors of {narrow} and of {wide} numbers; wanted one length")


class TextVectorsReport(NamedTuple):
    """Counts of a written table of vectors."""

    rows: int
    width: int
    """Width of the vectors."""
    computed: int
    """Distinct texts that the model was run on; the others were cached."""
    without_text: int
    """Rows whose text, and so vector, is null."""


def write_text_vectors(
    table: Path, key: str, column: str, model: Path, out: Path, batch_rows: int = 256
) -> TextVectorsReport:
    """Write a folder with the vectors of a table's texts: `vectors.parquet`.

    Args:
        table: Parquet, CSV or TSV with one row per key.
        key: Column that the log's rows are joined by.
        column: Column of the texts.
        model: ONNX file; see `TextModel`.
        out: Folder to write.
        batch_rows: Texts of one call of the model.

    Raises:
        DataError: The table or the model cannot be read, keys are null or repeated, or a vector is not finite or of
            another width.
    """
    rows, vector_column = _read_table(table, key, column), f"{column}_vector"
    schema = pl.Schema({key: rows.schema[key], vector_column: pl.List(pl.Float32)})
    with (
        TextVectors(model, batch_rows) as text_vectors,
        atomic_folder(out) as staging,
        ParquetFileWriter(staging / VECTORS, schema) as writer,
    ):
        for block in rows.iter_slices(BLOCK_ROWS):
            writer.append(block.select(key, text_vectors.compute(block[column], block[key]).alias(vector_column)))
    return TextVectorsReport(rows.height, text_vectors.width, text_vectors.computed, rows[column].null_count())


def _read_table(table: Path, key: str, column: str) -> pl.DataFrame:
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
