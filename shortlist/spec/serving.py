"""The `serving` section: how a blessed model reaches traffic, and on what evidence it stays."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.spec.durations import Duration
from shortlist.spec.log_shape import FurtherLabel

Percent = Annotated[int, Field(ge=1, le=100)]
MOST_REPLICAS: Final = 8
Rows = Annotated[int, Field(ge=1)]


class Batching(Section):
    """How Triton joins requests."""

    max_batch_rows: int = Field(default=16_384, ge=1)
    """Most rows scored at once; larger requests are cut."""
    max_queue_delay_us: int = Field(default=0, ge=0, le=1_000_000)
    """How long a request waits for others; 0 joins only what is waiting already."""
    preferred_rows: tuple[Rows, ...] = ()
    """Sizes at which waiting ends early: a batch of one of them goes at once. None: only time and the largest count."""
    threads: int = Field(default=2, ge=1)
    """Threads that score one batch."""

    @model_validator(mode="after")
    def _preferred_batches_fit(self) -> Self:
        if self.preferred_rows and max(self.preferred_rows) > self.max_batch_rows:
            raise ValueError(f"preferred_rows {max(self.preferred_rows)} is above max_batch_rows {self.max_batch_rows}")
        return self


class Scoring(Section):
    """What computes the scores in this machine's Triton; a cluster's runs the whole graph in ONNX Runtime."""

    runtime: Literal["split", "onnxruntime"] = "split"
    """`split`: features in ONNX Runtime, trees in compiled loops, networks in OpenVINO; `onnxruntime`: all in one."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Of a network's products; `auto` is bf16 where the CPU has it. Scores may then differ by 0.02, AUC by 1e-4."""

    @model_validator(mode="after")
    def _narrow_numbers_need_a_split_graph(self) -> Self:
        if self.runtime == "onnxruntime" and self.precision != "fp32":
            raise ValueError(
                f"precision {self.precision}: ONNX Runtime computes in fp32 here; leave 'runtime' at split"
            )
        return self


class TritonPlacement(Section):
    """What a cluster's Triton, or one of your own, scores on; this machine's has the CPU alone."""

    device: Literal["cpu", "gpu"] = "cpu"
    """`gpu`: a network in ONNX Runtime on CUDA; trees on the FIL backend, behind their features on the CPU."""
    accelerator: Literal["none", "tensorrt"] = "none"
    """`tensorrt`: ONNX Runtime hands TensorRT what that can run of a network, in fp32; a pod builds it as it starts."""

    @model_validator(mode="after")
    def _tensorrt_needs_a_gpu(self) -> Self:
        if self.accelerator == "tensorrt" and self.device == "cpu":
            raise ValueError("accelerator: tensorrt runs on a GPU; declare device: gpu")
        return self


class PredictionLog(Section):
    """What is kept of every answer."""

    sampling: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of answers that are logged, chosen by a hash of the request's id."""
    feature_sampling: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of the logged answers that are logged with the feature values that scored, chosen by the same hash.
    Monitoring compares them with those of the feature table."""
    flush_seconds: float = Field(default=1.0, gt=0)
    """Longest time an answer stays in memory only."""
    max_waiting: int = Field(default=50_000, ge=1)
    """Answers held in memory; more are dropped and counted."""
    max_waiting_bytes: int = Field(default=256 * 2**20, ge=2**20, le=2**40)
    """Memory of the answers that are held, about; more are dropped and counted."""


class Limits(Section):
    """What clients may take of a server's memory and connections; the gateway of this machine enforces it too."""

    max_request_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10, le=2**30)
    """Most bytes of a request's body; a longer one is refused with 413 (gRPC: RESOURCE_EXHAUSTED)."""
    max_buffered_bytes: int = Field(default=256 * 2**20, ge=2**20, le=64 * 2**30)
    """Most bytes of all bodies that a server holds, the first 64 KiB of each not counted; beyond it answers 429."""
    max_text_length: int = Field(default=16_384, ge=64, le=2**20)
    """Most characters of one text in a request."""
    max_tags: int = Field(default=1_000, ge=1, le=100_000)
    """Most values that one row has of a column of type tags."""
    max_tag_values: int = Field(default=4 * 2**20, ge=1_000, le=2**30)
    """Most values of all rows of a request in its columns of type tags, where one row that stands for all counts once
    for each; and most combinations of tags by which one feature looks its rows up."""
    max_history_items: int = Field(default=2_000_000, ge=1_000, le=2**31)
    """Most items shown to users that a server remembers for filters; beyond it, it forgets the users who were shown
    nothing for the longest time."""
    body_seconds: float = Field(default=20, gt=0, le=600)
    """Longest time in which a request's body arrives whole; a slower one is refused with 408."""
    idle_seconds: float = Field(default=60, gt=0, le=3_600)
    """Longest time that a connection may be open without a request."""
    max_connections: int = Field(default=4_096, ge=16, le=1_000_000)
    """Most connections of clients to each of the two gateways of this machine; more are closed at once."""
    max_streams: int = Field(default=128, ge=1, le=4_096)
    """Most requests under way on one HTTP/2 connection of a client's."""

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        if self.max_buffered_bytes < self.max_request_bytes:
            raise ValueError(
                f"max_buffered_bytes {self.max_buffered_bytes} is below max_request_bytes {self.max_request_bytes}"
            )
        return self


