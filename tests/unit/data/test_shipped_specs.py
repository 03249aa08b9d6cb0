"""The data sections of the shipped specs, on the logs they are written for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.spec.data import Data
from shortlist.spec.load import load_spec

ROOT = Path(__file__).parents[3]
KUAIRAND = ROOT / ".." / "shared" / "data" / "kuairand"
Judge = Callable[..., Any]


def load_data(name: str) -> Data:
    return load_spec(ROOT / "pipelines" / "specs" / f"{name}.yaml").data


@pytest.mark.skipif(not KUAIRAND.is_dir(), reason="the KuaiRand files are not beside the repository")
def test_kuairand_is_valid_except_for_duplicates(judge: Judge) -> None:
    rows, quarantined, table = judge(load_data("kuairand"), KUAIRAND, chunk_rows=250_000)
    assert table.notes["raw_rows"] == 198_895 == rows.height + quarantined.height
    assert table.notes["by_rule"]["duplicate_row"] == 4_931  # 2.5 %
    assert set(table.notes["by_rule"]) <= {"duplicate_row", "clock"}  # the first 141 rows are of the evening before
    assert {name: side["valid_rows"] for name, side in table.notes["side"].items()} == {
        "users": 27_285,
        "videos": 7_583,
        "histories": 26_469,
    }
    assert table.positives / table.rows == pytest.approx(0.449, abs=0.001)
    videos = pl.read_parquet(table.folder / "side" / "videos.parquet")
    assert videos.filter(video_id=5)["tag"].to_list() == [[20, 43]]


def test_a_log_in_the_criteo_layout_is_valid(tmp_path: Path, judge: Judge) -> None:
    random = np.random.default_rng(3)
    labels = random.random(3_000) < 0.25
    counts = random.poisson(5, (3_000, 13))
    codes = random.integers(0, 2**32, (3_000, 26))
    lines = [
        "\t".join([str(int(label)), *map(str, row_counts), *(f"{code:08x}" for code in row_codes)])
        for label, row_counts, row_codes in zip(labels, counts, codes, strict=True)
    ]
    lines[5] = lines[5].replace(f"{codes[5, 0]:08x}", "")
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    rows, quarantined, table = judge(load_data("criteo"), tmp_path / "train.txt")
    assert quarantined.is_empty()
    assert rows["label"].to_list() == labels.astype(int).tolist()
    assert rows["C26"].to_list() == codes[:, 25].tolist()
    assert rows["C1"][5] is None
    assert [part.rows for part in table.days] == [429, 429, 428, 429, 428, 429, 428]  # 3 000 rows cut into 7 days
