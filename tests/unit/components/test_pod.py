"""A pod runs its steps, and runs a step again while a store cannot be reached."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from components.pod import RETRIES_VARIABLE, main, run_with_retries

STEPS = """
from pathlib import Path
from kfp import dsl
from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.tracking.steps import step

def write(attempts: str, failures: int, error: str, table: dsl.Output[dsl.Dataset]) -> int:
    with step("write"):
        done = Path(attempts)
        number = len(done.read_text()) if done.exists() else 0
        done.write_text("x" * (number + 1))
        folder = Path(table.path)
        folder.mkdir()
        if number < failures:
            (folder / "part").write_text("half")
            kind = StoreUnavailableError if error == "store" else ShortlistError
            raise kind("PostgreSQL at stores:5432 is away")
        (folder / "whole").write_text("all")
    return number
"""


@pytest.fixture
def executor_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "steps_of_a_test.py").write_text(STEPS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    table = {"name": "table", "type": {"schemaTitle": "system.Dataset"}, "uri": str(tmp_path / "table"), "metadata": {}}
    return {
        "inputs": {"parameterValues": {"attempts": str(tmp_path / "attempts"), "failures": 1, "error": "store"}},
        "outputs": {
            "parameters": {"Output": {"outputFile": str(tmp_path / "number")}},
            "artifacts": {"table": {"artifacts": [table]}},
            "outputFile": str(tmp_path / "output.json"),
        },
    }


def attempts(folder: Path) -> int:
    return len((folder / "attempts").read_text())


def test_a_step_runs_again_while_a_store_cannot_be_reached(
    executor_input: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(RETRIES_VARIABLE, "2")
    monkeypatch.setattr("components.pod.run_with_retries", partial(run_with_retries, wait_seconds=0.01))
    assert main(["steps_of_a_test:write", "--executor_input", json.dumps(executor_input)]) == 0
    assert attempts(tmp_path) == 2
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["whole"]  # nothing is left of the first attempt
    assert json.loads((tmp_path / "output.json").read_text())["parameterValues"] == {"Output": 1}
    assert (
        "PostgreSQL at stores:5432 is away\nA store cannot be reached; the step is run again" in capfd.readouterr().err
    )


def test_a_step_runs_no_more_often_than_declared(
    executor_input: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETRIES_VARIABLE, "0")
    assert run_with_retries("steps_of_a_test:write", executor_input, wait_seconds=0.01) == os.EX_TEMPFAIL
    assert attempts(tmp_path) == 1


def test_a_mistake_of_the_user_is_not_retried(
    executor_input: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RETRIES_VARIABLE, "2")
    executor_input["inputs"]["parameterValues"]["error"] = "mistake"
    assert run_with_retries("steps_of_a_test:write", executor_input, wait_seconds=0.01) == 1
    assert attempts(tmp_path) == 1
