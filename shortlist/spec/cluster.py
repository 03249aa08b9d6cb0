"""The `runtime.cluster` section: Kubernetes resources, images, autoscaling and names."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from shortlist.spec.base import Section
from shortlist.spec.text.quantity import PATTERN, canonical_quantity

Quantity = Annotated[str, Field(pattern=PATTERN), AfterValidator(canonical_quantity)]
"""A Kubernetes quantity, e.g. `500m` or `16Gi`; kept as the API server writes it: `0.5` becomes `500m`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label."""

_SECRET_NAME: Final = re.compile(
    r"(PASSWORD|PASSWD|SECRET|TOKEN|SECRET_ACCESS_KEY|ACCESS_KEY_ID|API_KEY)$", re.IGNORECASE
)


class Toleration(Section):
    """A taint that a step's pod tolerates."""

    key: str = Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """How the value is compared."""
    value: str = Field(default="", pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
    """Value of the taint; for `Equal` only."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect that is tolerated; empty: all."""

    @model_validator(mode="after")
    def _only_equal_compares_a_value(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"value: got '{self.value}' with operator Exists, which compares none, so that Kubernetes refuses the"
                " pod; write operator: Equal, or leave the value out"
            )
        return self


class Task(Section):
    """Resources, placement and retries of a step's pod."""

    cpu: Quantity = "1"
    """Cores, request and limit."""
    memory: Quantity = "4Gi"
    """Memory, request and limit."""
    gpus: int = Field(default=0, ge=0)
    """Accelerators."""
    accelerator: str = "nvidia.com/gpu"
    """Resource name of an accelerator."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels a node must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pod tolerates."""
    timeout_minutes: int = Field(default=240, ge=1)
    """Longest run of the pod, retries in it included; a longer one is killed."""
    retries: int = Field(default=2, ge=0, le=10)
    """How often the step is run again in its pod while a store cannot be reached, after waits that start at half a
    minute and double up to ten minutes. Kubeflow starts a lost pod again as often; a pod whose step failed only where
    Argo's retry policy is Always, and Kubeflow Pipelines 2.17 installs OnError."""


SharedStage = Literal["data", "log", "features", "retrieval", "model", "gates"]
"""A part of a graph whose steps can share a pod."""


class Secret(Section):
    """A secret whose keys become environment variables of every step."""

    name: Name
    """Name of the Kubernetes Secret, in the namespace of the runs."""
    variables: dict[str, str] = Field(min_length=1)
    """Environment variable -> key in the secret."""


class Images(Section):
    """Container images; each by digest, or the deployment is refused unless `allow_tags`."""

    pipeline: str = ""
    """Steps on the CPU, the server in front of Triton, the trigger service; empty: `components.image` decides."""
    gpu: str = ""
    """Training and features on a GPU."""
    triton: str = ""
    """The predictor."""
    allow_tags: bool = False
    """Whether an image may be named by a tag, whose meaning can change under a running version."""


class Workers(Section):
    """Processes of one distributed step."""

    nodes: int = Field(default=1, ge=1)
    """Pods."""
    processes: int = Field(default=1, ge=1)
    """Per pod: one per GPU, or per group of cores."""
    wait_seconds: int = Field(default=600, ge=1, le=86_400)
    """How long a process waits for the others in one exchange before all are stopped; the slowest must have decoded its
    files in this time."""
    pod: Task = Task()
    """Resources of each pod. The step that waits for them, and then holds the whole model, gets those of `tasks`."""

    @model_validator(mode="after")
    def _a_process_has_a_gpu(self) -> Self:
        if self.pod.gpus not in (0, self.processes):
            raise ValueError(f"pod: {self.pod.gpus} GPUs for {self.processes} processes; wanted one process per GPU")
        return self


class Autoscaling(Section):
    """Number of predictor pods, and when it grows."""

    min_replicas: int = Field(default=2, ge=1)
    """Fewest predictors; two survive the loss of a node."""
    max_replicas: int = Field(default=8, ge=1)
    """Most predictors."""
    queue_milliseconds: float = Field(default=5, gt=0)
    """Mean time in Triton's queue above which more are started."""

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below min_replicas {self.min_replicas}")
        return self


Controller = Annotated[str, Field(pattern=r"^([a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-a-z0-9.]{0,252})?$")]
"""Namespace and name of a Deployment; may be empty."""


class Controllers(Section):
    """Deployments of the controllers whose versions are checked before a rollout; empty: not checked."""

    kserve: Controller = "kserve/kserve-controller-manager"
    """KServe's controller; 0.20 or later is needed."""
    envoy_gateway: Controller = "envoy-gateway-system/envoy-gateway"
    """Envoy Gateway's controller; 1.9 or later is needed, for older ones split users at random."""


class Cluster(Section):
    """Namespace, images, resources of each step, and serving on Kubernetes."""

    name: Name = "default"
    """Name of this cluster; written into all shared state, so that the state of two clusters is kept apart."""
    namespace: Name = "shortlist"
    """Namespace of runs and servers."""
    kfp_experiment: str = "shortlist"
    """Kubeflow's experiment."""
    images: Images = Images()
    """Container images."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """Step -> its resources. A step is named by its component (`train`), by component and model (`train_<name>`), or
    is `default`."""
    shared_pods: tuple[SharedStage, ...] = ()
    """Stages whose steps run one after another in one pod, for small logs: a pod's start takes 10 to 20 s. `log`,
    `features` and `retrieval` each, or all three as `data`; `model`: training and validation of a model; `gates`. A
    stage with one pod is cached as a whole, and its pod gets the largest resources of its steps."""
    secrets: tuple[Secret, ...] = ()
    """Secrets with the environment variables of `online_store`, `tracking`, `database` and the object store."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every pod that hold no secret, such as `AWS_ENDPOINT_URL` and `AWS_REGION` of an object
    store outside AWS."""
    service_account: Name = "shortlist-pipeline"
    """Service account of the steps."""
    rollout_token: Name = "shortlist-rollout-token"  # noqa: S105 - a name
    """Secret with the token of the account that may change what is served; mounted only into the step `roll_out`."""
    ttl_hours: int = Field(default=72, ge=1)
    """A finished run's pods are removed after this time."""
    workers: dict[str, Workers] = Field(default_factory=dict)
    """Name of a model -> the processes that train it together (Kubeflow Trainer)."""
    gateway: str = "shortlist"
    """Name of the Gateway that the HTTPRoute attaches to."""
    controllers: Controllers = Controllers()
    """Controllers whose versions are checked before a rollout."""
    hostname: str = ""
    """Host name of requests; empty: any."""
    prometheus: str = "http://prometheus-operated.monitoring:9090"
    """Where the canary analysis reads metrics."""
    autoscaling: Autoscaling = Autoscaling()
    """Number of predictors."""
    keep_former_seconds: float = Field(default=300, ge=0, le=86_400)
    """How long the former version's servers run on after a promotion. The new version is checked meanwhile; users are
    sent back when it does not answer."""
    log_volume: Quantity = "10Gi"
    """Disk for a server's prediction log until it is committed; a pod that needs more is evicted."""
    serving: Task = Task(cpu="2", memory="4Gi")
    """Resources of each serving container; its GPUs are for Triton alone and need `serving.placement.device: gpu`."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_partitions(cls, section: Any) -> Any:
        if isinstance(section, dict) and "partitions" in section:
            raise ValueError(
                f"partitions: got {section['partitions']}, and no step is divided among pods any more; delete the key,"
                " and for a log that is too large for one machine declare runtime.features: {engine: ray}"
            )
        return section

    @field_validator("variables")
    @classmethod
    def _variables_hold_no_secret(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if _SECRET_NAME.search(name) or re.search(r"://[^/]*@", value):
                raise ValueError(f"{name}: looks like a secret, which does not belong into a spec; name it in secrets")
        return variables

    def task(self, name: str) -> Task:
        """Return the resources of a step's pod."""
        return self.tasks.get(name) or self.tasks.get("default") or Task()
