"""A log in an object store: its digest from the listing, and the same table as from a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import DataError, ShortlistError
from shortlist.data.digest import input_digest
from shortlist.data.ingest import ingest
from shortlist.data.reading.remote_input import fetch_input
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects_source import SourceFiles, is_remote

LOG = "label,x\n0,1\n1,2\n"
DATA = Data.model_validate(
    {
        "source": {"kind": "files", "path": "log.csv", "format": "csv"},
        "columns": [
            {"name": "label", "type": "integer", "known": "after"},
            {"name": "x", "type": "number"},
        ],
        "label": "label",
        "clock": {"kind": "row_order"},
    }
)


@pytest.fixture
def upload_log(s3: Any) -> Any:
    client = s3.client()

    def upload(name: str, text: str) -> None:
        client.put_object(Bucket=s3.bucket, Key=f"logs/{name}", Body=text.encode())

    return upload


def test_the_digest_follows_names_and_contents_and_nothing_else(s3: Any, upload_log: Any) -> None:
    url = f"s3://{s3.bucket}/logs"
    upload_log("log.csv", LOG)
    first = input_digest(DATA, url)
    assert input_digest(DATA, url) == input_digest(DATA, url + "/") == first
    upload_log("_SUCCESS", "")
    assert input_digest(DATA, url) == first
    upload_log("log.csv", LOG.replace(",2\n", ",3\n"))  # as long as before
    second = input_digest(DATA, url)
    upload_log("more.csv", LOG)
    assert len({first, second, input_digest(DATA, url)}) == 3


def test_the_table_is_the_one_made_from_a_disk(s3: Any, upload_log: Any, tmp_path: Path) -> None:
    upload_log("log.csv", LOG)
    (tmp_path / "log.csv").write_text(LOG)
    tables = []
    for name, location in (
        ("disk", str(tmp_path)),
        ("folder", f"s3://{s3.bucket}/logs"),
        ("file", f"s3://{s3.bucket}/logs/log.csv"),
    ):
        with fetch_input(location) as files:
            tables.append(ingest(DATA, files, tmp_path / name, Runtime()).scan().collect())
        assert files.exists() == (name == "disk")
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0].height == 2


def test_names_of_any_characters_are_files_and_empty_objects_of_folders_are_none(
    s3: Any, upload_log: Any, tmp_path: Path
) -> None:
    names = ["day=1/a b%20+ü#1.csv", "log.csv"]
    for name in names:
        upload_log(name, LOG)
    upload_log("day=1/", "")  # as a console makes folders
    source = SourceFiles(f"s3://{s3.bucket}/logs")
    assert [file.name for file in source.listing()] == names
    assert [(source.fetch(tmp_path) / name).read_text() for name in names] == [LOG, LOG]


def test_files_that_change_while_they_are_read_are_refused(
    s3: Any, upload_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_log("log.csv", LOG)
    source = SourceFiles(f"s3://{s3.bucket}/logs")
    download = source._download

    def download_and_change(key: str, to: Path) -> None:
        download(key, to)
        upload_log("log.csv", LOG + "1,2\n")

    monkeypatch.setattr(source, "_download", download_and_change)
    with pytest.raises(DataError, match="the files changed while they were read"):
        source.fetch(tmp_path)


def test_a_missing_log_is_named(s3: Any) -> None:
    with pytest.raises(DataError, match=r"logs/nothing: no file is there"):
        input_digest(DATA, f"s3://{s3.bucket}/logs/nothing")
    s3.delete_bucket()
    with pytest.raises(ShortlistError, match=r"there is no bucket .* correct DATA"):
        input_digest(DATA, f"s3://{s3.bucket}/logs")


def test_an_address_of_another_kind_is_refused() -> None:
    assert not is_remote("data/log.csv")
    with pytest.raises(DataError, match=r"https://host/log\.csv: got an address of another kind; wanted s3://"):
        is_remote("https://host/log.csv")
