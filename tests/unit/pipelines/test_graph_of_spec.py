"""A graph has the steps and parameters that its spec needs, and a new step touches its component and its stage."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp import dsl

from pipelines.compile import GRAPHS, GraphName
from pipelines.graph import PipelineBuilder
from pipelines.training import SLATE_PARAMETERS
from shortlist.report.titles import list_graph_steps, step_title
from shortlist.spec.load import canonical_json, parse_spec
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[3]
DEMO = (ROOT / "pipelines/specs/demo.yaml").read_text()
SLATES = {"build_retrieval", "build_release", "evaluate_slates"}
WITH_TRAINING: tuple[GraphName, ...] = ("training", "submitted", "monitoring", "scheduled_retraining")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kfp's own, while it compiles


def spec_of(*, retrieval: bool = True, ensemble: bool = False) -> Spec:
    declared = yaml.safe_load(DEMO)
    if not retrieval:
        for section in ("retrieval", "filters", "ordering"):
            del declared[section]
        del declared["gates"]["custom"]
    if ensemble:
        declared["models"]["both"] = {"kind": "blend", "models": ["xgboost", "dlrm"]}
    return parse_spec(yaml.safe_dump(declared))


def build(name: GraphName, spec: Spec) -> tuple[set[str], dict[str, Any]]:
    """Return the steps of a graph, and its specification as plain data."""
    builder = PipelineBuilder(spec)
    graph = GRAPHS[name](builder)
    return {step for steps in builder.steps.values() for step in steps}, json_format.MessageToDict(graph.pipeline_spec)


def parameters_of(pipeline: dict[str, Any]) -> set[str]:
    return set(pipeline["root"]["inputDefinitions"]["parameters"])


@pytest.mark.parametrize("name", WITH_TRAINING)
def test_a_spec_without_retrieval_has_no_retrieval_steps_and_parameters(name: GraphName) -> None:
    steps, pipeline = build(name, spec_of(retrieval=False))
    steps_with_retrieval, pipeline_with_retrieval = build(name, spec_of())
    assert steps_with_retrieval - steps == SLATES
    assert parameters_of(pipeline_with_retrieval) - parameters_of(pipeline) == set(SLATE_PARAMETERS)


def test_a_refresh_without_retrieval_refreshes_no_candidates() -> None:
    assert build("refresh", spec_of())[0] - build("refresh", spec_of(retrieval=False))[0] == {"refresh_releases"}


def test_ensembles_have_a_step_where_a_model_has_members() -> None:
    assert build("training", spec_of(ensemble=True))[0] - build("training", spec_of())[0] == {"train_ensembles"}


@pytest.mark.parametrize("spec", [spec_of(), spec_of(retrieval=False, ensemble=True)], ids=["demo", "ensemble"])
def test_the_process_that_runs_a_graph_reads_the_same_spec(spec: Spec) -> None:
    assert parse_spec(canonical_json(spec)) == spec


def count_words(data: Any, code: Any, valid_log: Any, words: Any) -> Any:
    """Count the words of a log."""
    return 0


count_words.__annotations__ = {  # Kubeflow reads types, and annotations of this module are texts
    "data": str, "code": str, "valid_log": dsl.Input[dsl.Dataset], "words": dsl.Output[dsl.Dataset], "return": int,
}  # fmt: skip


def test_a_new_step_touches_its_component_and_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module and one call in a stage are all that it takes: title, display and settings follow from its name."""
    import pipelines.training as graph_module

    stage = graph_module._add_feature_steps

    def with_words(graph: PipelineBuilder, baseline: Any, log: Any) -> Any:
        graph.add(count_words, valid_log=log.valid_log)
        return stage(graph, baseline, log)

    monkeypatch.setattr(graph_module, "_add_feature_steps", with_words)
    steps, pipeline = build("training", spec_of())
    assert "count_words" in steps
    task = next(group["dag"]["tasks"]["count-words"] for group in pipeline["components"].values()
                if "count-words" in group.get("dag", {}).get("tasks", {}))  # fmt: skip
    assert task["taskInfo"]["name"] == "Count words"
    assert set(task["inputs"]["parameters"]) == {"data", "code"}  # of the graph, by name
    assert list_graph_steps(["count_words", "ingest"], {}) == ["ingest", "count_words"]
    assert step_title("count_words") == "Count words"


def test_steps_are_functions_of_the_modules_of_stages() -> None:
    steps, pipeline = build("training", spec_of(ensemble=True))
    references = {executor["container"]["args"][0] for executor in pipeline["deploymentSpec"]["executors"].values()}
    modules = {reference.partition(":")[0] for reference in references}
    assert modules == {
        f"components.{stage}" for stage in ("log", "features", "retrieval", "training", "gates", "release", "report")
    }
    assert {reference.partition(":")[2] for reference in references} == steps
    for reference in references:
        module, _, function = reference.partition(":")
        loaded: ModuleType = __import__(module, fromlist=[function])
        assert callable(getattr(loaded, function))
