"""A log in the layout of the Criteo display-advertising logs, with cardinalities like theirs, for benchmarks.

Label, 13 counts, 26 hashed categories, tab-separated, no header, values missing. Categories follow Zipf's law; whether
a row is clicked depends on some of them and on the counts, so that there is something to learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

COUNTS: Final = 13
CARDINALITIES: Final = (
    1_460, 583, 1_000_000, 300_000, 305, 24, 12_517, 633, 3, 93_145, 5_683, 400_000, 3_194, 27, 14_992, 250_000, 10,
    5_652, 2_173, 4, 350_000, 18, 15, 180_000, 105, 140_000,
)  # fmt: skip
"""Of C1 to C26: Criteo's Kaggle log, its largest columns cut to what two million rows can show."""
_MISSING_COUNTS: Final = np.array((0.45, 0.0, 0.21, 0.22, 0.03, 0.22, 0.04, 0.0, 0.04, 0.45, 0.04, 0.76, 0.22))
_MISSING_CATEGORIES: Final = {3: 0.03, 4: 0.03, 6: 0.12, 12: 0.03, 16: 0.03, 19: 0.44, 20: 0.44, 21: 0.03, 22: 0.76}
_TELLING: Final = (0, 2, 5, 9, 11, 16, 23)
"""Columns whose category moves the click rate."""
_ZIPF: Final = 1.05


def columns(rows: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels (rows), counts (rows, 13; -1 is missing) and categories (rows, 26; -1 is missing)."""
    random = np.random.default_rng(seed)
    counts = np.floor(np.exp(random.normal(1.0, 1.6, (rows, COUNTS)))).astype(np.int64)
    categories = np.stack([_zipf(random, rows, size) for size in CARDINALITIES], axis=1)
    logit = np.full(rows, -1.2) + 0.25 * np.log1p(counts[:, 0]) - 0.2 * np.log1p(counts[:, 5])
    for column in _TELLING:
        effect = np.random.default_rng(1_000 + column).normal(0.0, 0.7, CARDINALITIES[column])
        logit += effect[categories[:, column]]
    labels = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    counts[random.random(counts.shape) < _MISSING_COUNTS] = -1
    for column, share in _MISSING_CATEGORIES.items():
        categories[random.random(rows) < share, column] = -1
    return labels, counts, categories


def frames(rows: int, seed: int = 1, chunk: int = 500_000) -> Iterator[pl.DataFrame]:
    """Yield the log in pieces: `label` Int8, `I1..I13` Int64, `C1..C26` strings of eight hexadecimal digits."""
    for start in range(0, rows, chunk):
        labels, counts, categories = columns(min(chunk, rows - start), seed + start // chunk)
        count_columns = {f"I{column + 1}": pl.Series(counts[:, column]) for column in range(COUNTS)}
        hashed = {f"C{column + 1}": _hex(categories[:, column], column) for column in range(len(CARDINALITIES))}
        frame = pl.DataFrame({"label": labels, **count_columns, **hashed})
        yield frame.with_columns(pl.when(pl.col(list(count_columns)) >= 0).then(pl.col(list(count_columns))))


def write_tsv(path: Path, rows: int, seed: int = 1) -> None:
    """Write the log as a tab-separated file without a header."""
    with path.open("wb") as file:
        for frame in frames(rows, seed):
            frame.write_csv(file, include_header=False, separator="\t")


def _zipf(random: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Return numbers below `size`, of which number k comes about as often as 1 / (k + 1)^1.05."""
    power = 1 - _ZIPF
    uniform = random.random(rows)
    ranks = ((size + 1) ** power * uniform + 1 - uniform) ** (1 / power) - 1
    return np.minimum(ranks.astype(np.int64), size - 1)


def _hex(numbers: np.ndarray, column: int) -> pl.Series:
    # Multiplication by an odd number and a column's own offset: the same category in two columns has two hashes.
    hashed = (numbers.astype(np.uint64) * np.uint64(2_654_435_761) + np.uint64(column * 40_503)) & np.uint64(0xFFFFFFFF)
    table = np.frombuffer(b"0123456789abcdef", np.uint8)
    digits = (hashed[:, None] >> np.arange(28, -1, -4, dtype=np.uint64)) & np.uint64(15)
    texts = table[digits.astype(np.intp)].view("S8").ravel().astype("U8")
    return pl.Series(texts).set(pl.Series(numbers < 0), None)
