"""A run whose Triton is killed during the validation, the run after it, and runs after a verdict of a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from shortlist.runs.local_training import NOT_MEASURED, run_locally
from shortlist.spec.load import parse_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

# Loaded by every Python process of the graph. The first load test kills the server that it measures; later ones report
# the latency in the file that the test writes, if there is one.
DISTURBANCE = """
import importlib.abc, os, signal, sys

class Disturb(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "shortlist.serving.validation.validate_export":
            return None
        sys.meta_path.remove(self)
        from shortlist.serving.validation import load_test

        measure = load_test.run_load_test

        def disturbed(triton, *arguments):
            killed = os.environ["KILLED_ONCE"]
            if not os.path.exists(killed):
                open(killed, "w").close()
                os.killpg(triton.pid, signal.SIGKILL)
            measured = measure(triton, *arguments)
            slow = os.environ["SLOW"]
            return measured.model_copy(update={"p99_ms": 9_999.0}) if os.path.exists(slow) else measured

        load_test.run_load_test = disturbed
        return None

sys.meta_path.insert(0, Disturb())
"""


class Run(NamedTuple):
    """A run that ended."""

    code: int
    summary: dict[str, Any]
    printed: str

    @property
    def executed(self) -> set[str]:
        return {name for name, step in self.summary["steps"].items() if not step["cached"]}


def test_only_a_measurement_is_reused(
    small_spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed Triton: no verdict, and the next run measures; a slow moment: held, and the next run measures again."""
    (tmp_path / "sitecustomize.py").write_text(DISTURBANCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    slow = tmp_path / "slow"
    monkeypatch.setenv("SLOW", str(slow))
    spec = small_spec | {"models": {"xgboost": small_spec["models"]["xgboost"]}}

    def run() -> Run:
        code = run_locally(parse_spec(yaml.safe_dump(spec)), None, tmp_path / "runs")
        summary = json.loads((tmp_path / "runs/latest/summary.json").read_text())
        return Run(code, summary, capsys.readouterr().out)

    killed = run()
    assert (tmp_path / "killed").exists()
    assert killed.code == NOT_MEASURED == 3, killed.printed
    assert killed.summary["failed"]["step"] == "validate_export_xgboost"
    words = " ".join(killed.printed.split())  # the terminal breaks lines
    message = "The step validate_export_xgboost could not measure: gates 'parity' and 'infra' are not measured: Triton"
    assert message in words
    assert "The next run measures again, and reuses the finished steps." in words

    slow.touch()
    held = run()
    assert "infra: p99 9999 ms >" in " ".join(held.printed.split())
    assert (held.code, held.summary["blessed"]) == (0, None)
    assert "validate_export_xgboost" in held.executed
    assert not {"ingest", "validate", "fit_features", "build_table", "train_xgboost"} & held.executed

    slow.unlink()
    measured = run()
    assert (measured.code, measured.summary["blessed"]["model"]) == (0, "xgboost")
    assert "validate_export_xgboost" in measured.executed
    assert not {"ingest", "validate", "fit_features", "build_table", "train_xgboost"} & measured.executed
