"""Runs a command of the command line as a Job in the cluster, where the names of servers and stores are known."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Final

from shortlist.pods.settings import container_security, pod_security, resources, tolerations
from shortlist.rollout.kserve.objects.owner import MANAGED_BY, SPEC_LABEL
from shortlist.rollout.kserve.objects.pod_status import container_statuses, unstartable_lines, waiting_lines
from shortlist.rollout.kserve.objects.pods import (
    TMP,
    checked_image,
    variables,
)
from shortlist.spec.cluster import Cluster
from shortlist.system.kubernetes_api import JOB, ClusterError, KubernetesAPI, Object, connect

SERVICE_ACCOUNT: Final = "shortlist-rollout"
"""Account that may change what is served."""
APP_LABEL: Final = {"app.kubernetes.io/name": "shortlist-command"}
"""Label of the pods, which a network policy selects."""
CONTAINER: Final = "command"
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as of a shell."""
_SPEC_FOLDER: Final = "/etc/shortlist"
_SPEC_FILE: Final = "spec.yaml"
_SPEC_ANNOTATION: Final = "shortlist/spec"
_LONGEST_SPEC: Final = 200 * 1024
"""Bytes; all annotations of an object may have 256 KiB."""
_JOB_LABEL: Final = "batch.kubernetes.io/job-name"
_GRACE_SECONDS: Final = 600
"""Time in which a command that is ended may send users back."""
_KEPT_SECONDS: Final = 3600
"""How long a finished Job stays when nobody is left to delete it."""
_START_SECONDS: Final = 600.0
"""Longest wait for the pod: a node may be added."""
_LOOK_SECONDS: Final = 1.0


def run_in_cluster(cluster: Cluster, spec_name: str, spec_text: str, arguments: Sequence[str]) -> int:
    """Run a command in a pod, print what it prints, delete it and return its exit code.

    Ctrl-C ends the command in its pod as it would end it here: a rollout is aborted.

    Args:
        cluster: The spec's section; its `roll_out` task has the resources.
        spec_name: Name of the spec.
        spec_text: Its YAML.
        arguments: Name of the command and its options, without the spec.

    Raises:
        ClusterError: The pod cannot be started, or is gone before it ended.
    """
    job = command_job(cluster, spec_name, spec_text, arguments)
    return JobRun(KubernetesAPI(connect(), cluster.namespace), job).run()


