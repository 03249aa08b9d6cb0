"""Pods of a graph get what `runtime.cluster` declares while the graph is built."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from google.protobuf import json_format

from components.image import ImageReferences
from components.pod import RETRIES_VARIABLE
from pipelines.compile import GRAPHS, GraphName
from pipelines.graph import PipelineBuilder
from shortlist.contracts import ShortlistError
from shortlist.features.fits import fit as fit_module
from shortlist.features.values.columns import IncompatibleFitError
from shortlist.kubeflow.cluster_pods import FEATURE_JOBS, ClusterPods, check_step_names
from shortlist.spec.cluster import Cluster
from shortlist.spec.feature_job import VARIABLE, EngineJob, JobEnvironment
from shortlist.spec.load import load_spec
from shortlist.training import champion as champion_module
from shortlist.training import champion_scores

ROOT = Path(__file__).parents[3]
CPU, GPU = (f"registry/{name}@sha256:{digit * 64}" for name, digit in (("cpu", "a"), ("gpu", "b")))
IMAGES = ImageReferences(pipeline=CPU, gpu=GPU, triton="")
DEMO = load_spec(Path(__file__).parents[3] / "pipelines/specs/demo.yaml")
MODELS = list(DEMO.models)
CLUSTER = {
    "ttl_hours": 2,
    "secrets": [{"name": "stores", "variables": {"SHORTLIST_REDIS": "redis", "SHORTLIST_DATABASE": "postgres"}}],
    "tasks": {
        "default": {"cpu": "500m", "memory": "2Gi", "timeout_minutes": 30, "retries": 1},
        "train_dlrm": {
            "cpu": "8",
            "memory": "64Gi",
            "gpus": 2,
            "timeout_minutes": 600,
            "retries": 3,
            "node_selector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
        },
    },
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kfp's own, while it compiles


def product(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


class Built:
    """A graph of the demo, built for a cluster, as plain data."""

    def __init__(
        self,
        cluster: dict[str, Any],
        name: GraphName = "training",
        *,
        cached: bool = True,
        images: ImageReferences = IMAGES,
        job: EngineJob | None = None,
    ) -> None:
        pods = ClusterPods(Cluster.model_validate(cluster), images, MODELS, job, cached=cached)
        builder = PipelineBuilder(DEMO, pods)
        graph = GRAPHS[name](builder)
        self.spec = json_format.MessageToDict(graph.pipeline_spec)
        self.platform = json_format.MessageToDict(graph.platform_spec)["platforms"]["kubernetes"]
        self.containers = {
            label: executor["container"] for label, executor in self.spec["deploymentSpec"]["executors"].items()
        }
        self.pods = self.platform["deploymentSpec"]["executors"]
        groups = [self.spec["root"], *self.spec["components"].values()]
        self.tasks = {name: task for group in groups for name, task in group.get("dag", {}).get("tasks", {}).items()}

    def pods_of(self, step: str) -> list[str]:
        """Return the labels of the pods that run a step."""
        return [label for label, container in self.containers.items() if f":{step}" in " ".join(container["args"])]


@pytest.fixture(scope="module")
def built() -> Built:
    return Built(CLUSTER)


def test_every_pod_has_its_image_resources_secrets_and_limits(built: Built) -> None:
    (ingest,) = built.pods_of("ingest")
    container, pod = built.containers[ingest], built.pods[ingest]
    assert container["image"] == CPU
    resources = container["resources"]
    assert {resources[f"resource{kind}"] for kind in ("CpuRequest", "CpuLimit")} == {"500m"}
    assert {resources[f"resource{kind}"] for kind in ("MemoryRequest", "MemoryLimit")} == {"2Gi"}
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    threads = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    assert environment == threads | {RETRIES_VARIABLE: "1"}
    assert pod["activeDeadlineSeconds"] == "1800" and pod["imagePullPolicy"] == "IfNotPresent"
    keys = {item["envVar"]: item["secretKey"] for secret in pod["secretAsEnv"] for item in secret["keyToEnv"]}
    assert keys == {"SHORTLIST_REDIS": "redis", "SHORTLIST_DATABASE": "postgres"}
    assert {secret["secretName"] for secret in pod["secretAsEnv"]} == {"stores"}
    assert pod["fieldPathAsEnv"] == [{"name": "KFP_RUN_ID", "fieldPath": "metadata.labels['pipeline/runid']"}]
    assert set(built.pods) == set(built.containers)
    assert built.platform["pipelineConfig"] == {"resourceTtlOnCompletion": 7_200}


def test_the_steps_of_models_get_the_most_that_any_of_them_declares(built: Built) -> None:
    (train,) = built.pods_of("train")
    resources = built.containers[train]["resources"]
    assert (resources["resourceCpuLimit"], resources["resourceMemoryLimit"]) == ("8", "64Gi")
    assert resources["accelerator"] == {
        "type": "nvidia.com/gpu", "count": "2", "resourceType": "nvidia.com/gpu", "resourceCount": "2"
    }  # fmt: skip
    assert built.containers[train]["image"] == GPU
    assert built.pods[train]["nodeSelector"] == {"labels": {"pool": "gpu"}}
    (toleration,) = built.pods[train]["tolerations"]
    assert toleration == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    policy = built.tasks["train"]["retryPolicy"]
    assert (policy["maxRetryCount"], policy["backoffDuration"], policy["backoffMaxDuration"]) == (3, "30s", "600s")
    assert built.tasks["ingest"]["retryPolicy"]["maxRetryCount"] == 1


@pytest.mark.parametrize("shared", [False, True])
def test_steps_that_make_features_mount_the_volume_of_their_jobs(shared: bool) -> None:
    job = EngineJob("ray.io/v1", "RayJob", "KubeRay", "files", 60)
    cluster = {**CLUSTER, "shared_pods": ["features"] if shared else []}
    built = Built(cluster, job=job)
    labels = {label for step in FEATURE_JOBS for label in built.pods_of(step)}
    assert len(labels) == (2 if shared else 3)
    for label, pod in built.pods.items():
        variables = {variable["name"]: variable["value"] for variable in built.containers[label]["env"]}
        assert (VARIABLE in variables) == ("pvcMount" in pod) == (label in labels)
        if label in labels:
            (mount,) = pod["pvcMount"]
            environment = JobEnvironment.model_validate_json(variables[VARIABLE])
            assert (mount["constant"], mount["mountPath"]) == ("files", environment.folder)
            assert (environment.image, environment.task.memory) == (CPU, "2Gi")
            assert environment.cluster == Cluster.model_validate(cluster)
    (table,) = built.pods_of("build_table")
    steps, jobs = (3, 3 + 1) if shared else (1, 1)  # fit_features three times, build_table
    assert built.pods[table]["activeDeadlineSeconds"] == str((steps * 30 + jobs * 60) * 60)
    (champion,) = built.pods_of("score_champion")
    assert built.pods[champion]["activeDeadlineSeconds"] == str((30 + 4 * 60) * 60)


def test_only_the_known_steps_make_features() -> None:
    """Their jobs are counted below; a step that is new here gets no time for its jobs."""
    callers = {}
    for path in (path for folder in ("shortlist", "components", "models", "monitoring") for path in product(folder)):
        tree = ast.parse(path.read_text())
        names = {
            name.name
            for statement in ast.walk(tree)
            if isinstance(statement, ast.ImportFrom)
            and statement.module in ("shortlist.features.fits.fit", "shortlist.features.rows.table")
            for name in statement.names
        }
        if called := names & {"fit", "build_table"}:
            callers[str(path.relative_to(ROOT))] = called
    assert callers == {
        "components/features.py": {"build_table"},
        "shortlist/features/fits/backfill.py": {"fit"},
        "shortlist/training/champion_scores.py": {"fit", "build_table"},
    }
    decorated = {path.stem for path in product("shortlist") if "\n@feature_work(" in path.read_text()}
    assert decorated == {"fit", "table"}


def test_features_are_fitted_at_most_three_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fits = []

    def refuse(*arguments: object) -> None:
        fits.append(arguments)
        if len(arguments) > 6:  # an earlier fit to extend
            raise IncompatibleFitError("another declaration")

    monkeypatch.setattr(fit_module, "fit", refuse)
    fit_module.fit_incrementally(str(tmp_path), DEMO.data, DEMO.features, None, DEMO.runtime, tmp_path, tmp_path)
    assert len(fits) == FEATURE_JOBS["fit_features"]


def test_champion_and_best_model_need_four_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of the two is scored by `score_model`, which fits and builds a table once."""
    scored = []
    monkeypatch.setattr(champion_module, "score_model", lambda *arguments, **_: scored.append(arguments))
    monkeypatch.setattr(champion_module, "best_version", lambda *_: 1)
    monkeypatch.setattr(champion_module, "find_withdrawn_columns", lambda *_: [])
    monkeypatch.setattr(champion_module, "folder_digest", lambda *_: "0" * 16)
    context = MagicMock()
    context.tracker.registry.find.return_value = SimpleNamespace(version=2, name="dlrm", kind="dlrm", folder=tmp_path)
    paths = tmp_path / "log", tmp_path / "fitted", tmp_path / "out"
    champion_module.score_champion("2", context, MagicMock(), DEMO.runtime, *paths)
    calls = [node.func.id for node in ast.walk(ast.parse(inspect.getsource(champion_scores.score_model)))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
    jobs_of_model = sum(name in ("fit", "build_table") for name in calls)
    assert len(scored) * jobs_of_model == FEATURE_JOBS["score_champion"]


def test_memory_is_compared_in_every_unit() -> None:
    built = Built({"tasks": {"train_dlrm": {"memory": "1Pi"}, "default": {"memory": "9Ti"}}})
    (train,) = built.pods_of("train")
    assert built.containers[train]["resources"]["resourceMemoryLimit"] == "1Pi"


def test_two_variables_of_one_key_are_both_set() -> None:
    secret = {"name": "stores", "variables": {"A": "key", "B": "key"}}
    pod = next(iter(Built({"secrets": [secret]}, "refresh").pods.values()))
    assert {item["envVar"] for mapped in pod["secretAsEnv"] for item in mapped["keyToEnv"]} == {"A", "B"}


def test_every_pod_gets_the_declared_variables() -> None:
    """Without the address of an S3 outside AWS, no step reads or writes a file."""
    built = Built({"variables": {"AWS_ENDPOINT_URL": "https://s3.example.com"}})
    environments = [
        {item["name"]: item["value"] for item in container["env"]} for container in built.containers.values()
    ]
    assert {environment["AWS_ENDPOINT_URL"] for environment in environments} == {"https://s3.example.com"}


@pytest.mark.parametrize(
    "variable", [("AWS_SECRET_ACCESS_KEY", "x"), ("DATABASE", "postgresql://me:pw@host/db"), ("MY_TOKEN", "x")]
)
def test_a_variable_that_holds_a_secret_is_refused(variable: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=rf"{variable[0]}: looks like a secret, .* name it in secrets"):
        Cluster(variables=dict([variable]))


def test_no_step_is_cached_if_caching_is_off() -> None:
    spec = Built({}, cached=False)
    assert not any(task.get("cachingOptions") for name, task in spec.tasks.items() if f"exec-{name}" in spec.containers)
    assert any(task.get("cachingOptions") for task in Built({}).tasks.values())


@pytest.mark.parametrize("name", ["submitted", "monitoring"])
def test_steps_of_a_nested_training_are_configured(name: GraphName) -> None:
    nested = Built({"tasks": {"train": {"cpu": "7"}}}, name)
    assert {container["image"] for container in nested.containers.values()} == {CPU}
    assert set(nested.pods) == set(nested.containers)
    (train,) = nested.pods_of("train")
    assert nested.containers[train]["resources"]["resourceCpuLimit"] == "7"


def test_a_gpu_without_an_image_is_refused() -> None:
    images = ImageReferences(pipeline=CPU, gpu="", triton="")
    with pytest.raises(ShortlistError, match=r"images\.gpu: this spec needs that image and none is configured"):
        Built(CLUSTER, images=images)


def test_cores_that_are_no_number_are_refused() -> None:
    with pytest.raises(ShortlistError, match=r"cpu: got '2Gi', wanted cores such as 2, 0\.5 or 500m"):
        Built({"tasks": {"default": {"cpu": "2Gi"}}})


def test_a_step_that_does_not_exist_is_refused() -> None:
    cluster = Cluster.model_validate({"tasks": {"train_dlmr": {}, "validate_export_dlrm": {}}})
    with pytest.raises(ShortlistError, match=r"no step is called 'train_dlmr'; did you mean 'train_dlrm'\?"):
        check_step_names(cluster, ["train", "validate_export"], ["dlrm"])
    check_step_names(Cluster.model_validate(CLUSTER), ["train"], ["dlrm"])


def test_models_are_trained_in_turn_here_and_at_the_same_time_on_a_cluster(built: Built) -> None:
    def limits(spec: dict[str, Any]) -> list[Any]:
        groups = [spec["root"], *spec["components"].values()]
        tasks = [task for group in groups for task in group.get("dag", {}).get("tasks", {}).values()]
        return [task["iteratorPolicy"] for task in tasks if "iteratorPolicy" in task]

    here = GRAPHS["training"](PipelineBuilder(DEMO))
    assert limits(json_format.MessageToDict(here.pipeline_spec)) == [{"parallelismLimit": 1}]
    assert limits(built.spec) == []


def test_models_with_different_node_selectors_are_refused() -> None:
    tasks = {f"train_{name}": {"node_selector": {"pool": name}} for name in ("dlrm", "xgboost")}
    with pytest.raises(ShortlistError, match=r"steps share one pod template and have different .*node_selector"):
        Built({"tasks": tasks})


def test_only_the_rollout_step_gets_the_rollout_token(built: Built) -> None:
    """Kubeflow has one account for all steps of a run, so the right travels as a file."""
    seeing = {}
    for label, container in built.containers.items():
        names = {variable["name"]: variable["value"] for variable in container["env"]}
        mounts = built.pods[label].get("secretAsVolume", [])
        if mounts or "SHORTLIST_KUBERNETES_TOKEN" in names:
            seeing[label] = (names["SHORTLIST_KUBERNETES_TOKEN"], mounts[0]["secretName"], mounts[0]["mountPath"])
            assert mounts[0]["optional"] is True
    folder = "/var/run/shortlist/rollout"
    assert seeing == {"exec-roll-out": (f"{folder}/token", "shortlist-rollout-token", folder)}
