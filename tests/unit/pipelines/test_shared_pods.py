"""Steps of a stage share a pod where a spec declares it: fewer pods, the same steps, artefacts and caching."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kfp import local
from kfp.local.config import LocalExecutionConfig

from components.image import ImageReferences
from components.pod import MODULE
from pipelines.compile import GRAPHS, GraphName
from pipelines.graph import GraphTarget, PipelineBuilder
from shortlist.kubeflow.cluster_pods import ClusterPods
from shortlist.report.titles import PER_MODEL
from shortlist.spec.cluster import Cluster
from shortlist.spec.load import canonical_json, load_spec
from tests.unit.pipelines.test_compile import cached_producers_of_one_ofs

DEMO = load_spec(Path(__file__).parents[3] / "pipelines/specs/demo.yaml")
IMAGES = ImageReferences(pipeline=f"registry/cpu@sha256:{'a' * 64}", gpu="", triton="")
SECTIONS = {"data", "features", "retrieval", "gates", "serving", "monitoring", "runtime", "cluster"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kfp's own, while it compiles


class BuiltGraph:
    """A graph of the demo, built for a cluster, as plain data."""

    def __init__(self, shared_pods: tuple[str, ...], name: GraphName = "training", **tasks: Any) -> None:
        cluster = Cluster.model_validate({"shared_pods": shared_pods, "tasks": tasks})
        self.builder = PipelineBuilder(DEMO, ClusterPods(cluster, IMAGES, list(DEMO.models), cached=True))
        graph = GRAPHS[name](self.builder)
        self.pipeline = json_format.MessageToDict(graph.pipeline_spec)
        self.platform = json_format.MessageToDict(graph.platform_spec)["platforms"]["kubernetes"]
        groups = [self.pipeline["root"], *self.pipeline["components"].values()]
        tasks = {name: task for group in groups for name, task in group.get("dag", {}).get("tasks", {}).items()}
        self.pods = {name: task for name, task in tasks.items() if name in self.builder.steps}

    def steps(self) -> set[str]:
        """Return the steps of all pods."""
        return {step for steps in self.builder.steps.values() for step in steps}

    def pods_of_a_run(self) -> int:
        """Return the number of pods of a run: one of the two branches of the verdict, and some once per model."""
        per_model = [steps for steps in self.builder.steps.values() if set(steps) & set(PER_MODEL)]
        return len(self.builder.steps) - 1 + len(per_model) * (len(DEMO.models) - 1)

    def artefacts(self) -> list[str]:
        """Return the types of the artefacts of all pods."""
        components = [self.pipeline["components"][task["componentRef"]["name"]] for task in self.pods.values()]
        outputs = [component.get("outputDefinitions", {}).get("artifacts", {}) for component in components]
        return sorted(kind["artifactType"]["schemaTitle"] for each in outputs for kind in each.values())


@pytest.fixture(scope="module")
def shared() -> BuiltGraph:
    return BuiltGraph(DEMO.runtime.cluster.shared_pods)


@pytest.fixture(scope="module")
def separate() -> BuiltGraph:
    return BuiltGraph(())


def test_the_demo_runs_in_half_of_the_pods(shared: BuiltGraph, separate: BuiltGraph) -> None:
    assert separate.pods_of_a_run() == 27
    assert shared.pods_of_a_run() == 11


def test_shared_pods_run_every_step_once_and_put_out_every_artefact(shared: BuiltGraph, separate: BuiltGraph) -> None:
    assert shared.steps() == separate.steps()
    assert sum(map(len, shared.builder.steps.values())) == len(shared.steps())
    assert shared.artefacts() == separate.artefacts()
    assert {name: steps for name, steps in shared.builder.steps.items() if len(steps) > 1} == {
        "start": ("store_sections", "find_champion"),
        "data": (
            *("ingest", "validate", "fit_features", "build_table", "materialize_features"),
            *("build_retrieval", "build_release"),
        ),
        "model": ("train", "validate_export", "evaluate_slates"),
        "gates": ("score_champion", "evaluate_gates", "build_reference_profile"),
    }


def test_a_pod_is_cached_where_all_its_steps_are(shared: BuiltGraph, separate: BuiltGraph) -> None:
    def cached(graph: BuiltGraph) -> set[str]:
        names = [name for name, task in graph.pods.items() if task.get("cachingOptions", {}).get("enableCache")]
        return {step for name in names for step in graph.builder.steps[name]}

    assert cached(shared) == cached(separate)
    assert cached(shared) >= {"ingest", "train", "evaluate_gates"}


def test_no_cached_pod_of_a_cluster_feeds_a_one_of(shared: BuiltGraph, separate: BuiltGraph) -> None:
    for graph in (shared, separate):
        assert "valueFromOneof" in json.dumps(graph.pipeline)
        assert cached_producers_of_one_ofs(graph.pipeline) == set()


def test_the_pod_of_a_model_gets_the_whole_item_of_the_loop(shared: BuiltGraph) -> None:
    declared = shared.pods["model"]["inputs"]["parameters"]["declared"]
    assert declared == {"componentInputParameter": "pipelinechannel--start-Output-loop-item"}


def test_a_shared_pod_has_room_and_time_for_its_steps() -> None:
    ingest, validate = {"memory": "8Gi", "timeout_minutes": 60}, {"cpu": "3", "timeout_minutes": 30}
    graph = BuiltGraph(("log",), "backfill", ingest=ingest, validate=validate)
    container = graph.pipeline["deploymentSpec"]["executors"]["exec-log"]["container"]
    assert container["resources"]["resourceMemoryLimit"] == "8Gi"
    assert container["resources"]["resourceCpuLimit"] == "3"
    assert graph.platform["deploymentSpec"]["executors"]["exec-log"]["activeDeadlineSeconds"] == str(90 * 60)


def test_the_sections_of_a_spec_reach_every_later_step_by_reference(separate: BuiltGraph) -> None:
    readers = {name: task.get("inputs", {}).get("parameters", {}) for name, task in separate.pods.items()}
    sources = {
        (pod, section): parameters[section]
        for pod, parameters in readers.items() if pod not in ("start", "finalize-run")  # the exit handler has no input
        for section in SECTIONS & set(parameters)
    }  # fmt: skip
    assert len(sources) > 30
    # In another group of tasks the reference is an input of the group, which is named after its source.
    assert all("start" in json.dumps(source) for source in sources.values()), sources


STEPS = """
from pathlib import Path
from typing import NamedTuple
from kfp import dsl
from shortlist.tracking.steps import step

