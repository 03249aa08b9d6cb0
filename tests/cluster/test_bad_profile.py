"""Errors of a cluster profile are clear messages before a run starts, and never contain a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shortlist.cli.commands import app
from shortlist.storage.objects import open_object_store
from shortlist.storage.records.postgres_server import Server
from shortlist.storage.storage_config import StorageConfig

SECRETS = ("pa55", "secret-of-the-test")


def run(*arguments: str, runs: Path) -> tuple[int, str]:
    """Run the command line in this process; return exit code and all that was said."""
    result = CliRunner().invoke(app, ["run", "demo", *arguments, "--runs", str(runs)])
    return result.exit_code, result.output + str(result.exception or "")


def test_an_unknown_profile_suggests_the_closest_name(tmp_path: Path) -> None:
    _, output = run("--profile", "clutser", runs=tmp_path)
    assert "runtime.profile: " in output and "did you mean 'cluster'? (got 'clutser')" in output


def test_the_cluster_profile_needs_a_bucket(tmp_path: Path) -> None:
    _, output = run("--profile", "cluster", runs=tmp_path)
    assert "objects: the cluster profile needs a bucket, e.g." in output


@pytest.mark.parametrize("url", ["http://models", "s3://Models", "s3://models/"])
def test_an_address_that_is_no_bucket_is_refused(url: str, tmp_path: Path) -> None:
    _, output = run("--profile", "cluster", "--objects", url, runs=tmp_path)
    assert "runtime.objects.bucket.url: " in output and url in output


@pytest.fixture
def servers(postgres: str, redis: str, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (
        ("SHORTLIST_DATABASE", postgres),
        ("MLFLOW_TRACKING_URI", postgres),
        ("SHORTLIST_REDIS", redis),
    ):
        monkeypatch.setenv(name, value)
    return s3


@pytest.mark.parametrize("variable", ["SHORTLIST_DATABASE", "MLFLOW_TRACKING_URI", "SHORTLIST_REDIS"])
def test_a_missing_variable_is_named(
    variable: str, servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable)
    code, output = run("--profile", "cluster", "--objects", servers.url, runs=tmp_path)
    assert code and f"the environment variable {variable} is not set" in output
    assert not [*tmp_path.glob("2*")]  # no run was begun
    assert servers.keys() == []  # and no bucket marked


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "the store at http://127.0.0.1:9 cannot be reached"),
        ("SHORTLIST_DATABASE", "postgresql://me:pa55@127.0.0.1:9/db", "PostgreSQL at 127.0.0.1:9/db"),
        ("SHORTLIST_DATABASE", "postgres", "runtime.database: no record store is known for this address"),
        ("SHORTLIST_REDIS", "127.0.0.1:9,password=pa55", "Redis at 127.0.0.1:9 cannot be reached"),
    ],
)
def test_a_server_that_is_away_is_named_before_the_run_begins(
    variable: str, value: str, message: str, servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server.__init__, "__defaults__", (0.1,))  # its patience
    monkeypatch.setenv(variable, value)
    code, output = run("--profile", "cluster", "--objects", servers.url, runs=tmp_path)
    assert code and message in output
    assert not any(secret in output for secret in SECRETS)
    assert not [*tmp_path.glob("2*")]


def test_a_refused_password_is_nowhere(servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORTLIST_DATABASE", "postgresql://shortlist:wrong-pa55@" + _host("SHORTLIST_DATABASE"))
    code, output = run("--profile", "cluster", "--objects", servers.url, runs=tmp_path)
    assert code and "authentication failed" in output
    assert not any(secret in output for secret in SECRETS)


def test_another_clusters_stores_are_refused_before_the_run_begins(servers: Any, tmp_path: Path) -> None:
    marker = b'{"cluster": "blue", "identity": "1", "objects": "s3://other"}'
    open_object_store(StorageConfig(objects=servers.url)).write("cluster.json", marker)
    code, output = run("--profile", "cluster", "--objects", servers.url, runs=tmp_path)
    assert code and "belongs to the cluster 'blue', and this is 'default'" in output
    assert not [*tmp_path.glob("2*")]


def _host(variable: str) -> str:
    return os.environ[variable].partition("@")[2]
