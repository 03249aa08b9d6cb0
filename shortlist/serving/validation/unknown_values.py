"""How far scores move where a column of the request is missing, or holds a value that training never saw."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Return, for each column of a request that the model reads, the shift of the mean log-odds of test rows.

    A missing value is null. A value that training never saw is tried in columns that are looked up as codes.

    Args:
        model: The model folder.
        served: Test rows, assembled as a server does.
    """
    session = create_session(model / FOLDER)

    def log_odds(tensors: Tensors) -> npt.NDArray[np.float64]:
        scores: npt.NDArray[np.float64] = session.run([SCORE], dict(tensors))[0][:, 0].astype(np.float64)
        scores = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
        log_odds_of_rows: npt.NDArray[np.float64] = np.log(scores / (1 - scores))
        return log_odds_of_rows

    sums: dict[tuple[str, Value], list[float]] = {}
    rows_in_all = 0
    columns = served.request_columns
    for day, rows, is_compared in served.sample(_MAX_ROWS):
        rows_in_all += int(is_compared.sum())
        usual = log_odds(served.tensors(rows, day))[is_compared].sum()
        for column, value, altered in _iter_altered(rows, columns, served.code_columns):
            shift = log_odds(served.tensors(altered, day))[is_compared].sum() - usual
            has_value = rows[column].is_null().to_numpy()[is_compared].sum() if value == "missing" else 0
            totals = sums.setdefault((column, value), [0.0, 0.0])
            totals[0], totals[1] = totals[0] + float(shift), totals[1] + float(has_value)
    return tuple(
        UnknownValueEffect(
            column=column, value=value, shift=shift / rows_in_all, share=with_value / rows_in_all,
            is_key=column in served.key_columns,
        )
        for (column, value), (shift, with_value) in sums.items()
    )  # fmt: skip


def _iter_altered(
    rows: pl.DataFrame, columns: tuple[Column, ...], code_columns: frozenset[str]
) -> Iterator[tuple[str, Value, pl.DataFrame]]:
    for column in columns:
        name, kind = column.name, rows.schema[column.name]
        yield name, "missing", rows.with_columns(pl.lit(None, kind).alias(name))
        unseen: Any = {pl.String(): _UNSEEN_TEXT, pl.Int64(): _UNSEEN_INTEGER}.get(kind)
        if unseen is not None and name in code_columns:
            yield name, "unseen", rows.with_columns(pl.lit(unseen, kind).alias(name))
