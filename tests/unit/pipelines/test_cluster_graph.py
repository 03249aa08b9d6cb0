"""A graph configured for a cluster equals the graph that Kubeflow's own setters give."""

from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl
from kfp import kubernetes as k8s
from kfp.pipeline_spec import pipeline_spec_pb2 as ir

from components.image import ImageReferences
from pipelines.compile import pipelines
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.cluster_graph import check_step_names, configure_graph, iter_tasks
from shortlist.spec.cluster import Cluster

CPU, GPU = (f"registry/{name}@sha256:{digit * 64}" for name, digit in (("cpu", "a"), ("gpu", "b")))
IMAGES = ImageReferences(pipeline=CPU, gpu=GPU, triton="")
CLUSTER = Cluster.model_validate(
    {
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
)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def work(text: str) -> str:
    return text


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train_dlrm(text: str) -> str:
    return text


def threads(task: Any, cores: str) -> None:
    task.set_env_variable("OMP_NUM_THREADS", cores).set_env_variable("POLARS_MAX_THREADS", cores)
    task.set_env_variable("OMP_WAIT_POLICY", "PASSIVE")


def with_setters() -> Any:
    """Return a graph whose steps were configured one by one by kfp and kfp-kubernetes."""

    @dsl.component(base_image=CPU, install_kfp_package=False)
    def work(text: str) -> str:
        return text

    @dsl.component(base_image=CPU, install_kfp_package=False)
    def train_dlrm(text: str) -> str:
        return text

    @dsl.pipeline(name="g", pipeline_config=dsl.PipelineConfig(ttl_seconds_after_finished=7_200))
    def graph() -> None:
        first = work(text="a").set_cpu_request("500m").set_cpu_limit("500m")
        first.set_memory_request("2Gi").set_memory_limit("2Gi").set_retry(1, "30s", 2.0, "600s")
        threads(first, "1")
        k8s.set_image_pull_policy(k8s.set_timeout(first, 1_800), "IfNotPresent")
        with dsl.ParallelFor(["x", "y"]) as item:
            second = train_dlrm(text=item).set_cpu_request("8").set_cpu_limit("8")
            second.set_memory_request("64Gi").set_memory_limit("64Gi").set_retry(3, "30s", 2.0, "600s")
            second.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2).set_container_image(GPU)
            threads(second, "8")
            k8s.set_image_pull_policy(k8s.set_timeout(second, 36_000), "IfNotPresent")
            k8s.add_node_selector(second, "pool", "gpu")
            k8s.add_toleration(second, "nvidia.com/gpu", "Exists", effect="NoSchedule")
        for task in (first, second):
            k8s.use_field_path_as_env(task, "KFP_RUN_ID", "metadata.labels['pipeline/runid']")
            k8s.use_secret_as_env(task, "stores", {"redis": "SHORTLIST_REDIS", "postgres": "SHORTLIST_DATABASE"})

    return graph


def plain() -> Any:
    @dsl.pipeline(name="g")
    def graph() -> None:
        work(text="a")
        with dsl.ParallelFor(["x", "y"]) as item:
            train_dlrm(text=item)

    return graph


def without_old_fields(spec: dict[str, Any]) -> dict[str, Any]:
    """Drop what the setters also write for servers older than 2.4: the same amounts as numbers."""
    for executor in spec["deploymentSpec"]["executors"].values():
        resources = executor["container"]["resources"]
        for old in ("cpuLimit", "cpuRequest", "memoryLimit", "memoryRequest"):
            del resources[old]
        for old in ("type", "count") if "accelerator" in resources else ():
            del resources["accelerator"][old]
    return spec


def configured(graph: Any, cluster: Cluster = CLUSTER, *, cached: bool = True) -> tuple[Any, Any]:
    spec, platform = ir.PipelineSpec(), ir.PlatformSpec()
    spec.CopyFrom(graph.pipeline_spec)
    platform.CopyFrom(graph.platform_spec)
    configure_graph(spec, platform, cluster, IMAGES, cached=cached)
    return json_format.MessageToDict(spec), json_format.MessageToDict(platform)


def test_a_configured_graph_equals_that_of_kubeflows_setters() -> None:
    spec, platform = configured(plain())
    expected = with_setters()
    assert spec == without_old_fields(json_format.MessageToDict(expected.pipeline_spec))
    assert platform == json_format.MessageToDict(expected.platform_spec)


def test_no_step_is_cached_if_caching_is_off() -> None:
    spec, _ = configured(plain(), cached=False)
    groups = [spec["root"], *(c for c in spec["components"].values() if "dag" in c)]
    steps = [task for group in groups for task in group["dag"]["tasks"].values() if "iterator" not in str(task).lower()]
    assert steps
    assert all(not task.get("cachingOptions") for task in steps)


