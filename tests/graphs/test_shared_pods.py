"""A training whose stages share pods ends as one with a pod for every step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.runs.local_training import graph_arguments
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import write_json
from shortlist.system.progress import EVENTS_VARIABLE
from shortlist.tracking.pipeline_run import RUN_VARIABLE

pytestmark = pytest.mark.long  # a whole run
ROOT = Path(__file__).parents[2]
RUN_IN_SHARED_PODS = """
import json, sys
from pathlib import Path
from components.pod import MODULE
from pipelines.compile import GRAPHS
from pipelines.graph import GraphTarget, PipelineBuilder
from shortlist.runs.runner import run_pipeline
from shortlist.runs.step_server import STEP_COMMAND, step_server
from shortlist.spec.load import parse_spec

class SharedPods(GraphTarget):
    command = (*STEP_COMMAND, MODULE)  # without references: kfp.local takes every output that a loop reads for its item

    def shares_pod(self, stage):
        return stage in ("start", "data", "model")  # kfp.local compares no output of `gates` but the first

spec, arguments, root = map(Path, sys.argv[1:])
builder = PipelineBuilder(parse_spec(spec.read_text()), SharedPods())
with step_server():
    run_pipeline(GRAPHS["training"](builder), builder, json.loads(arguments.read_text()), root)
print(json.dumps(list(builder.steps)))
"""


def test_a_training_in_shared_pods_has_the_same_outcome(
    small_spec: dict[str, Any], finished: Any, tmp_path: Path
) -> None:
    spec, runs = parse_spec(yaml.safe_dump(small_spec)), RunsFolder.open(tmp_path / "runs")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(small_spec))
    write_json(tmp_path / "arguments.json", graph_arguments(spec, "", runs.storage_parameter(spec.runtime)))
    completed = subprocess.run(
        [sys.executable, "-c", RUN_IN_SHARED_PODS, "spec.yaml", "arguments.json", "cache"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), EVENTS_VARIABLE: str(tmp_path / "events"), RUN_VARIABLE: "shared"},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout[-3_000:] + completed.stderr[-1_000:]
    pods = json.loads(completed.stdout.splitlines()[-1])
    assert len(pods) == 11 and {"start", "data", "model"} <= set(pods)
    (page,) = tmp_path.glob("cache/artefacts/**/report/summary")
    summary = json.loads(page.read_text())
    assert set(summary["steps"]) == set(finished.summary["steps"])
    assert summary["blessed"] == finished.summary["blessed"]
    for model, numbers in finished.summary["models"].items():
        assert summary["models"][model]["auc"] == pytest.approx(numbers["auc"], abs=1e-6)
