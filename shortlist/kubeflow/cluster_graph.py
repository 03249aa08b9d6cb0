"""Tells a compiled graph what each of its steps asks of Kubernetes."""

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

from components.image import References
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.report.titles import PER_MODEL
from shortlist.spec.cluster import Cluster, Secret, Task
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

Container = ir.PipelineDeploymentConfig.PipelineContainerSpec
BACKOFF_SECONDS = 30
"""Wait before the first retry; it doubles."""
LONGEST_BACKOFF_SECONDS = 600
ROLL_OUT = "roll_out"
"""The step that changes what is served, with a token of its own: all steps of a run have one account."""
TOKEN_VARIABLE = "SHORTLIST_KUBERNETES_TOKEN"  # noqa: S105 - the variable's name, of shortlist.rollout.kserve.api
_ROLLOUT_FOLDER = "/var/run/shortlist/rollout"
_RUN_ID_LABEL = "metadata.labels['pipeline/runid']"
"""Where Kubeflow writes a run's id on its pods."""


@dataclass(frozen=True)
class Step:
    """A task of a compiled graph that runs in a pod."""

    task: Any
    """Its `PipelineTaskSpec`."""
    executor: str
    """Label of its container."""
    function: str
    """Name of its component, such as `train`: what `runtime.cluster.tasks` calls it."""

    def settings(self, cluster: Cluster, models: Sequence[str] = ()) -> Task:
        """Return what its pod gets.

        A step that is made for every model has one pod template: it gets the most that is declared for any of them.
        """
        usual = cluster.task(self.function)
        if self.function not in PER_MODEL:
            return usual
        own = [cluster.tasks.get(f"{self.function}_{model}", usual) for model in models]
        return largest(own) if own else usual


def configure(
    spec: Any, platform: Any, cluster: Cluster, images: References, *, cached: bool, models: Sequence[str] = ()
) -> None:
    """Write into a graph what its steps ask for: image, resources, retries, secrets, place, time.

    Args:
        spec: The graph's `PipelineSpec`; changed in place.
        platform: Its `PlatformSpec`; likewise.
        cluster: What the spec asks for.
        images: What the steps run in.
        cached: Whether a step may be answered from an earlier run's results.
        models: Names of the declared models.

    Raises:
        ShortlistError: A GPU is asked for, and there is no image for it.
    """
    deployment = json_format.ParseDict(json_format.MessageToDict(spec.deployment_spec), ir.PipelineDeploymentConfig())
    single = platform.platforms["kubernetes"]
    for group in (spec.root, *spec.components.values()):
        for task in group.dag.tasks.values():
            task.ClearField("iterator_policy")  # loops that take turns on one machine go side by side on a cluster
    for step in steps_of(spec):
        wanted = step.settings(cluster, models)
        container = deployment.executors[step.executor].container
        container.image = images.of("gpu" if wanted.gpus else "pipeline")
        container.resources.CopyFrom(resources_of(wanted))
        del container.env[:]
        container.env.extend(Container.EnvVar(name=name, value=value) for name, value in threads_of(wanted).items())
        if wanted.retries:
            step.task.retry_policy.CopyFrom(retries_of(wanted))
        if not cached:
            step.task.caching_options.CopyFrom(ir.PipelineTaskSpec.CachingOptions())
        asked = pod_of(wanted, cluster.secrets)
        if step.function == ROLL_OUT:
            file = f"{_ROLLOUT_FOLDER}/token"
            container.env.append(Container.EnvVar(name=TOKEN_VARIABLE, value=file))
            _mount(asked, cluster.rollout_token)
        pod = json_format.MessageToDict(asked)
        json_format.ParseDict(pod, single.deployment_spec.executors[step.executor])
    spec.deployment_spec.CopyFrom(json_format.ParseDict(json_format.MessageToDict(deployment), struct_pb2.Struct()))
    json_format.ParseDict({"resourceTtlOnCompletion": cluster.ttl_hours * 3_600}, single.pipelineConfig)


def steps_of(spec: Any) -> Iterator[Step]:
    """Give every task that runs in a pod, wherever in the graph it stands."""
    executors = json_format.MessageToDict(spec.deployment_spec)["executors"]
    for component in (spec.root, *spec.components.values()):
        for task in component.dag.tasks.values():
            label = spec.components[task.component_ref.name].executor_label
            if label:
                yield Step(task, label, _function(executors[label]["container"]["args"]))


