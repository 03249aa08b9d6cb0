"""What the graphs' `stores` parameter says, and that it never says a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from shortlist.contracts import ShortlistError
from shortlist.stores import Stores, without_secret

ON_SERVERS = Stores(cluster="blue", objects="s3://models/a", database_variable="DATABASE", tracking_variable="MLFLOW")


@pytest.mark.parametrize("stores", [Stores(folder=Path("/runs/stores"), epoch="1"), ON_SERVERS])
def test_stores_are_read_as_they_are_written(stores: Stores) -> None:
    assert Stores.parse(str(stores)) == stores


def test_a_laptops_stores_are_a_folder_and_an_epoch() -> None:
    assert str(Stores(folder=Path("/runs/stores"), epoch="1")) == "/runs/stores#1"
    assert Stores.parse("/runs/stores").runs == Path("/runs")


def test_servers_are_named_by_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", "postgresql://me:pa55@host/db")
    assert ON_SERVERS.database_uri == "postgresql://me:pa55@host/db"
    assert "pa55" not in f"{ON_SERVERS} {ON_SERVERS!r}"
    assert ON_SERVERS.runs.name == "blue"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW", raising=False)
    with pytest.raises(ShortlistError, match=r"runtime\.tracking: the environment variable MLFLOW is not set"):
        _ = ON_SERVERS.tracking_uri
    with pytest.raises(ShortlistError, match="'feast' needs a folder, and these stores have none"):
        ON_SERVERS.below("feast")
    with pytest.raises(ShortlistError, match="stores: Extra inputs are not permitted"):
        Stores.parse('{"bucket": "a"}')


@pytest.mark.parametrize(
    "text",
    ["postgresql://me:pa55@host/db is away", "host:1,password=pa55,ssl=true refuses", "http://me:pa55@h: a@b"],
)
def test_secrets_are_taken_out(text: str) -> None:
    assert "pa55" not in without_secret(text)
