"""The files that a cluster gets are complete, reproducible, and valid for Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from crd_schemas import problems
from google.protobuf import json_format
from kfp.compiler.compiler_utils import KubernetesManifestOptions
from kfp.compiler.pipeline_spec_builder import write_pipeline_spec_to_file
from kfp.pipeline_spec import pipeline_spec_pb2

from shortlist.contracts import ShortlistError
from shortlist.kubeflow.cluster_compile import GRAPHS, CompiledGraphs, check_variables_set
from shortlist.spec.load import load_spec
from shortlist.spec.serving import PredictionLog, Serving
from shortlist.spec.spec import Spec

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example/shortlist-pipeline@sha256:" + "0123456789abcdef" * 4
CLUSTER = {
    "namespace": "team-a",
    "images": {"pipeline": IMAGE, "gpu": IMAGE},
    "tasks": {"train_dlrm": {"gpus": 1, "cpu": "8", "memory": "32Gi"}},
    "secrets": [
        {
            "name": "shortlist-stores",
            "variables": {
                "SHORTLIST_REDIS": "redis",
                "MLFLOW_TRACKING_URI": "mlflow",
                "SHORTLIST_DATABASE": "postgres",
            },
        }
    ],
}
RUNTIME = {"profile": "cluster", "objects": {"kind": "bucket", "url": "s3://models/shortlist"}, "cluster": CLUSTER}


def spec_with(**cluster: Any) -> Spec:
    runtime = {**RUNTIME, "cluster": {**CLUSTER, **cluster}}
    return load_spec(ROOT / "pipelines/specs/demo.yaml", [f"runtime={json.dumps(runtime)}"])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledGraphs:
    return CompiledGraphs.compile(spec_with(), tmp_path_factory.mktemp("compiled"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.load_all(path.read_text(), yaml.CSafeLoader))


@pytest.mark.long
def test_steps_for_which_nothing_is_declared_are_in_no_graph(compiled: CompiledGraphs) -> None:
    slates = {"exec-build-retrieval", "exec-build-release", "exec-evaluate-slates"}
    ranking = spec_with().model_copy(update=dict.fromkeys(("retrieval", "filters", "ordering")))
    less = CompiledGraphs.compile(ranking, compiled.folder.parent)
    for graph in ("training", "retraining", "monitoring", "scheduled-retraining"):
        assert not {*slates, "exec-train-ensembles"} & set(executors_of(less.path(graph)))
        assert slates <= set(executors_of(compiled.path(graph)))
        assert "exec-train-ensembles" not in executors_of(compiled.path(graph))


def executors_of(path: Path) -> dict[str, Any]:
    executors: dict[str, Any] = documents(path)[0]["deploymentSpec"]["executors"]
    return executors


@pytest.mark.parametrize("graph", GRAPHS)
def test_each_graph_is_a_file_that_kubeflow_loads(compiled: CompiledGraphs, graph: Any) -> None:
    from kfp import components

    loaded = components.load_component_from_file(str(compiled.path(graph)))
    assert loaded.name == f"demo-{graph}"
    spec, platform = documents(compiled.path(graph))
    executors = spec["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} == {IMAGE}
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert set(pods) == set(executors)
    assert all(pod["secretAsEnv"][0]["secretName"] == "shortlist-stores" for pod in pods.values())
    assert platform["platforms"]["kubernetes"]["pipelineConfig"] == {"resourceTtlOnCompletion": 72 * 3_600}


def test_only_graphs_started_by_a_person_use_the_cache(compiled: CompiledGraphs) -> None:
    def cached(graph: Any) -> set[str]:
        spec, _ = documents(compiled.path(graph))
        dags = [spec["root"], *spec["components"].values()]
        tasks = {n: t for dag in dags for n, t in dag.get("dag", {}).get("tasks", {}).items()}
        runs = {n: t for n, t in tasks.items() if "executorLabel" in spec["components"][t["componentRef"]["name"]]}
        return {name for name, task in runs.items() if task.get("cachingOptions", {}).get("enableCache")}

    assert "ingest" in cached("training")
    assert cached("retraining") == cached("monitoring") == set()


@pytest.mark.long
def test_the_same_gives_the_same_and_anything_else_another_version(compiled: CompiledGraphs, tmp_path: Path) -> None:
    recompiled = CompiledGraphs.compile(spec_with(), tmp_path)
    assert recompiled.digest == compiled.digest
    for graph in GRAPHS:
        assert recompiled.path(graph).read_bytes() == compiled.path(graph).read_bytes()
    text_before = recompiled.path("training").stat().st_mtime_ns
    assert CompiledGraphs.compile(spec_with(), tmp_path).path("training").stat().st_mtime_ns == text_before
    other_image = {"pipeline": IMAGE[:-1] + "0", "gpu": IMAGE}
    changed_specs = [
        spec_with(ttl_hours=1),
        spec_with(images=other_image),
        spec_with(tasks={"evaluate_gates": {"cpu": "2"}}),
    ]
    digests = {CompiledGraphs.compile(changed_spec, tmp_path).digest for changed_spec in changed_specs}
    assert len(digests | {compiled.digest}) == 4


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_manifests_are_valid_and_equal_to_the_file(compiled: CompiledGraphs, graph: Any) -> None:
    pipeline, version = documents(compiled.manifest_path(graph))
    for document, kind in ((pipeline, "Pipeline"), (version, "PipelineVersion")):
        assert document["kind"] == kind
        assert problems(document) == []
        assert document["metadata"]["namespace"] == "team-a"
        broken = {**document, "spec": {**document["spec"], "pipelinename": "x"}}
        assert problems(broken)  # the schema does refuse
    assert pipeline["metadata"]["name"] == version["spec"]["pipelineName"] == f"demo-{graph}"
    assert version["metadata"]["name"] == f"demo-{graph}-{compiled.digest}"
    assert [version["spec"]["pipelineSpec"], version["spec"]["platformSpec"]] == documents(compiled.path(graph))


def test_file_and_manifests_equal_those_of_kfps_writer(compiled: CompiledGraphs, tmp_path: Path) -> None:
    plain = documents(compiled.path("refresh"))
    messages = [
        json_format.ParseDict(document, kind())
        for document, kind in zip(plain, (pipeline_spec_pb2.PipelineSpec, pipeline_spec_pb2.PlatformSpec), strict=True)
    ]
    version = compiled.version_name("refresh")
    options = KubernetesManifestOptions(
        pipeline_name="demo-refresh", pipeline_version_name=version, pipeline_version_display_name=version,
        namespace="team-a", include_pipeline_manifest=True,
    )  # fmt: skip
    for written, more in ((compiled.path("refresh"), ()), (compiled.manifest_path("refresh"), (options, True))):
        by_kfp = tmp_path / written.name
        write_pipeline_spec_to_file(messages[0], "Shortlist: refresh of spec 'demo'", messages[1], str(by_kfp), *more)
        assert documents(written) == documents(by_kfp)
        comments = [
            [line for line in path.read_text().splitlines() if line.startswith("#")] for path in (written, by_kfp)
        ]
        assert comments[0] == comments[1]


def test_no_secret_is_written_anywhere(
    compiled: CompiledGraphs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHORTLIST_DATABASE", "postgresql://me:hunter2@host/db")
    for path in CompiledGraphs.compile(spec_with(), tmp_path).folder.rglob("*.yaml"):
        assert "hunter2" not in path.read_text()


def test_an_image_by_tag_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"images\.pipeline: 'team/shortlist:1' has no digest"):
        CompiledGraphs.compile(spec_with(images={"pipeline": "team/shortlist:1"}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_store_whose_address_no_secret_sets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"no secret sets SHORTLIST_REDIS, from which runtime\.online_store reads"):
        CompiledGraphs.compile(spec_with(secrets=[]), tmp_path)


def test_a_sampled_log_has_a_secret_key_or_is_refused() -> None:
    sampled = {"serving": Serving(log=PredictionLog(sampling=0.5))}
    with pytest.raises(ShortlistError, match=r"sets SHORTLIST_SAMPLING_KEY, from which serving\.log\.sampling"):
        check_variables_set(spec_with().model_copy(update=sampled))
    key = {"name": "log", "variables": {"SHORTLIST_SAMPLING_KEY": "key"}}
    check_variables_set(spec_with(secrets=[*CLUSTER["secrets"], key]).model_copy(update=sampled))
