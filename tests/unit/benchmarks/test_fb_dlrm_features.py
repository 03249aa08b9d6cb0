"""The peer after facebookresearch/dlrm's design does the work that it is timed for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.criteo import write_tsv
from benchmarks.features import schema
from benchmarks.peers.fb_dlrm_features import CATEGORIES, COUNTS, DAYS, main

ROWS = 701
"""Not a multiple of the days."""


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_ids_stand_for_texts_and_counts_are_those_of_the_log(options: tuple[str, ...], tmp_path: Path) -> None:
    log, out = tmp_path / "log.tsv", tmp_path / "out"
    write_tsv(log, ROWS)
    main(str(log), str(out), *options)
    text = pl.read_csv(log, separator="\t", has_header=False, schema=schema())
    with np.load(out / "table.npz") as table:
        assert (table["y"] == text["label"].to_numpy()).all()
        for number in range(COUNTS):
            wanted = text[f"I{number + 1}"].fill_null(0).clip(0)
            assert (table["X_int"][:, number] == wanted.to_numpy()).all()
        for number in range(CATEGORIES):
            pairs = pl.DataFrame({"id": table["X_cat"][:, number], "text": text[f"C{number + 1}"].fill_null("0")})
            pairs = pairs.with_columns(pl.col("text").str.to_integer(base=16))
            once = pairs.unique()
            assert once.height == once["id"].n_unique() == once["text"].n_unique() == table["counts"][number]
    assert len(list(out.glob("day_*_processed.npz"))) == DAYS
