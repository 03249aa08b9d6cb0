"""A log as a file in Criteo's layout: a label, 13 counts, 26 codes."""

from __future__ import annotations

import polars as pl

from benchmarks.criteo_layout import SOURCES, SPECS, Source, in_layout
from shortlist.spec.load import load_spec


def test_rows_become_a_label_counts_and_codes_of_eight_digits() -> None:
    rows = pl.DataFrame(
        {
            "label": [1, 0, 0],
            "seconds": [1.6, None, 3.0],
            "user": [7, 7, None],
            "tags": [["new", "old"], ["new"], []],
        }
    )
    found = in_layout(rows, Source("any", ("seconds",), ("user", "tags")))
    assert found.columns == ["clicked", *(f"I{one}" for one in range(1, 14)), *(f"C{one}" for one in range(1, 27))]
    assert found["clicked"].to_list() == [1, 0, 0]
    assert found["I1"].to_list() == [2, None, 3]
    user, tag = found["C1"].to_list(), found["C2"].to_list()
    assert user[0] == user[1] and len(user[0]) == 8 and int(user[0], 16) >= 0 and user[2] is None
    assert tag[0] == tag[1] and tag[2] is None
    assert found["C3"].null_count() == found["I2"].null_count() == 3


def test_every_source_names_columns_of_its_spec_and_fits_the_layout() -> None:
    for source in SOURCES:
        declared = load_spec(SPECS / f"{source.spec}.yaml").data.by_name
        assert {*source.counts, *source.categories} <= {*declared}
        assert len(source.counts) <= 13 and len(source.categories) <= 26
