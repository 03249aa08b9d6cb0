"""The `runtime.cluster` section: what Kubernetes is asked for."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shortlist.spec.base import Section
from shortlist.spec.quantity import PATTERN, canonical_quantity

Quantity = Annotated[str, Field(pattern=PATTERN), AfterValidator(canonical_quantity)]
"""A Kubernetes quantity, e.g. `500m` or `16Gi`; kept as the API server writes it: `0.5` becomes `500m`."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label."""


class Toleration(Section):
    """A taint that a step's pod bears."""

    key: str = Field(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
    """Of the taint."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """How the value is compared."""
    value: str = Field(default="", pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
    """For `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Empty: all."""

    @model_validator(mode="after")
    def _only_equal_compares_a_value(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"value: got '{self.value}' with operator Exists, which compares none, so that Kubernetes refuses the"
                " pod; write operator: Equal, or leave the value out"
            )
        return self


class Task(Section):
    """What a step's pod gets."""

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
    """Taints it bears."""
    timeout_minutes: int = Field(default=240, ge=1)
    """Longest run; then it is killed, and retried."""
    retries: int = Field(default=2, ge=0, le=10)
    """Further tries, with backoff that starts at half a minute and doubles up to ten."""


class Secret(Section):
    """A secret whose keys become environment variables of every step."""

    name: Name
    """Of the Kubernetes Secret, in the namespace of the runs."""
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
    """What each pod gets; `tasks` says what the step gets that waits for them, and then holds the whole model."""

    @model_validator(mode="after")
    def _a_process_has_a_gpu(self) -> Self:
        if self.pod.gpus not in (0, self.processes):
            raise ValueError(f"pod: {self.pod.gpus} GPUs for {self.processes} processes; wanted one process per GPU")
        return self


class Autoscaling(Section):
    """How many predictors serve."""

    min_replicas: int = Field(default=2, ge=1)
    """Always there; two survive the loss of a node."""
    max_replicas: int = Field(default=8, ge=1)
    """Most."""
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
    """Namespace, images, what each step gets, how models are served."""

    name: Name = "default"
    """Of this cluster; written into everything shared, so that two clusters' state is never mixed up."""
    namespace: Name = "shortlist"
    """Of runs and servers."""
    kfp_experiment: str = "shortlist"
    """Kubeflow's experiment."""
    images: Images = Images()
    """What runs."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """Step -> what it gets: a component's name such as `train`, that of one model such as `train_<name>`, or
    `default`."""
    secrets: tuple[Secret, ...] = ()
    """Where the variables of `online_store`, `tracking`, `database` and the object store come from."""
    service_account: Name = "shortlist-pipeline"
    """Of the steps."""
    rollout_token: Name = "shortlist-rollout-token"  # noqa: S105 - a name
    """Secret with the token of the account that may change what is served; only the step `roll_out` sees it."""
    ttl_hours: int = Field(default=72, ge=1)
    """A finished run's pods are removed after this time."""
    partitions: int = Field(default=1, ge=1, le=64)
    """Groups of files that are read, and of days that are validated, counted and turned into features, by pods of their
    own; 1: one pod does it all."""
    workers: dict[str, Workers] = Field(default_factory=dict)
    """Name of a model -> the processes that train it together (Kubeflow Trainer)."""
    gateway: str = "shortlist"
    """Name of the Gateway that the HTTPRoute attaches to."""
    controllers: Controllers = Controllers()
    """What is checked before a rollout."""
    hostname: str = ""
    """Host name that clients ask; empty: any."""
    prometheus: str = "http://prometheus-operated.monitoring:9090"
    """Where the canary analysis reads metrics."""
    autoscaling: Autoscaling = Autoscaling()
    """How many serve."""
    log_volume: Quantity = "10Gi"
    """Disk that a server's prediction log may take until it has been shipped; a pod that takes more is evicted."""
    serving: Task = Task(cpu="2", memory="4Gi")
    """What each serving container gets; its GPUs are Triton's alone, and go with `serving.placement.device: gpu`."""

    def task(self, name: str) -> Task:
        """Return what a step's pod gets."""
        return self.tasks.get(name) or self.tasks.get("default") or Task()