def command_job(cluster: Cluster, spec_name: str, spec_text: str, arguments: Sequence[str]) -> Object:
    """Return the Job of a command.

    Raises:
        ClusterError: The image is not named by digest, or the spec is too long for an annotation.
    """
    if len(spec_text.encode()) > _LONGEST_SPEC:
        raise ClusterError(
            f"spec '{spec_name}': {len(spec_text.encode())} bytes, and a pod's annotation may have {_LONGEST_SPEC}; run"
            " the command in a pod of the cluster"
        )
    task = cluster.task("roll_out")
    command, *options = arguments
    container = {
        "name": CONTAINER,
        "image": checked_image(cluster.images.pipeline, "pipeline", cluster.images.allow_tags),
        "command": ["shortlist", command, f"{_SPEC_FOLDER}/{_SPEC_FILE}", *options],
        "env": [*variables(cluster), {"name": "COLUMNS", "value": str(shutil.get_terminal_size().columns)}],
        "resources": resources(task),
        "securityContext": container_security(),
        "volumeMounts": [{"name": "spec", "mountPath": _SPEC_FOLDER, "readOnly": True}, TMP],
    }
    field = {"fieldPath": f"metadata.annotations['{_SPEC_ANNOTATION}']"}
    labels = {**MANAGED_BY, **APP_LABEL, SPEC_LABEL: spec_name}
    pod = {
        "serviceAccountName": SERVICE_ACCOUNT,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": pod_security(),
        "nodeSelector": task.node_selector,
        "tolerations": tolerations(task),
        "containers": [container],
        "volumes": [
            {"name": "spec", "downwardAPI": {"items": [{"path": _SPEC_FILE, "fieldRef": field}]}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    # An autoscaler of nodes would end a rollout.
    annotations = {_SPEC_ANNOTATION: spec_text, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": f"shortlist-{command}-{secrets.token_hex(4)}",
            "namespace": cluster.namespace,
            "labels": labels,
        },
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


class JobRun:
    """One run of a Job with one pod.

    Args:
        api: Client of the namespace.
        job: Manifest of the Job.
        start_seconds: Longest wait for the pod.
        look_seconds: Time between two looks at it.
    """

    def __init__(
        self,
        api: KubernetesAPI,
        job: Object,
        start_seconds: float = _START_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._api, self._job, self._name = api, job, str(job["metadata"]["name"])
        self._start_seconds, self._look_seconds = start_seconds, look_seconds
        self._is_ended_by_user = False
        self._printed_lines = 0

    def run(self) -> int:
        """Create the Job, print its log, delete it and return the exit code.

        Raises:
            ClusterError: The pod cannot be started, or is gone before it ended.
        """
        live_job = self._api.create(JOB, self._job)
        try:
            try:
                self._wait_started()
                return self._follow()
            except KeyboardInterrupt:
                self._is_ended_by_user = True
                sys.stderr.write(f"Job {self._name}: is being ended; a rollout sends its users back first\n")
                self._api.delete(JOB, live_job)
                return self._follow()
        finally:
            self._api.delete(JOB, live_job)

    def _wait_started(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        while True:
            pods = self._pods()
            if _is_started(pods):
                return
            if lines := unstartable_lines(pods):
                raise self._not_started(lines)
            refusals = [] if pods else _warnings(self._api.events(self._name))
            if refusals or time.monotonic() >= deadline:
                raise self._not_started(refusals or [*waiting_lines(pods), *_unscheduled_lines(pods)])
            time.sleep(self._look_seconds)

    def _follow(self) -> int:
        """Print the log until the container has ended; return its exit code."""
        while True:
            pods = self._pods()  # before the log is read, so that the last lines are never missed
            if _is_started(pods):
                self._print_log(pods[0]["metadata"]["name"])
            if not pods:
                if self._is_ended_by_user:
                    return INTERRUPTED
                raise self._gone("it was deleted")
            if (code := _exit_code(pods[0])) is not None:
                return code
            if (pods[0].get("status") or {}).get("phase") == "Failed":  # evicted, or its node is gone
                raise self._gone(str(pods[0]["status"].get("reason") or "it failed"))
            time.sleep(self._look_seconds)

    def _print_log(self, pod: str) -> None:
        for line in self._api.log_lines(pod, CONTAINER, self._printed_lines):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            self._printed_lines += 1

    def _pods(self) -> list[Object]:
        return self._api.pods({_JOB_LABEL: self._name})

    def _not_started(self, lines: Sequence[str]) -> ClusterError:
        cause = "; ".join(lines) or f"no pod within {self._start_seconds:g} s"
        return ClusterError(f"Job {self._api.namespace}/{self._name}: its pod does not start: {cause}")

    def _gone(self, cause: str) -> ClusterError:
        spec = self._job["metadata"]["labels"][SPEC_LABEL]
        return ClusterError(
            f"Job {self._api.namespace}/{self._name}: its pod ended without an exit code ({cause}). make canary-status"
            f" SPEC={spec} says how far a rollout came; make deploy-canary SPEC={spec} resumes it, make rollback"
            f" SPEC={spec} ends it."
        )


def _is_started(pods: Sequence[Object]) -> bool:
    states = [status.get("state") or {} for pod in pods for status in container_statuses(pod)]
    return any({"running", "terminated"} & state.keys() for state in states)


def _exit_code(pod: Object) -> int | None:
    """Return the exit code of a pod's container; None while it runs."""
    for status in container_statuses(pod):
        if terminated := (status.get("state") or {}).get("terminated"):
            return int(terminated["exitCode"])
    return None


def _warnings(events: Sequence[Object]) -> list[str]:
    """Return why no pod was created, such as a quota or an account that is missing."""
    return [
        f"{event.get('reason', '')}: {event.get('message', '')}" for event in events if event.get("type") != "Normal"
    ]


def _unscheduled_lines(pods: Sequence[Object]) -> list[str]:
    conditions = [(pod, condition) for pod in pods for condition in (pod.get("status") or {}).get("conditions") or []]
    return [
        f"pod {pod['metadata']['name']}: {condition.get('reason', '')}: {condition.get('message', '')}"
        for pod, condition in conditions
        if condition["type"] == "PodScheduled" and condition["status"] != "True"
    ]
