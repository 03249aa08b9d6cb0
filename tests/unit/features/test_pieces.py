"""Counts and tables from pieces of files, several at once, equal those from whole files."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
import yaml
from polars.testing import assert_frame_equal

from benchmarks.criteo import write_tsv
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable, iter_row_groups

SPEC = Path(__file__).parents[3] / "pipelines" / "specs" / "criteo.yaml"
ROWS, PIECE = 6_000, 97
RARE = 3
"""Rows that a value needs to get an id."""


def criteo(folder: Path) -> Spec:
    """Return the Criteo spec, whose rows have no user and no item and look up nothing; write its log to the folder."""
    raw = yaml.safe_load(SPEC.read_text())
    columns = {
        feature["kind"]: feature
        for feature in raw["features"]["columns"]
        if feature["kind"] in ("numeric", "vocabulary")
    }
    columns["vocabulary"]["min_rows"] = RARE
    raw["features"]["columns"] = [*columns.values()]
    raw["models"] = {"dlrm": raw["models"]["dlrm"]}
    spec = parse_spec(yaml.safe_dump(raw))
    write_tsv(folder / "log.tsv", ROWS)
    ingest(spec.data, folder / "log.tsv", folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "whole", folder / "quarantine", spec.runtime, datetime.now(UTC))
    return spec


def cut(log: Path, out: Path) -> None:
    """Write the same log in files of many row groups."""
    shutil.copytree(log, out)
    for path in DayTable.open(out, Files.LOG).paths():
        rows = pl.read_parquet(path, hive_partitioning=False)
        path.unlink()  # it may be linked
        rows.write_parquet(path, row_group_size=PIECE)


@pytest.mark.parametrize("min_rows", [1, 1 << 40], ids=["compiled", "by Polars and pandas"])
def test_features_of_pieces_equal_those_of_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_rows: int
) -> None:
    for module, name in (
        ("counts.vocabulary", "COMPILED_MIN_ROWS"),
        ("values.lookup_table", "COMPILED_MIN_ROWS"),
        ("counts.integer_count", "COMPILED_MIN_VALUES"),
    ):
        monkeypatch.setattr(f"shortlist.features.{module}.{name}", min_rows)
    spec = criteo(tmp_path)
    cut(tmp_path / "whole", tmp_path / "cut")
    assert len(list(iter_row_groups(DayTable.open(tmp_path / "cut", Files.LOG).paths()[0]))) > 5
    for log in ("whole", "cut"):
        declared = spec.data, spec.features, spec.gates, spec.runtime
        fit(*declared, tmp_path / log, tmp_path / f"{log}-fitted")
        build_table(*declared, tmp_path / log, tmp_path / f"{log}-fitted", tmp_path / f"{log}-table")
    for folder_name in ("fitted", "table"):
        files = sorted(
            path.relative_to(tmp_path / f"cut-{folder_name}")
            for path in (tmp_path / f"cut-{folder_name}").rglob("*.parquet")
        )
        assert len(files) > 5
        for file in files:
            first_file, second_file = (
                pl.read_parquet(tmp_path / f"{log}-{folder_name}" / file) for log in ("whole", "cut")
            )
            assert_frame_equal(first_file, second_file, check_exact=True)
