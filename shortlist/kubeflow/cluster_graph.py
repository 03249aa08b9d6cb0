"""Sets image, resources, secrets, retries and time limits of each step in a compiled graph."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format, struct_pb2
from kfp.kubernetes import kubernetes_executor_config_pb2 as kubernetes
from kfp.pipeline_spec import pipeline_spec_pb2 as ir

from components.image import ImageReferences
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.report.titles import PER_MODEL
from shortlist.spec.cluster import Cluster, Secret, Task
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

Container = ir.PipelineDeploymentConfig.PipelineContainerSpec
BACKOFF_SECONDS = 30
"""Wait before the first retry; it doubles."""
LONGEST_BACKOFF_SECONDS = 600
ROLL_OUT = "roll_out"
"""The step that changes what is served. It gets a token of its own, for all steps of a run have one service account."""
TOKEN_VARIABLE = "SHORTLIST_KUBERNETES_TOKEN"  # noqa: S105 - the name of a variable that shortlist.system.kubernetes_api reads
_ROLLOUT_FOLDER = "/var/run/shortlist/rollout"
_RUN_ID_LABEL = "metadata.labels['pipeline/runid']"
"""Field with the run's id, a label that Kubeflow sets on the pods."""


@dataclass(frozen=True)
class GraphTask:
    """A task of a compiled graph that runs in a pod."""

    task: Any
    """Its `PipelineTaskSpec`."""
    executor: str
    """Label of its container."""
    component: str
    """Name of its component, such as `train`; a key of `runtime.cluster.tasks`."""

    def pod_settings(self, cluster: Cluster, models: Sequence[str] = ()) -> Task:
        """Return the resources and limits of its pod.

        All models share the pod template of a step that runs once per model: each amount is the largest declared.
        """
        settings = cluster.task(self.component)
        if self.component not in PER_MODEL:
            return settings
        settings_of_models = [cluster.tasks.get(f"{self.component}_{model}", settings) for model in models]
        return largest_settings(settings_of_models) if settings_of_models else settings


def configure_graph(
    spec: Any, platform: Any, cluster: Cluster, images: ImageReferences, *, cached: bool, models: Sequence[str] = ()
) -> None:
    """Set image, resources, retries, secrets, node selectors and time limits of every step of a graph.

    Args:
        spec: The graph's `PipelineSpec`; changed in place.
        platform: Its `PlatformSpec`; changed in place.
        cluster: The section `runtime.cluster` of the spec.
        images: Images of the steps.
        cached: Whether a step may be answered from an earlier run's results.
        models: Names of the declared models.

    Raises:
        ShortlistError: A step has a GPU, and there is no GPU image.
    """
    deployment = json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), ir.PipelineDeploymentConfig())
    kubernetes_platform = platform.platforms["kubernetes"]
    for group in (spec.root, *spec.components.values()):
        for task in group.dag.tasks.values():
            task.ClearField("iterator_policy")  # loops are sequential on one machine and parallel on a cluster
    for step in iter_tasks(spec):
        settings = step.pod_settings(cluster, models)
        container = deployment.executors[step.executor].container
        container.image = images.require("gpu" if settings.gpus else "pipeline")
        container.resources.CopyFrom(resource_spec(settings))
        del container.env[:]
        container.env.extend(
            Container.EnvVar(name=name, value=value) for name, value in thread_variables(settings).items()
        )
        if settings.retries:
            step.task.retry_policy.CopyFrom(retry_policy(settings))
        if not cached:
            step.task.caching_options.CopyFrom(ir.PipelineTaskSpec.CachingOptions())
        pod = pod_config(settings, cluster.secrets)
        if step.component == ROLL_OUT:
            file = f"{_ROLLOUT_FOLDER}/token"
            container.env.append(Container.EnvVar(name=TOKEN_VARIABLE, value=file))
            _mount_secret(pod, cluster.rollout_token)
        executor = kubernetes_platform.deployment_spec.executors[step.executor]
        json_format.ParseDict(json_format.MessageToDict(pod), executor)
    spec.deployment_spec.CopyFrom(json_format.ParseDict(json_format.MessageToDict(deployment), struct_pb2.Struct()))
    json_format.ParseDict({"resourceTtlOnCompletion": cluster.ttl_hours * 3_600}, kubernetes_platform.pipelineConfig)


def iter_tasks(spec: Any) -> Iterator[GraphTask]:
    """Yield every task that runs in a pod, those of nested groups too."""
    executors = json_format.MessageToDict(spec.deployment_spec)["executors"]
    for component in (spec.root, *spec.components.values()):
        for task in component.dag.tasks.values():
            label = spec.components[task.component_ref.name].executor_label
            if label:
                yield GraphTask(task, label, _component_name(executors[label]["container"]["args"]))


