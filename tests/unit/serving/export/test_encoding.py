from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import polars as pl

from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import codes_of
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.signature import (
    NO_CODE,
    NULL_IN_LIST,
    SECOND_OF_DAY,
    WEEKDAY,
    ListInput,
    Signature,
    VectorInput,
)

ROWS = pl.DataFrame(
    {
        "event_time": pl.Series([datetime(2026, 3, 8, 4, 30, 0, 250_000, UTC)] * 2, dtype=pl.Datetime("us", "UTC")),
        "day": [date(1970, 1, 3), None],
        "page": ["", None],
        "number": [-(2**63) + 1, None],
        "words": [["b", None, "a", "c"], None],
        "query": pl.Series([[3.0, 4.0], None], dtype=pl.List(pl.Float32)),
    }
)


def encoded(declared: DeclaredColumns, **places: Any) -> dict[str, np.ndarray]:
    return encode(ROWS, Signature(model="m", kind="k", **places), declared)


def test_the_clock_is_the_wall_clock_of_the_logs_timezone(declared: DeclaredColumns) -> None:
    numbers = encoded(declared, numbers=(SECOND_OF_DAY, WEEKDAY, "event_time"))["numbers"]
    half_past_eleven_pm = 23 * 3600 + 30 * 60 + 0.25  # of Saturday in New York, an hour before summer time begins
    assert numbers[0].tolist() == [half_past_eleven_pm, 5.0, 1_772_944_200_250_000.0]


def test_null_is_nan_or_no_code_or_zeros_or_an_empty_list(declared: DeclaredColumns) -> None:
    tensors = encoded(
        declared, numbers=("day",), codes=("page", "number"),
        lists=(ListInput(tensor="list_0", place="words", longest=3),),
        vectors=(VectorInput(tensor="vector_0", place="query", width=2),),
    )  # fmt: skip
    assert tensors["numbers"][0, 0] == 2.0 and np.isnan(tensors["numbers"][1, 0])
    assert tensors["codes"].tolist() == [[0, -(2**63) + 1], [NO_CODE, NO_CODE]]
    b, a = codes_of(pl.Series(["b", "a"]))
    assert tensors["list_0"].tolist() == [[b, NULL_IN_LIST, a], [NO_CODE] * 3]  # "c" is beyond the longest
    assert tensors["vector_0"].tolist() == [[3.0, 4.0], [0.0, 0.0]]
    assert {name: str(values.dtype) for name, values in tensors.items()} == {
        "numbers": "float64", "codes": "int64", "list_0": "int64", "vector_0": "float32"
    }  # fmt: skip


def test_a_list_without_values_is_one_column_wide(declared: DeclaredColumns) -> None:
    empty = ROWS.with_columns(pl.lit(None, pl.List(pl.String)).alias("words"))
    signature = Signature(model="m", kind="k", lists=(ListInput(tensor="list_0", place="words", longest=None),))
    assert encode(empty, signature, declared)["list_0"].tolist() == [[NO_CODE], [NO_CODE]]