class Overload(Section):
    """When a server refuses work (503, RESOURCE_EXHAUSTED) rather than letting everybody wait ever longer."""

    max_concurrent: int = Field(default=16, ge=1, le=1_024)
    """Requests that a server works on at once; the others wait for their turn."""
    max_waiting: int = Field(default=2_048, ge=0, le=100_000)
    """Requests that may wait in a server, for their turn or for a Triton that is being restarted."""
    max_wait_ms: float = Field(default=2_000, gt=0, le=600_000)
    """Longest wait that a request is let into; it is estimated from those that wait and what requests take."""

    @property
    def most(self) -> int:
        """Requests that a server may have at once; the gateway sends it no more."""
        return self.max_concurrent + self.max_waiting


class KPI(Section):
    """What the users do with what they are shown: the share of the shown items that end with a positive label.

    A slate that the release itself made (`<spec>.recommend`) counts as one, by what `slate` says.
    """

    top: int = Field(default=1, ge=1)
    """Items that are shown of a request that brought its candidates, the best-scored ones; a user's value is the mean
    over what that user was shown."""
    slate: Literal["hits", "clicks"] = "hits"
    """What a slate counts: `hits`, 1 where any of its items ends with a positive label (hit rate); `clicks`, how many
    of its items do (clicks per slate). `max_drop` and `scale` are in the same unit."""
    max_drop: float = Field(default=0.05, gt=0, lt=1)
    """Promote only when the canary is shown not to be worse than the stable track by more than this (absolute)."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Chance, over the whole rollout and however often it is analysed, to roll back a canary that is as good. The KPI
    and the guards share it: each has its part of `alpha / (1 + guards)`."""
    scale: float = Field(default=0.05, gt=0, lt=1)
    """Size of the differences that the sequential test is tuned to find soonest."""


class Guard(Section):
    """How much a further label may fall under a canary, per thing that is shown, as `kpi` counts these.

    Declare one of the two limits. A canary that is shown to be worse by more is rolled back; it is promoted only when
    that much is ruled out.
    """

    max_drop: float | None = Field(default=None, gt=0, lt=1)
    """Most that it may be below the stable track, absolute: 0.01 allows 0.04 where the stable track has 0.05."""
    max_relative_drop: float | None = Field(default=None, gt=0, lt=1)
    """Most that it may be below the stable track, as a share of that: 0.1 allows 0.045 where that has 0.05."""
    scale: float | None = Field(default=None, gt=0, lt=1)
    """Size of the differences, absolute, that its test is tuned to find soonest; null: that of the KPI. A smaller one
    is for a rare label."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> Self:
        if (self.max_drop is None) == (self.max_relative_drop is None):
            raise ValueError("wanted either max_drop or max_relative_drop")
        return self

    @property
    def is_relative(self) -> bool:
        """Whether the limit is a share of the stable track's rate."""
        return self.max_relative_drop is not None

    @property
    def allowed(self) -> float:
        """The limit that is declared, above 0."""
        limit = self.max_drop if self.max_relative_drop is None else self.max_relative_drop
        assert limit is not None
        return limit


class Guardrails(Section):
    """Limits whose breach rolls a canary back at once."""

    max_error_rate: float = Field(default=0.01, gt=0, lt=1)
    """Share of failed answers; breached when its lower confidence bound is above."""
    max_p99_ms: float = Field(default=500, gt=0)
    """Latency that no more than 1 % of the canary's answers may pass ..."""
    max_latency_ratio: float = Field(default=3.0, gt=1)
    """... nor this multiple of the stable track's own p99, whichever is smaller; never below `latency_floor_ms`."""
    latency_floor_ms: float = Field(default=20, gt=0)
    """Latencies below are never a reason."""
    max_score_shift: float = Field(default=1.0, gt=0)
    """Population stability index of the canary's scores against the stable track's."""
    confidence: float = Field(default=0.999, gt=0.5, lt=1)
    """Of the bounds behind these limits."""