def largest_settings(tasks: Sequence[Task]) -> Task:
    """Return the settings that are enough for each of several pods: the largest of every amount.

    Raises:
        ShortlistError: Two pods have different node selectors or accelerators.
    """
    maximum = {
        "cpu": max((task.cpu for task in tasks), key=amount_of),
        "memory": max((task.memory for task in tasks), key=amount_of),
        "gpus": max(task.gpus for task in tasks),
        "timeout_minutes": max(task.timeout_minutes for task in tasks),
        "retries": max(task.retries for task in tasks),
        "tolerations": tuple(dict.fromkeys(taint for task in tasks for taint in task.tolerations)),
    }
    for field in ("node_selector", "accelerator"):
        values = {
            json.dumps(getattr(task, field))
            for task in tasks
            if getattr(task, field) and (task.gpus or field != "accelerator")
        }
        if len(values) > 1:
            raise ShortlistError(
                f"runtime.cluster.tasks: models' steps share one pod template and have different values of {field}:"
                f" {', '.join(sorted(values))}; declare one"
            )
        if values:
            maximum[field] = json.loads(values.pop())
    return Task.model_validate(maximum)


def amount_of(quantity: str) -> float:
    """Return the number that a Kubernetes quantity stands for.

    >>> amount_of("500m"), amount_of("2"), amount_of("1.5Gi")
    (0.5, 2.0, 1610612736.0)
    """
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", quantity).groups()  # type: ignore[union-attr] # the spec checks it
    if unit.endswith("i"):
        return float(number) * float(1024 ** ("KMGT".index(unit[0]) + 1))
    return float(number) * {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


def check_step_names(cluster: Cluster, graphs: Mapping[str, Any], models: Sequence[str] = ()) -> None:
    """Check that every name in `runtime.cluster.tasks` is a step of some graph.

    Args:
        cluster: The section `runtime.cluster` of the spec.
        graphs: `PipelineSpec` of every graph.
        models: Names of the declared models.

    Raises:
        ShortlistError: A name is no step.
    """
    step_names = {step.component for spec in graphs.values() for step in iter_tasks(spec)}
    step_names |= {f"{step}_{model}" for step in PER_MODEL if step in step_names for model in models}
    for name in cluster.tasks:
        if name not in step_names | {"default"}:
            near = did_you_mean(name, sorted(step_names))
            raise ShortlistError(
                f"runtime.cluster.tasks: no step is called '{name}'{near} (known: {', '.join(sorted(step_names))})"
            )


def resource_spec(task: Task) -> Any:
    """Return CPU, memory and accelerators; requests equal limits, so that other pods cannot take the step's share."""
    resources = Container.ResourceSpec(
        resource_cpu_request=task.cpu,
        resource_cpu_limit=task.cpu,
        resource_memory_request=task.memory,
        resource_memory_limit=task.memory,
    )
    if task.gpus:
        resources.accelerator.resource_type, resources.accelerator.resource_count = task.accelerator, str(task.gpus)
    return resources


def thread_variables(task: Task) -> dict[str, str]:
    """Return the variables that limit libraries to the pod's cores; without them they use as many threads as the node.

    Raises:
        ShortlistError: `cpu` is no number of cores.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", task.cpu)
    if match is None:
        raise ShortlistError(f"runtime.cluster.tasks: cpu: got '{task.cpu}', wanted cores such as 2, 0.5 or 500m")
    cores = str(max(1, math.floor(float(match[1]) / (1_000 if match[2] else 1))))
    return {"OMP_NUM_THREADS": cores, "POLARS_MAX_THREADS": cores, "OMP_WAIT_POLICY": "PASSIVE"}


def retry_policy(task: Task) -> Any:
    """Return how often and after which wait a failed step is retried."""
    policy = ir.PipelineTaskSpec.RetryPolicy(max_retry_count=task.retries, backoff_factor=2.0)
    policy.backoff_duration.seconds = BACKOFF_SECONDS
    policy.backoff_max_duration.seconds = LONGEST_BACKOFF_SECONDS
    return policy


def pod_config(task: Task, secrets: tuple[Secret, ...]) -> Any:
    """Return node selector, tolerations, time limit and secrets of a step's pod."""
    pod = kubernetes.KubernetesExecutorConfig(
        image_pull_policy="IfNotPresent", active_deadline_seconds=task.timeout_minutes * 60
    )
    pod.field_path_as_env.add(name=RUN_ID_VARIABLE, field_path=_RUN_ID_LABEL)
    if task.node_selector:
        pod.node_selector.labels.update(task.node_selector)
    for taint in task.tolerations:
        pod.tolerations.add(key=taint.key, operator=taint.operator, value=taint.value, effect=taint.effect)
    for secret in secrets:
        mapped = pod.secret_as_env.add(secret_name=secret.name, optional=False)
        mapped.secret_name_parameter.runtime_value.constant.string_value = secret.name
        for variable, key in secret.variables.items():
            mapped.key_to_env.add(secret_key=key, env_var=variable)
    return pod


def _mount_secret(pod: Any, secret: str) -> None:
    """Mount a secret into a step's pod. It is optional: a pod without it starts and fails where it needs the token."""
    mounted = pod.secret_as_volume.add(secret_name=secret, mount_path=_ROLLOUT_FOLDER, optional=True)
    mounted.secret_name_parameter.runtime_value.constant.string_value = secret


def _component_name(arguments: list[str]) -> str:
    return arguments[arguments.index("--function_to_execute") + 1]
