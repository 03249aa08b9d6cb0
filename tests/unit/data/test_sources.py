"""Files of a path, and refusals before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import DataError
from shortlist.data.digest import input_digest
from shortlist.data.reading.sources import log_files, side_files
from shortlist.spec.data import Data, FileSource, SideTable

USERS: dict[str, Any] = {
    "name": "users",
    "path": "users.parquet",
    "key": "user_id",
    "columns": [{"name": "user_id", "type": "integer"}],
}
LOG: dict[str, Any] = {
    "columns": [{"name": "click", "type": "integer"}, {"name": "user_id", "type": "integer"}],
    "label": "click",
    "clock": {"kind": "row_order"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("log/b.csv", "log/a.csv.gz", "log/.hidden.csv", "log/_SUCCESS", "users.parquet", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def file_names(source: FileSource, location: Path) -> list[str]:
    return [file.name for file in log_files(source, location)]


def test_a_folder_stands_for_its_visible_files_in_name_order(folder: Path) -> None:
    assert file_names(FileSource(path="log"), folder) == ["log/a.csv.gz", "log/b.csv"]
    assert file_names(FileSource(), folder / "log") == ["a.csv.gz", "b.csv"]


def test_a_glob_stands_for_the_matching_files(folder: Path) -> None:
    assert file_names(FileSource(path="log/*.csv"), folder) == ["log/b.csv"]
    assert file_names(FileSource(), folder / "l*" / "*.csv*") == ["log/a.csv.gz", "log/b.csv"]


def test_a_file_location_overrides_the_declared_path(folder: Path) -> None:
    assert file_names(FileSource(path="elsewhere.csv"), folder / "log" / "b.csv") == ["b.csv"]


def test_side_tables_are_found_beside_the_log(folder: Path) -> None:
    table = SideTable.model_validate(USERS)
    for location in (folder, folder / "notes.md", folder / "n*.md"):
        assert [file.path for file in side_files(table, location)] == [folder / "users.parquet"]


def test_the_format_follows_the_name_unless_declared(folder: Path) -> None:
    assert [file.format for file in log_files(FileSource(path="log"), folder)] == ["csv", "csv"]
    assert log_files(FileSource(path="notes.md", format="tsv"), folder)[0].format == "tsv"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("logs", "no such file or folder; did you mean 'log'"),
        ("log/*.tsv", "no file matches"),
        ("notes.md", r"unknown format '.md'; wanted one of .csv, .tsv"),
        ("empty.csv", "the file is empty"),
        ("items.npz", "a NumPy archive can be a side table, not the log"),
    ],
)
def test_paths_that_cannot_be_a_log_are_refused(folder: Path, path: str, message: str) -> None:
    (folder / "empty.csv").touch()
    (folder / "items.npz").write_text("x")
    with pytest.raises(DataError, match=message):
        log_files(FileSource(path=path), folder)


def test_the_digest_depends_only_on_names_contents_and_side_tables(folder: Path) -> None:
    data = Data.model_validate({**LOG, "source": {"kind": "files", "path": "log"}, "side_tables": [USERS]})
    first = input_digest(data, folder)
    (folder / "notes.md").write_text("other notes")
    assert input_digest(data, folder) == first
    (folder / "users.parquet").write_text("y")
    second = input_digest(data, folder)
    (folder / "log" / "b.csv").rename(folder / "log" / "c.csv")
    assert len({first, second, input_digest(data, folder)}) == 3


def test_a_generated_log_is_digested_by_its_declaration() -> None:
    def digest(seed: int) -> str:
        source = {"kind": "generated", "rows": 1_000, "seed": seed}
        return input_digest(Data.model_validate({**LOG, "source": source}), Path())

    assert digest(1) == digest(1) != digest(2)
