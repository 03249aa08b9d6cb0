"""The submissions and schedules of the acceptance rows, against the stand-in of Kubeflow Pipelines' server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from acceptance import RowFailedError
from acceptance_pipelines import KubeflowPipelines
from kfp_server import KubeflowServer

from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[3]


@pytest.fixture
def pipelines(
    server: KubeflowServer,
    changes: Callable[..., list[str]],
    compile_spec: Callable[[Spec], CompiledGraphs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> KubeflowPipelines:
    def spec_with(change: str) -> Spec:
        return load_spec(ROOT / "pipelines/specs/demo.yaml", [*changes(), *([change] if change else [])])

    compiled = compile_spec(spec_with(""))  # once: a change of the spec makes other arguments, not another graph
    monkeypatch.setattr(CompiledGraphs, "compile", lambda spec, folder: compiled)
    return KubeflowPipelines(KubeflowClient(server.url, "ml"), spec_with, tmp_path, wait_seconds=1.0, look_seconds=0.05)


def ending(server: KubeflowServer, state: str) -> Callable[[str], None]:
    """Return what ends every run before runs are listed, and starts one of each recurring run."""

    def on_operation(name: str) -> None:
        if name != "run_service_list_runs":
            return
        for recurring_run in server.stored["recurring_runs"]:
            fields: dict[str, Any] = {
                name: recurring_run[name] for name in ("experiment_id", "created_at", "display_name")
            }
            ident = recurring_run["recurring_run_id"]
            if ident not in {run.get("recurring_run_id") for run in server.stored["runs"]}:
                server.stored["runs"].append({**fields, "run_id": f"run-{ident}", "recurring_run_id": ident})
        for run in server.stored["runs"]:
            finished_at = datetime.fromisoformat(run["created_at"]) + timedelta(seconds=90)
            run |= {"state": state, "finished_at": finished_at.isoformat()}

    return on_operation


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED"])
def test_a_training_is_waited_for(pipelines: KubeflowPipelines, server: KubeflowServer, state: str) -> None:
    server.on_operation = ending(server, state)
    assert pipelines.train(1) == (state, 90)
    assert pipelines.train(2).state == state
    assert len(pipelines.run_ids()) == 2
    pipelines.clean_up()
    assert [kind for kind in ("runs", "pipelines", "experiments") if server.stored[kind]] == []


def test_a_run_that_does_not_end_is_a_failure(pipelines: KubeflowPipelines) -> None:
    with pytest.raises(RowFailedError, match=r"the end of run demo-training-.*: not within 1 s"):
        pipelines.train(1)


def test_a_scheduled_run_is_waited_for_and_the_schedule_deleted(
    pipelines: KubeflowPipelines, server: KubeflowServer
) -> None:
    with pytest.raises(RowFailedError, match="a run of the schedule: not within 1 s"):
        pipelines.scheduled_runs()
    server.on_operation = ending(server, "RUNNING")
    assert pipelines.scheduled_runs() == 1
    assert server.stored["recurring_runs"] == []
