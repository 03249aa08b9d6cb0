"""The commands for a cluster: their output and exit codes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kfp_server import Fault, KubeflowServer

from shortlist.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    changes: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Return the command line: exit code, output, errors."""
    runs = tmp_path_factory.mktemp("runs")

    def shortlist(command: str, *options: str, schedule: dict[str, str] | None = None) -> tuple[int, str, str]:
        sets = [part for change in changes(schedule) for part in ("--set", change)]
        monkeypatch.setattr(sys, "argv", ["shortlist", command, "demo", *sets, "--runs", str(runs), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return shortlist


def test_submit_starts_once(run: Run, server: KubeflowServer) -> None:
    code, output, wrong = run("submit", "--host", server.url)
    assert (code, wrong) == (0, "")
    assert output.startswith("started run demo-training-")
    assert f"{server.url}/#/runs/details/{server.stored['runs'][0]['run_id']}" in output
    assert run("submit", "--host", server.url)[1].startswith("already started: run demo-training-")
    assert len(server.stored["runs"]) == 1


def test_a_dry_run_sends_no_request(run: Run, server: KubeflowServer) -> None:
    code, output, _ = run("submit", "--host", server.url, "--dry-run")
    assert code == 0
    assert output.startswith("would start run demo-training-")
    assert not server.requested
    code, output, _ = run("schedule", "--host", server.url, "--dry-run", schedule={"watch": "0 * * * *"})
    assert (code, output) == (0, "new: monitoring at '0 * * * *' UTC\n")
    assert not server.changes


def test_schedule_prints_its_changes(run: Run, server: KubeflowServer) -> None:
    crons = {"watch": "0 * * * *", "retrain": "0 3 * * 0"}
    code, output, wrong = run("schedule", "--host", server.url, schedule=crons)
    assert (code, wrong) == (0, "")
    assert output.splitlines() == ["new: scheduled-retraining at '0 3 * * 0' UTC", "new: monitoring at '0 * * * *' UTC"]
    assert run("schedule", "--host", server.url, schedule={})[1].count("no longer declared") == 2


def test_a_refusal_is_one_message_and_exit_code_2(run: Run, server: KubeflowServer) -> None:
    server.faults.append(Fault(".*create_run", status=403, message="not authorized", times=9))
    code, output, wrong = run("submit", "--host", server.url)
    assert (code, output) == (2, "")
    assert wrong == f"{server.url} answers 403: the token's owner may not do this: not authorized\n"


@pytest.mark.parametrize("command", ["submit", "schedule", "backfill"])
def test_without_the_packages_of_a_cluster_a_command_is_one_sentence(
    run: Run, server: KubeflowServer, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "kfp.kubernetes" else real(name, *more)
    )
    days = ("2026-03-01", "2026-03-02") if command == "backfill" else ()
    code, output, wrong = run(command, "--host", server.url, *days)
    assert (code, output) == (2, "")
    assert wrong.startswith("the packages of a cluster are not installed (no kfp-kubernetes); the same command by make")


def test_a_missing_host_is_an_error(run: Run) -> None:
    assert run("submit") == (
        2,
        "",
        "HOST: name the address of Kubeflow Pipelines, e.g. HOST=http://127.0.0.1:8888 after a port-forward\n",
    )


def test_images_needs_something_that_builds(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["shortlist", "images"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no builder of container images works here" in capfd.readouterr().err