def largest(tasks: Sequence[Task]) -> Task:
    """Return what is enough for each of some pods: of every amount the most.

    Raises:
        ShortlistError: Two want other nodes or accelerators.
    """
    most = {
        "cpu": max((one.cpu for one in tasks), key=amount_of),
        "memory": max((one.memory for one in tasks), key=amount_of),
        "gpus": max(one.gpus for one in tasks),
        "timeout_minutes": max(one.timeout_minutes for one in tasks),
        "retries": max(one.retries for one in tasks),
        "tolerations": tuple(dict.fromkeys(taint for one in tasks for taint in one.tolerations)),
    }
    for where in ("node_selector", "accelerator"):
        wanted = {
            json.dumps(getattr(one, where))
            for one in tasks
            if getattr(one, where) and (one.gpus or where != "accelerator")
        }
        if len(wanted) > 1:
            raise ShortlistError(
                f"runtime.cluster.tasks: models' steps share one pod template and want different values of {where}:"
                f" {', '.join(sorted(wanted))}; declare one"
            )
        if wanted:
            most[where] = json.loads(wanted.pop())
    return Task.model_validate(most)


def amount_of(quantity: str) -> float:
    """Return the number that a Kubernetes quantity stands for.

    >>> amount_of("500m"), amount_of("2"), amount_of("1.5Gi")
    (0.5, 2.0, 1610612736.0)
    """
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", quantity).groups()  # type: ignore[union-attr] # its section checks it
    if unit.endswith("i"):
        return float(number) * float(1024 ** ("KMGT".index(unit[0]) + 1))
    return float(number) * {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


def check_step_names(cluster: Cluster, graphs: Mapping[str, Any], models: Sequence[str] = ()) -> None:
    """Check that every name in `runtime.cluster.tasks` is a step of some graph.

    Args:
        cluster: What the spec asks for.
        graphs: `PipelineSpec` of every graph.
        models: Names of the declared models.

    Raises:
        ShortlistError: A name is not.
    """
    known = {step.function for spec in graphs.values() for step in steps_of(spec)}
    known |= {f"{step}_{model}" for step in PER_MODEL if step in known for model in models}
    for name in cluster.tasks:
        if name not in known | {"default"}:
            near = did_you_mean(name, sorted(known))
            raise ShortlistError(
                f"runtime.cluster.tasks: no step is called '{name}'{near} (known: {', '.join(sorted(known))})"
            )


def resources_of(task: Task) -> Any:
    """Return CPU, memory and accelerators; each request is its limit, so that a neighbour cannot starve the step."""
    asked = Container.ResourceSpec(
        resource_cpu_request=task.cpu,
        resource_cpu_limit=task.cpu,
        resource_memory_request=task.memory,
        resource_memory_limit=task.memory,
    )
    if task.gpus:
        asked.accelerator.resource_type, asked.accelerator.resource_count = task.accelerator, str(task.gpus)
    return asked


def threads_of(task: Task) -> dict[str, str]:
    """Return the variables that keep libraries to the pod's cores; by themselves they count the node's.

    Raises:
        ShortlistError: What is asked for is no number of cores.
    """
    said = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", task.cpu)
    if said is None:
        raise ShortlistError(f"runtime.cluster.tasks: cpu: got '{task.cpu}', wanted cores such as 2, 0.5 or 500m")
    cores = str(max(1, math.floor(float(said[1]) / (1_000 if said[2] else 1))))
    return {"OMP_NUM_THREADS": cores, "POLARS_MAX_THREADS": cores, "OMP_WAIT_POLICY": "PASSIVE"}


def retries_of(task: Task) -> Any:
    """Return how often and how soon a failed step is tried again."""
    policy = ir.PipelineTaskSpec.RetryPolicy(max_retry_count=task.retries, backoff_factor=2.0)
    policy.backoff_duration.seconds = BACKOFF_SECONDS
    policy.backoff_max_duration.seconds = LONGEST_BACKOFF_SECONDS
    return policy


def pod_of(task: Task, secrets: tuple[Secret, ...]) -> Any:
    """Return where and how long a step's pod runs, and which secrets it sees."""
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


def _mount(pod: Any, secret: str) -> None:
    """Give a step's pod a secret as files; a pod without it starts, and says what is missing when it needs it."""
    mounted = pod.secret_as_volume.add(secret_name=secret, mount_path=_ROLLOUT_FOLDER, optional=True)
    mounted.secret_name_parameter.runtime_value.constant.string_value = secret


def _function(arguments: list[str]) -> str:
    return arguments[arguments.index("--function_to_execute") + 1]
