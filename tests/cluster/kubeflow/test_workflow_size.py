"""The workflow of every graph fits what Argo stores, and one that does not is refused before it is submitted."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.cluster_compile import GRAPHS, CompiledGraphs, GraphName
from shortlist.kubeflow.training_runs import prepare_training, storage_config
from shortlist.kubeflow.workflow_size import MAX_BYTES, estimate_workflow_size
from shortlist.runs.local_training import graph_arguments
from shortlist.spec.load import canonical_json, load_spec
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[3]
WRITTEN_BY_KUBEFLOW = {"pipeline_with_loops": 33_981, "if_else_with_oneof_parameters": 22_988}
"""Bytes of the workflow that Kubeflow's compiler writes for a pipeline, as JSON."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kfp's own, while it compiles


@pytest.mark.parametrize("name", WRITTEN_BY_KUBEFLOW)
def test_a_specification_is_about_as_large_as_the_one_that_kubeflow_writes(name: str) -> None:
    with gzip.open(ROOT / f"tests/cluster/schemas/kfp_{name}.yaml.gz", "rt") as file:
        pipeline = yaml.load(file, yaml.CSafeLoader)
    estimated = estimate_workflow_size(pipeline, {}, {}, ["item"]).specification
    assert estimated == pytest.approx(WRITTEN_BY_KUBEFLOW[name], rel=0.16)


@pytest.fixture(scope="module")
def spec(make_spec: Callable[..., Spec]) -> Spec:
    return make_spec(tasks={})


@pytest.fixture(scope="module")
def compiled(spec: Spec, compile_spec: Callable[[Spec], CompiledGraphs]) -> CompiledGraphs:
    return compile_spec(spec)


@pytest.fixture(scope="module")
def values(spec: Spec) -> dict[str, Any]:
    """Return values of the parameters: the longest sections of the shipped specs."""
    kuairand = load_spec(ROOT / "pipelines/specs/kuairand.yaml")
    longest = {"data": canonical_json(kuairand.data), "features": canonical_json(kuairand.features)}
    return graph_arguments(spec, "", str(storage_config(spec.runtime)), read_later=True) | longest


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_workflow_of_every_graph_leaves_room(
    compiled: CompiledGraphs, values: dict[str, Any], graph: GraphName
) -> None:
    size = compiled.workflow_size(graph, compiled.arguments(graph, values))
    assert 0.03 * MAX_BYTES < size.total < 0.45 * MAX_BYTES
    assert size.pods >= 5


def test_a_run_that_argo_could_not_store_is_refused(compiled: CompiledGraphs, values: dict[str, Any]) -> None:
    many_models = {"models": values["models"] * 40}
    with pytest.raises(ShortlistError, match=r"demo-training: a run has \d+ pods and 160 models, and its"):
        compiled.arguments("training", values | many_models)


def test_a_spec_with_too_many_models_is_not_submitted(changes: Callable[..., list[str]], tmp_path: Path) -> None:
    trees = {"kind": "xgboost", "features": ["user_rate"]}
    models = {f"trees_{number}": trees for number in range(179)} | {"popularity": {"kind": "popularity"}}
    declared = yaml.safe_dump(models, default_flow_style=True, width=100_000)
    spec = load_spec(ROOT / "pipelines/specs/demo.yaml", [*changes(tasks={}), f"models={declared}"])
    with pytest.raises(ShortlistError, match=r"wanted at most \d+ kB, .* Nothing was submitted"):
        prepare_training(spec, "", tmp_path)


def test_a_longer_section_makes_a_larger_workflow(compiled: CompiledGraphs, values: dict[str, Any]) -> None:
    longer = values | {"data": values["data"] + "".join(str(number) for number in range(2_000))}
    sizes = [compiled.workflow_size("refresh", compiled.arguments("refresh", each)) for each in (values, longer)]
    assert sizes[1].total > sizes[0].total + 2_000
