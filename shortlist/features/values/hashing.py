"""Stable, order-aware hashing of column values into buckets, in integer arithmetic that never overflows 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from shortlist.system.execution import count_cpu_operation

PRIME: Final = 2**31 - 1
"""All arithmetic is modulo this prime, so every product stays below 2**62."""
LIMB: Final = 2**30
"""A 64-bit value enters as value mod LIMB, then floor(value / LIMB)."""
ROUND_KEYS: Final = (314_159_265, 358_979_323)
"""Added before the two rounds of a value, one per limb (digits of pi)."""
TEXT_BASES: Final = (1_048_583, 2_097_169)
"""Bases of the two polynomials that turn UTF-8 text into an integer."""
_SQUARE: Final = ":square"

NO_CODE: Final = -(2**63)
"""The code of null; in a list: padding, no value at all."""
NULL_IN_LIST: Final = NO_CODE + 1
"""In a list: the code of a value that is null."""


def with_buckets(frame: pl.LazyFrame, name: str, codes: Sequence[str], buckets: int) -> pl.LazyFrame:
    """Add ids in [1, buckets) for the ordered combination of Int64 columns; 0 where one of them is null.

    Per column and limb, one round replaces h by (h + limb + key) ** 5 modulo PRIME. Raising to the fifth power permutes
    the residues because 5 does not divide PRIME - 1 (the permutation of MiMC; Albrecht et al., 2016). Each round
    mixes all values before it, so (a, b) differs from (b, a), and equal values do not cancel. It takes only sums,
    products and floor modulo, so an exported graph can do the same.

    Args:
        frame: Rows with the columns in `codes`.
        name: Name of the UInt32 column to add.
        codes: Int64 columns, in order.
        buckets: Number of ids, 0 among them.
    """
    mixed = pl.col(name)
    frame = frame.with_columns(pl.lit(0, dtype=pl.Int64).alias(name))
    for code in codes:
        limbs = (pl.col(code) % LIMB, pl.col(code) // LIMB % PRIME)
        for limb, key in zip(limbs, ROUND_KEYS, strict=True):
            frame = _fifth_power(frame.with_columns((mixed + limb + key) % PRIME), name)
    return frame.with_columns((mixed % (buckets - 1) + 1).fill_null(0).cast(pl.UInt32))


def codes_of(values: pl.Series) -> pl.Series:
    """Return Int64 codes of integers (themselves) or of texts (their fingerprint); null stays null."""
    if values.dtype == pl.String:
        return _fingerprints(values)
    return values.cast(pl.Int64)


def _fifth_power(frame: pl.LazyFrame, name: str) -> pl.LazyFrame:
    # Column by column, not as one expression: an expression that uses its operand twice doubles with every round.
    value, square = pl.col(name), pl.col(_SQUARE)
    squared = frame.with_columns((value * value % PRIME).alias(_SQUARE))
    return squared.with_columns((square * square % PRIME * value % PRIME).alias(name)).drop(_SQUARE)


def _fingerprints(texts: pl.Series) -> pl.Series:
    """Return for every text the 62-bit integer `first * 2**31 + second`, each a Rabin-Karp fingerprint.

    A fingerprint is the sum over the UTF-8 bytes of (byte + 1) * base ** position, modulo PRIME, position from 0.
    """
    count_cpu_operation("fingerprints of texts (numpy)")
    array = texts.fill_null("").rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    text_bytes = np.frombuffer(data_buffer or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    position = np.arange(text_bytes.size) - np.repeat(offsets[:-1] - offsets[0], lengths)
    code = np.zeros(len(texts), dtype=np.int64)
    for base in TEXT_BASES:
        terms = (text_bytes.astype(np.int64) + 1) * _powers(base, int(lengths.max(initial=0)))[position]
        code = code * 2**31 + _sums(terms, offsets[:-1] - offsets[0], lengths) % PRIME
    return pl.select(pl.when(texts.is_not_null()).then(pl.Series(code))).to_series().alias(texts.name)


def _sums(terms: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum the terms of each text; below 2**63 for texts of up to 2**23 bytes."""
    sums = np.zeros(len(lengths), dtype=np.int64)
    filled = lengths > 0  # reduceat has no notion of an empty segment
    if filled.any():
        sums[filled] = np.add.reduceat(terms, starts[filled])
    return sums


def _powers(base: int, count: int) -> np.ndarray:
    powers = np.ones(1, dtype=np.int64)
    while len(powers) < count:  # as many steps as the length of the longest text has bits
        powers = np.concatenate([powers, powers * pow(base, len(powers), PRIME) % PRIME])
    return powers[: max(count, 1)]
