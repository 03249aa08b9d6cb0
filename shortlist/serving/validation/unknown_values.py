"""How far scores move where a column of the request is missing, or holds a value that training never saw."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.evaluation.gates.export_validation import UnknownValueEffect
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, SCORE
from shortlist.serving.validation.edge_cases import Tensors
from shortlist.serving.validation.served_rows import ServedRows
from shortlist.spec.data import Column

_MAX_ROWS: Final = 2_000
_UNSEEN_TEXT: Final = "\0 unseen by training"
_UNSEEN_INTEGER: Final = -(2**61) - 7
_SMALLEST: Final = 1e-6

Value = Literal["missing", "unseen"]


def measure_unknown_values(model: Path, served: ServedRows) -> tuple[UnknownValueEffect, ...]:
    """Return, for each column of a request that the model reads, the shift of the mean score of test rows in log-odds.

    A missing value is null. A value that training never saw is tried in columns that are looked up as codes.

    Args:
        model: The model folder.
        served: Test rows, assembled as a server does.
    """
    session = create_session(model / FOLDER)

    def sum_scores(tensors: Tensors, is_compared: npt.NDArray[np.bool_]) -> float:
        return float(session.run([SCORE], dict(tensors))[0][:, 0][is_compared].astype(np.float64).sum())

    sums: dict[tuple[str, Value], tuple[float, float]] = {}
    count, usual = 0, 0.0
    for day, rows, is_compared in served.sample(_MAX_ROWS):
        count += int(is_compared.sum())
        usual += sum_scores(served.tensors(rows, day), is_compared)
        for column, value, altered in _iter_altered(rows, served.request_columns, served.code_columns):
            scores, has_value = sums.get((column, value), (0.0, 0.0))
            scores += sum_scores(served.tensors(altered, day), is_compared)
            has_value += float(rows[column].is_null().to_numpy()[is_compared].sum()) if value == "missing" else 0.0
            sums[column, value] = scores, has_value
    return tuple(
        UnknownValueEffect(
            column=column,
            value=value,
            shift=_log_odds(scores / count) - _log_odds(usual / count),
            share=has_value / count,
            is_key=column in served.key_columns,
        )
        for (column, value), (scores, has_value) in sums.items()
    )


def _log_odds(mean_score: float) -> float:
    probability = min(max(mean_score, _SMALLEST), 1 - _SMALLEST)
    return log(probability / (1 - probability))


def _iter_altered(
    rows: pl.DataFrame, columns: tuple[Column, ...], code_columns: frozenset[str]
) -> Iterator[tuple[str, Value, pl.DataFrame]]:
    for column in columns:
        name, kind = column.name, rows.schema[column.name]
        yield name, "missing", rows.with_columns(pl.lit(None, kind).alias(name))
        unseen: Any = {pl.String(): _UNSEEN_TEXT, pl.Int64(): _UNSEEN_INTEGER}.get(kind)
        if unseen is not None and name in code_columns:
            yield name, "unseen", rows.with_columns(pl.lit(unseen, kind).alias(name))
