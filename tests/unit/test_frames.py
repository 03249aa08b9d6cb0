"""The declared engine runs the query, or the user is told why it cannot."""

from __future__ import annotations

from importlib.util import find_spec

import polars as pl
import pytest

from shortlist.frames import EngineError, collect, resolve


def test_a_query_runs_on_the_cpu() -> None:
    assert collect(pl.LazyFrame({"a": [1, 2]}).select(pl.col("a").sum()), "cpu").item() == 3


@pytest.mark.skipif(find_spec("cudf_polars") is not None, reason="cudf-polars is installed: a GPU may be used")
def test_a_gpu_that_is_not_there_is_never_replaced_in_silence() -> None:
    with pytest.raises(EngineError, match=r"engine is gpu, but the package cudf-polars is not installed.*engine: cpu"):
        resolve("gpu")
    assert resolve("auto") == "cpu"
