"""The command that finds a training's bottleneck: its table and its output."""

from __future__ import annotations

import os
import sys
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

from models.embedding.training.diagnosis import Diagnosis
from shortlist.cli import diagnose as diagnose_cli
from shortlist.cli import main
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.spec.load import load_spec
from shortlist.storage.tables import DayTableWriter


def write_table(folder: Path, names: tuple[str, ...], rows: int) -> None:
    days = [date(2026, 1, 5) + timedelta(days=number) for number in range(3)]
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=1_000)
    for day in days:
        label = [row % 2 for row in range(rows)]
        writer.append(pl.DataFrame({Columns.LABEL: label, Columns.DAY: [day] * rows} | dict.fromkeys(names, label)))
    split = {"train": [str(days[0])], "validation": [str(days[1])], "test": [str(days[2])]}
    writer.close({"columns": [{"name": name, "kind": "id", "size": 2} for name in names], "split": split})


def test_the_newest_table_with_the_declared_features_is_used(tmp_path: Path) -> None:
    for age, (name, names) in enumerate((("newer", ("a", "b")), ("older", ("a", "b")), ("other", ("a",)))):
        folder = tmp_path / "cache" / "artefacts" / name / "table"
        write_table(folder, names, rows=4)
        os.utime(folder / Files.TABLE, (2_000_000 - age, 2_000_000 - age))
    assert diagnose_cli.newest_table(tmp_path, ("a", "b"), "demo").folder.parent.name == "newer"
    assert diagnose_cli.newest_table(tmp_path, ("a",), "demo").folder.parent.name == "other"
    with pytest.raises(
        ShortlistError, match=r"no run of 'demo' wrote a feature table .* Run it first: make run SPEC=demo"
    ):
        diagnose_cli.newest_table(tmp_path, ("b", "a"), "demo")


def test_without_a_run_the_error_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["shortlist", "diagnose", "demo", "--runs", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no run of 'demo' wrote a feature table" in capsys.readouterr().err


def test_figures_come_before_the_advice() -> None:
    lines = Diagnosis(wait_ms=30, step_ms=10, constant_ms=9, embeddings_ms=4, network_ms=6).lines
    assert [line.split()[-5:] for line in lines[1:2]] == [["ms", "(75%", "of", "the", "time)"]]
    assert lines[-1].startswith("The loader bounds this training: 75% of the time")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "no declared model can be diagnosed; there is a diagnosis for kind dlrm"),
        ("xgboost", r"models\.xgboost cannot be diagnosed; there is a diagnosis for kind dlrm"),
        ("xgbost", r"--model: no model is called 'xgbost'; did you mean 'xgboost'\?"),
    ],
)
def test_a_model_without_a_diagnosis_is_refused(name: str | None, message: str) -> None:
    trees = load_spec(Path(__file__).parents[3] / "pipelines/specs/drill.yaml")
    with pytest.raises(ShortlistError, match=message):
        diagnose_cli.choose_diagnosis(trees, name)


def test_the_first_model_with_a_diagnosis_is_used() -> None:
    demo = load_spec(Path(__file__).parents[3] / "pipelines/specs/demo.yaml")
    assert diagnose_cli.choose_diagnosis(demo, None)[0] == "dlrm"
