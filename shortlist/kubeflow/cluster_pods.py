"""Configures the pods of a graph while it is built: image, resources, secrets, retries and time limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kfp import dsl, kubernetes

from components.image import ImageReferences
from components.pod import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, RETRIES_VARIABLE
from pipelines.graph import GraphTarget
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.pods.settings import whole_cores
from shortlist.report.titles import PER_MODEL
from shortlist.spec.cluster import Cluster, Task
from shortlist.spec.feature_job import VARIABLE, VOLUME_FOLDER, EngineJob, JobEnvironment
from shortlist.spec.text.quantity import quantity_value
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

ROLL_OUT: Final = "roll_out"
"""The step that changes what is served. It gets a token of its own, for all steps of a run have one service account."""
TOKEN_VARIABLE: Final = "SHORTLIST_KUBERNETES_TOKEN"  # noqa: S105 - the name of a variable that shortlist.system.kubernetes_api reads
FEATURE_JOBS: Final[Mapping[str, int]] = {"fit_features": 3, "build_table": 1, "recount_days": 1, "score_champion": 4}
"""Step that makes features of the log -> most jobs that it runs one after another.

`fit_features` tries to extend the last fit, then to correct it, then fits all days; `score_champion` fits features and
builds a table for each of two models.
"""
_ROLLOUT_FOLDER: Final = "/var/run/shortlist/rollout"
_RUN_ID_LABEL: Final = "metadata.labels['pipeline/runid']"
"""Field with the run's id, a label that Kubeflow sets on the pods."""


class ClusterPods(GraphTarget):
    """Pods as `runtime.cluster` declares them.

    Args:
        cluster: The section.
        images: Images of the steps.
        models: Names of the declared models.
        job: The kind of job that makes features for steps; None: they make them themselves.
        cached: Whether a step may be answered from an earlier run's results.
    """

    is_parallel = True
    has_references = True

    def __init__(
        self, cluster: Cluster, images: ImageReferences, models: Sequence[str], job: EngineJob | None = None,
        *, cached: bool,
    ) -> None:  # fmt: skip
        self.is_cached = cached
        self.config = dsl.PipelineConfig(ttl_seconds_after_finished=cluster.ttl_hours * 3_600)
        self._cluster = cluster
        self._images = images
        self._models = tuple(models)
        self._job = job

    def shares_pod(self, stage: str) -> bool:
        """Return whether the steps of a stage run in one pod; those that start a run do, for they are never cached."""
        return stage == "start" or stage in self._cluster.shared_pods

    def configure(self, task: Any, steps: Sequence[str]) -> None:
        """Set image, resources, environment, secrets, place, time limit and retries of a pod.

        Args:
            task: kfp's task.
            steps: Names of the steps that it runs.

        Raises:
            ShortlistError: The pod has a GPU, and there is no GPU image.
        """
        # kfp reads the whole stack, source files and all, at each setting; a thread's stack is short.
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(self._configure, task, steps).result()

    def _configure(self, task: Any, steps: Sequence[str]) -> None:
        settings = largest_settings([self._step_settings(step) for step in steps])
        minutes = sum(self._step_settings(step).timeout_minutes for step in steps)  # one after another
        if self._job is not None and (jobs := sum(FEATURE_JOBS.get(step, 0) for step in steps)):
            minutes += jobs * self._job.timeout_minutes
            self._mount(task, self._job.claim, settings)
        for name, value in {**self._cluster.variables, **thread_variables(settings)}.items():
            task.set_env_variable(name, value)
        task.set_container_image(self._images.require("gpu" if settings.gpus else "pipeline"))
        # Requests equal limits, so that other pods cannot take the step's share.
        task.set_cpu_request(settings.cpu).set_cpu_limit(settings.cpu)
        task.set_memory_request(settings.memory).set_memory_limit(settings.memory)
        if settings.gpus:
            task.set_accelerator_type(settings.accelerator).set_accelerator_limit(settings.gpus)
        if settings.retries:
            # The pod runs a step again while a store cannot be reached; Kubeflow starts a pod again that was lost.
            task.set_env_variable(RETRIES_VARIABLE, str(settings.retries))
            task.set_retry(settings.retries, f"{FIRST_WAIT_SECONDS}s", 2.0, f"{LONGEST_WAIT_SECONDS}s")
        kubernetes.set_image_pull_policy(task, "IfNotPresent")
        kubernetes.set_timeout(task, minutes * 60)
        kubernetes.use_field_path_as_env(task, RUN_ID_VARIABLE, _RUN_ID_LABEL)
        for label, value in settings.node_selector.items():
            kubernetes.add_node_selector(task, label, value)
        for taint in settings.tolerations:
            kubernetes.add_toleration(task, taint.key, taint.operator, taint.value, taint.effect)
        for secret in self._cluster.secrets:
            for variable, key in secret.variables.items():
                kubernetes.use_secret_as_env(task, secret.name, {key: variable})
        if ROLL_OUT in steps:
            task.set_env_variable(TOKEN_VARIABLE, f"{_ROLLOUT_FOLDER}/token")
            # Optional: a pod without it starts, and fails where it needs the token.
            kubernetes.use_secret_as_volume(task, self._cluster.rollout_token, _ROLLOUT_FOLDER, optional=True)

    def _mount(self, task: Any, claim: str, settings: Task) -> None:
        """Mount the volume of the jobs of a step, and say what they need to know."""
        environment = JobEnvironment(
            folder=VOLUME_FOLDER, image=self._images.require("pipeline"), cluster=self._cluster, task=settings
        )
        kubernetes.mount_pvc(task, pvc_name=claim, mount_path=VOLUME_FOLDER)
        task.set_env_variable(VARIABLE, environment.model_dump_json(exclude_defaults=True))

    def _step_settings(self, step: str) -> Task:
        """Return the resources and limits of a step.

        All models share the pod template of a step that runs once per model: each amount is the largest declared.
        """
        settings = self._cluster.task(step)
        if step not in PER_MODEL:
            return settings
        return largest_settings([self._cluster.tasks.get(f"{step}_{model}", settings) for model in self._models])