class Canary(Section):
    """A rollout: steps, patience, limits."""

    steps: tuple[Percent, ...] = Field(default=(5, 25, 50, 100), min_length=1)
    """Shares of the users, growing, ending at 100."""
    interval_seconds: float = Field(default=20, gt=0)
    """Shortest stay at a step."""
    min_requests: int = Field(default=200, ge=1)
    """Answers of each track needed at a step before it can end."""
    min_users: int = Field(default=100, ge=2)
    """Users with outcomes, of each track over the whole rollout, needed before the last step."""
    deadline_seconds: float = Field(default=600, gt=0)
    """Longest stay at a step; a canary that is still undecided is rolled back."""
    drain_seconds: float = Field(default=2, ge=0)
    """Time that requests under way get before a server is stopped."""
    kpi: KPI = KPI()
    """Do users like what it shows?"""
    guards: dict[str, Guard] = Field(default={}, max_length=16)
    """Further labels (`data.labels`) that may fall no more than so much, such as `like: {max_relative_drop: 0.1}`."""
    guardrails: Guardrails = Guardrails()
    """Does it work?"""

    @property
    def alpha_of_test(self) -> float:
        """Chance of a false alarm that the test of the KPI, and that of each guard, has over a rollout."""
        return self.kpi.alpha / (1 + len(self.guards))

    @model_validator(mode="after")
    def _steps_grow_to_all(self) -> Self:
        if self.steps[-1] != 100:
            raise ValueError(f"steps end at {self.steps[-1]}; the last step must be 100")
        if any(later <= earlier for earlier, later in pairwise(self.steps)):
            raise ValueError(f"steps {list(self.steps)}: each must be larger than the one before")
        if self.deadline_seconds < self.interval_seconds:
            raise ValueError(
                f"deadline_seconds {self.deadline_seconds:g} is shorter than interval_seconds {self.interval_seconds:g}"
            )
        return self


def check_guards(canary: Canary, labels: Mapping[str, FurtherLabel]) -> None:
    """Refuse guards of labels that are not declared.

    Args:
        canary: The declared rollout.
        labels: `data.labels`.

    Raises:
        ValueError: A guard is of another label.
    """
    for name in canary.guards:
        if name not in labels:
            near = did_you_mean(name, labels) or "; declare it there, or leave the guard out"
            raise ValueError(f"serving.canary.guards: '{name}' is not declared in data.labels{near}")


class LiveTraffic(Section):
    """Users."""

    kind: Literal["live"] = "live"
    """Requests come by themselves."""


class ReplayTraffic(Section):
    """The log's newest days, played as users would: for a laptop, where there are none."""

    kind: Literal["replay"]
    """Requests made from the log; their outcomes are the log's own."""
    rate: float = Field(default=120, gt=0)
    """Requests per second, open loop."""
    days: int = Field(default=1, ge=1)
    """Newest days of the log that are played, again and again."""
    outcome_delay_seconds: float = Field(default=0.5, ge=0)
    """Time from an answer to its outcome."""


class Serving(Section):
    """Serving and rollout."""

    batching: Batching = Batching()
    """Triton's batches."""
    placement: TritonPlacement = TritonPlacement()
    """What it scores on."""
    scoring: Scoring = Scoring()
    """What computes the scores."""
    log: PredictionLog = PredictionLog()
    """The prediction log."""
    canary: Canary = Canary()
    """The rollout."""
    traffic: Annotated[LiveTraffic | ReplayTraffic, Field(discriminator="kind")] = LiveTraffic()
    """Where requests come from during a rollout."""
    limits: Limits = Limits()
    """What clients may take."""
    overload: Overload = Overload()
    """When servers refuse work."""
    max_rows: int = Field(default=10_000, ge=1)
    """Most rows (candidates) of a request."""
    refresh_seconds: float = Field(default=5, gt=0)
    """How often the server checks for newer features of items."""
    max_feature_age: Duration | None = None
    """Oldest that the newest tile of the statistics in use may be, from its end on, such as 3h; an alert says when it
    is older. Null: no limit."""
    replicas: int = Field(default=1, ge=1, le=MOST_REPLICAS)
    """Servers, each with a Triton of its own, that a version runs as on this machine; a cluster has its own number."""
    hold_seconds: float = Field(default=15, ge=0)
    """How long a request waits for a model server that is being restarted, before it fails."""
