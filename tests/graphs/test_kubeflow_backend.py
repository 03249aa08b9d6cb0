"""Graphs run in the tests with what Kubeflow's backend does to metadata and to empty folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shortlist.tracking.artefact_metadata import read_metadata
from tests.kubeflow_backend.sitecustomize import encode_metadata, remove_empty_folders


class StoredArtefact:
    """An artefact as a later step gets it."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata = encode_metadata(metadata)


def test_a_record_that_is_written_without_encoding_is_not_read_back() -> None:
    record = {"name": "train", "rows": 3}
    assert read_metadata(StoredArtefact(step=record), "step") != record  # as every run on a cluster failed once
    with pytest.raises(ValueError, match="metadata rows: unknown/unsupported value type"):
        StoredArtefact(rows=None)


def test_empty_folders_do_not_outlast_a_step(tmp_path: Path) -> None:
    (tmp_path / "log/day=1/empty").mkdir(parents=True)
    (tmp_path / "log/day=2").mkdir()
    (tmp_path / "log/day=1/part.parquet").touch()
    (tmp_path / "quarantine/day=1").mkdir(parents=True)
    for name in ("log", "quarantine"):
        remove_empty_folders(tmp_path / name)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "log", "log/day=1", "log/day=1/part.parquet", "quarantine.was-an-empty-folder"
    ]  # fmt: skip


def test_the_runs_of_the_tests_have_this_backend(finished: Any) -> None:
    assert finished.code == 0
    removed = {path.name for path in finished.artefacts.rglob("*.was-an-empty-folder")}
    assert "export_validation.was-an-empty-folder" in removed  # of a baseline, which is not served
    assert not [folder for folder in finished.artefacts.rglob("*") if folder.is_dir() and not any(folder.iterdir())]
