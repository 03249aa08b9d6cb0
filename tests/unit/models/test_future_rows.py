"""Rows from `until` on, planted anywhere in a log: they change no feature, table or model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
import yaml

from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.gates import Gates
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import folder_digest, sha256
from shortlist.storage.tables import DayTable
from shortlist.training.train import train

ROOT = Path(__file__).parents[3]
FIRST = 1_760_054_400  # 2025-10-10T00:00:00Z
DAYS, ROWS = 5, 4_000
UNTIL = datetime.fromtimestamp(FIRST, UTC) + timedelta(days=DAYS)
PLANTED_USER, PLANTED_ITEM = 7_777, 8_888
HEADER = "user_id,item_id,price,clicked,time"


class RunFolder(NamedTuple):
    """Folder, log and feature table of a run, and its models."""

    folder: Path
    log: DayTable
    table: DayTable


def clicks() -> list[str]:
    random.seed(3)
    lines = []
    for number in range(ROWS):
        item = random.randrange(40)
        clicked = int(random.random() < 0.1 + 0.5 * (item % 4 == 0))
        lines.append(f"{random.randrange(200)},{item},{item * 1.5},{clicked},{FIRST + number * 86_400 * DAYS // ROWS}")
    return lines


def with_the_future(lines: Sequence[str]) -> list[str]:
    """A row of the next midnight and one of the next year among those of the second day, and a whole day at the end."""
    end = FIRST + DAYS * 86_400
    early = [f"{PLANTED_USER},{PLANTED_ITEM},1e6,1,{end}", f"{PLANTED_USER},3,1e6,1,{end + 365 * 86_400}"]
    users = range(1_000)
    day = [f"{user},{PLANTED_ITEM},{user},{int(user % 4 == 0)},{end + 80 * user}" for user in users]
    return [*lines[:1_000], *early, *lines[1_000:], *day]


def declared() -> Spec:
    raw = yaml.safe_load((ROOT / "tests/specs/valid/minimal.yaml").read_text())
    raw["data"]["rules"] = {"max_quarantined_share": 0.0}
    raw["features"]["columns"] += [
        {"kind": "numeric", "each": "price", "suffix": "std", "standardise": True},
        {"kind": "vocabulary", "each": ["user_id", "item_id"], "min_rows": 2},
        {"kind": "count", "key": "user_id", "name": "user_seen"},
    ]
    raw["models"] = {
        "xgboost": {"kind": "xgboost", "features": ["*"], "rounds": 10, "refit": True},
        "dlrm": {"kind": "dlrm", "features": ["*"], "epochs": 1, "embedding_dim": 4, "bottom_mlp": [8], "top_mlp": [8]},
    }
    return parse_spec(yaml.safe_dump(raw))


def made_of(lines: Sequence[str], folder: Path, until: datetime | None) -> RunFolder:
    spec = declared()
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    ingest(spec.data, folder, folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, UNTIL, until)
    sections = DeclaredSections(spec.data, spec.features, Gates())
    fit(*sections, spec.runtime, folder / "log", folder / "fitted")
    table = build_table(*sections, spec.runtime, folder / "log", folder / "fitted", folder / "table")
    for kind in ("xgboost", "dlrm"):
        train(kind, spec.models[kind], table, spec.runtime, folder / kind, folder / f"{kind}_scores")
    return RunFolder(folder, DayTable.open(folder / "log", Files.LOG), table)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on a log with rows after `until`."""
    return made_of(with_the_future(clicks()), tmp_path_factory.mktemp("logs") / "cut", UNTIL)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on a log that ends at `until`."""
    return made_of(clicks(), tmp_path_factory.mktemp("logs") / "alone", None)


def test_no_day_and_no_row_of_the_future_goes_beyond_validation(cut: RunFolder) -> None:
    days = [date(2025, 10, 10) + timedelta(days=number) for number in range(DAYS)]
    for table in (cut.log, cut.table):
        assert [part.day for part in table.days] == days
        assert table.rows == ROWS
        assert table.scan().select(pl.col("event_time").max()).collect().item() < UNTIL
    assert cut.table.notes["split"]["test"] == [str(days[-1])]
    assert cut.log.notes["by_rule"] == {"future": 1_002}


def test_statistics_vocabularies_and_views_are_those_of_the_log_without_a_future(
    cut: RunFolder, alone: RunFolder
) -> None:
    assert folder_digest(cut.folder / "fitted") == folder_digest(alone.folder / "fitted")
    for file in (cut.folder / "fitted").rglob("*.parquet"):
        keys = pl.read_parquet(file, hive_partitioning=False).select(pl.col("^(user_id|item_id|value)$"))
        assert not {PLANTED_USER, PLANTED_ITEM} & {value for column in keys for value in column}, file


def test_the_table_is_that_of_the_log_without_a_future(cut: RunFolder, alone: RunFolder) -> None:
    numbered = "impression_id"  # the place in the file, where rows of the future were planted between
    rows_of_cut, rows_alone = (run_folder.table.scan().drop(numbered).collect() for run_folder in (cut, alone))
    assert rows_of_cut.equals(rows_alone)
    assert cut.table.notes == alone.table.notes


@pytest.mark.parametrize(("kind", "weights"), [("xgboost", "model.ubj"), ("dlrm", "weights.safetensors")])
def test_the_models_are_those_of_the_log_without_a_future(
    kind: str, weights: str, cut: RunFolder, alone: RunFolder
) -> None:
    assert sha256(cut.folder / kind / weights) == sha256(alone.folder / kind / weights)
    scores_of_cut, scores_alone = (
        pl.read_parquet(run_folder.folder / f"{kind}_scores" / Files.SCORES) for run_folder in (cut, alone)
    )
    assert scores_of_cut.drop("impression_id").equals(scores_alone.drop("impression_id"))


def test_the_planted_rows_would_have_been_learnt_without_a_limit(tmp_path: Path, cut: RunFolder) -> None:
    lines = [line for line in with_the_future(clicks()) if int(line.split(",")[-1]) < FIRST + 300 * 86_400]
    spec = declared()
    (tmp_path / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    ingest(spec.data, tmp_path, tmp_path / "raw", spec.runtime)
    log = validate(spec.data, tmp_path / "raw", tmp_path / "log", tmp_path / "quarantine", spec.runtime, UNTIL)
    fit(*DeclaredSections(spec.data, spec.features, Gates()), spec.runtime, tmp_path / "log", tmp_path / "fitted")
    assert log.rows == ROWS + 1_001
    items = pl.read_parquet(tmp_path / "fitted/views/by_item_id.parquet")["item_id"]
    assert PLANTED_ITEM in items.to_list()