def check_step_names(cluster: Cluster, steps: Iterable[str], models: Sequence[str] = ()) -> None:
    """Check that every name in `runtime.cluster.tasks` is a step of some graph.

    Args:
        cluster: The section `runtime.cluster` of the spec.
        steps: Steps of all graphs.
        models: Names of the declared models.

    Raises:
        ShortlistError: A name is no step.
    """
    step_names = set(steps)
    step_names |= {f"{step}_{model}" for step in PER_MODEL if step in step_names for model in models}
    for name in cluster.tasks:
        if name not in step_names | {"default"}:
            near = did_you_mean(name, sorted(step_names))
            raise ShortlistError(
                f"runtime.cluster.tasks: no step is called '{name}'{near} (known: {', '.join(sorted(step_names))})"
            )


def largest_settings(tasks: Sequence[Task]) -> Task:
    """Return the settings that are enough for each of several pods: the largest of every amount.

    Raises:
        ShortlistError: Two pods have different node selectors or accelerators.
    """
    maximum = {
        "cpu": max((task.cpu for task in tasks), key=quantity_value),
        "memory": max((task.memory for task in tasks), key=quantity_value),
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
                f"runtime.cluster.tasks: steps share one pod template and have different values of {field}:"
                f" {', '.join(sorted(values))}; declare one"
            )
        if values:
            maximum[field] = json.loads(values.pop())
    return Task.model_validate(maximum)


def thread_variables(task: Task) -> dict[str, str]:
    """Return the variables that limit libraries to the pod's cores; without them they use as many threads as the node.

    Raises:
        ShortlistError: `cpu` is no number of cores.
    """
    cores = str(whole_cores(task))
    return {"OMP_NUM_THREADS": cores, "POLARS_MAX_THREADS": cores, "OMP_WAIT_POLICY": "PASSIVE"}