@pytest.mark.parametrize("name", ["training", "monitoring"])
def test_every_step_of_our_graphs_gets_its_settings(name: str) -> None:
    graph = pipelines()[name]
    spec, platform = configured(
        graph, Cluster.model_validate({"tasks": {"train": {"cpu": "7"}, "check_live_traffic": {"cpu": "3"}}})
    )
    executors = spec["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} == {CPU}
    assert set(platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]) == set(executors)
    cpu = {label: executor["container"]["resources"]["resourceCpuLimit"] for label, executor in executors.items()}
    assert {label for label, limit in cpu.items() if limit == "7"} == {
        label for label in cpu if label.startswith("exec-train") and "ensembles" not in label
    }
    titles = {step.component for step in iter_tasks(graph.pipeline_spec)}
    assert {"train", "ingest", "finalize_run", "roll_out"} <= titles


def test_a_gpu_without_an_image_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"images\.gpu: this spec needs that image and none is configured"):
        configure_graph(
            plain().pipeline_spec,
            ir.PlatformSpec(),
            CLUSTER,
            ImageReferences(pipeline=CPU, gpu="", triton=""),
            cached=True,
        )


def test_cores_that_are_no_number_are_refused() -> None:
    with pytest.raises(ShortlistError, match=r"cpu: got '2Gi', wanted cores such as 2, 0\.5 or 500m"):
        configured(plain(), Cluster.model_validate({"tasks": {"default": {"cpu": "2Gi"}}}))


def test_a_step_that_does_not_exist_is_refused() -> None:
    graphs = {"g": plain().pipeline_spec}
    check_step_names(CLUSTER, graphs)
    with pytest.raises(ShortlistError, match=r"no step is called 'train_dlmr'; did you mean 'train_dlrm'\?"):
        check_step_names(Cluster.model_validate({"tasks": {"train_dlmr": {}}}), graphs)


def of_train(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the container of the step that trains models."""
    spec, platform = ir.PipelineSpec(), ir.PlatformSpec()
    graph = pipelines()["training"]
    spec.CopyFrom(graph.pipeline_spec)
    platform.CopyFrom(graph.platform_spec)
    models = ["trees", "network"]
    configure_graph(spec, platform, Cluster.model_validate({"tasks": cluster}), IMAGES, cached=True, models=models)
    executors = json_format.MessageToDict(spec)["deploymentSpec"]["executors"]
    return {"loops": loops_of(spec), **executors["exec-train"]["container"]}


def loops_of(spec: Any) -> list[Any]:
    tasks = [task for group in (spec.root, *spec.components.values()) for task in group.dag.tasks.values()]
    return [task for task in tasks if task.HasField("iterator_policy")]


def test_the_steps_of_models_get_the_most_that_any_of_them_declares() -> None:
    container = of_train(
        {
            "train": {"cpu": "2", "memory": "8Gi"},
            "train_network": {"cpu": "1500m", "memory": "64Gi", "gpus": 1, "node_selector": {"pool": "gpu"}},
        }
    )
    resources = container["resources"]
    assert (resources["resourceCpuLimit"], resources["resourceMemoryLimit"]) == ("2", "64Gi")
    assert resources["accelerator"]["resourceCount"] == "1"
    assert container["image"] == GPU


def test_models_take_turns_here_and_none_waits_on_a_cluster() -> None:
    assert len(loops_of(pipelines()["training"].pipeline_spec)) == 1
    assert of_train({})["loops"] == []


def test_models_with_different_node_selectors_are_refused() -> None:
    tasks = {f"train_{name}": {"node_selector": {"pool": name}} for name in ("trees", "network")}
    with pytest.raises(
        ShortlistError, match=r"models' steps share one pod template and have different .*node_selector"
    ):
        of_train(tasks)


def test_a_step_of_a_model_that_is_not_declared_is_refused() -> None:
    graphs = {"g": pipelines()["training"].pipeline_spec}
    cluster = Cluster.model_validate({"tasks": {"train_trees": {}, "validate_export_trees": {}}})
    check_step_names(cluster, graphs, ["trees"])
    with pytest.raises(ShortlistError, match=r"no step is called 'train_trees'; did you mean 'train_tree'\?"):
        check_step_names(cluster, graphs, ["tree"])


def test_only_the_rollout_step_gets_the_rollout_token() -> None:
    """Kubeflow has one account for all steps of a run, so the right travels as a file."""
    graph = pipelines()["training"]
    spec, platform = ir.PipelineSpec(), ir.PlatformSpec()
    spec.CopyFrom(graph.pipeline_spec)
    platform.CopyFrom(graph.platform_spec)
    configure_graph(spec, platform, CLUSTER, IMAGES, cached=True)
    executors = json_format.MessageToDict(spec.deployment_spec)["executors"]
    platform_executors = platform.platforms["kubernetes"].deployment_spec.executors
    seeing = {}
    for step in iter_tasks(spec):
        names = {
            variable["name"]: variable["value"] for variable in executors[step.executor]["container"].get("env", [])
        }
        mounts = json_format.MessageToDict(platform_executors[step.executor]).get("secretAsVolume", [])
        if mounts or "SHORTLIST_KUBERNETES_TOKEN" in names:
            seeing[step.component] = (
                names["SHORTLIST_KUBERNETES_TOKEN"],
                mounts[0]["secretName"],
                mounts[0]["mountPath"],
            )
    folder = "/var/run/shortlist/rollout"
    assert seeing == {"roll_out": (f"{folder}/token", "shortlist-rollout-token", folder)}