def write(data: str, calls: str, table: dsl.Output[dsl.Dataset]) -> int:
    with step("write"):
        with Path(calls).open("a") as file:
            file.write("write ")
        Path(table.path).write_text(data)
        table.metadata["rows"] = len(data)
    return len(data)

def copy(number: int, table: dsl.Input[dsl.Dataset], copied: dsl.Output[dsl.Dataset]) -> str:
    with step("copy"):
        Path(copied.path).write_text(f"{number} {table.metadata['rows']} {Path(table.path).read_text()}")
    return "copied"

def read(first: int, second: str, copied: dsl.Input[dsl.Dataset], calls: str) -> None:
    with step("read"), Path(calls).open("a") as file:
        file.write(f"read {first} {second} {Path(copied.path).read_text()}")
"""


class TargetOfPods(GraphTarget):
    """kfp.local, with pods as a cluster has them."""

    command = ("env", "PROGRAM=kfp.dsl.executor_main", "python3", "-m", MODULE)  # kfp.local looks for this name
    has_references = True

    def shares_pod(self, stage: str) -> bool:
        return True


@pytest.mark.filterwarnings("ignore:Task .* have no effect in the current local runner")
def test_steps_of_a_shared_pod_pass_their_outputs_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by kfp.local: parameters and artefacts within the pod and out of it, sections by reference, and the cache."""
    (tmp_path / "steps_of_a_pod.py").write_text(STEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(LocalExecutionConfig, "instance", None)
    import steps_of_a_pod as steps

    calls, graph = tmp_path / "calls", PipelineBuilder(DEMO, TargetOfPods())

    @graph.pipeline("shared", "Steps that share a pod", ("data", "stores", "code"))
    def pipeline() -> None:
        with graph.stage("start"):
            graph.store_sections()
        with graph.stage("work"):
            written = graph.add(steps.write, calls=str(calls))
            copied = graph.add(steps.copy, number=written["Output"], table=written["table"])
        added = {"first": written["Output"], "second": copied["Output"], "copied": copied["copied"]}
        graph.add(steps.read, cached=False, calls=str(calls), **added)

    folder = {"pipeline_root": str(tmp_path / "root"), "cache_root": str(tmp_path / "cache")}
    local.init(runner=local.SubprocessRunner(use_venv=False), enable_caching=True, **folder)
    data = canonical_json(DEMO.data)
    for _ in range(2):
        pipeline(data=data, stores=f"{tmp_path}#1", code="1")
    read = f"read {len(data)} copied {len(data)} {len(data)} {data}"
    assert calls.read_text() == f"write {read}{read}"  # the second time from the cache
    (stored,) = (tmp_path / "objects/sections").iterdir()
    assert stored.read_text() == data
