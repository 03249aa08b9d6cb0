"""How far scores move where a column of the request is missing, or holds a value that training never saw."""

from __future__ import annotations

from collections import Counter
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
    """Return how scores of test rows change where a column of a request is unknown, for each column the model reads.

    A missing value is null. A value that training never saw is tried in columns that are looked up as codes.

    Args:
        model: The model folder.
        served: Test rows, assembled as a server does.
    """
    session = create_session(model / FOLDER)

    def score(tensors: Tensors, is_compared: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        scores: npt.NDArray[np.float64] = session.run([SCORE], dict(tensors))[0][:, 0][is_compared].astype(np.float64)
        return scores

    usual_scores: list[npt.NDArray[np.float64]] = []
    altered_scores: dict[tuple[str, Value], list[npt.NDArray[np.float64]]] = {}
    missing_rows: Counter[str] = Counter()
    for day, rows, is_compared in served.sample(_MAX_ROWS):
        usual_scores.append(score(served.tensors(rows, day), is_compared))
        for column, value, altered in _iter_altered(rows, served.request_columns, served.code_columns):
            altered_scores.setdefault((column, value), []).append(score(served.tensors(altered, day), is_compared))
            missing_rows[column] += int(rows[column].is_null().to_numpy()[is_compared].sum()) * (value == "missing")
    usual = np.concatenate(usual_scores)
    return tuple(
        UnknownValueEffect(
            column=column,
            value=value,
            shift=float(_log_odds(np.concatenate(parts).mean()) - _log_odds(usual.mean())),
            spread=float((_log_odds(np.concatenate(parts)) - _log_odds(usual)).std()),
            share=missing_rows[column] / usual.size if value == "missing" else 0.0,
            is_key=column in served.key_columns,
        )
        for (column, value), parts in altered_scores.items()
    )


def _log_odds(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    probabilities = np.clip(np.asarray(scores, np.float64), _SMALLEST, 1 - _SMALLEST)
    log_odds: npt.NDArray[np.float64] = np.log(probabilities / (1 - probabilities))
    return log_odds


def _iter_altered(
    rows: pl.DataFrame, columns: tuple[Column, ...], code_columns: frozenset[str]
) -> Iterator[tuple[str, Value, pl.DataFrame]]:
    for column in columns:
        name, kind = column.name, rows.schema[column.name]
        yield name, "missing", rows.with_columns(pl.lit(None, kind).alias(name))
        unseen: Any = {pl.String(): _UNSEEN_TEXT, pl.Int64(): _UNSEEN_INTEGER}.get(kind)
        if unseen is not None and name in code_columns:
            yield name, "unseen", rows.with_columns(pl.lit(unseen, kind).alias(name))
