"""The `serving` section: servers, limits, prediction log and canary rollouts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.text.durations import Duration
from shortlist.system.registry import resolve_address

Percent = Annotated[int, Field(ge=1, le=100)]
MAX_REPLICAS: Final = 8
Rows = Annotated[int, Field(ge=1)]
_NETWORK: Final = re.compile(r"[0-9.]+/\d+|[0-9a-fA-F]*:[0-9a-fA-F:]+/\d+")
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
CheckName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]


class Batching(Section):
    """Triton's dynamic batching."""

    max_batch_rows: int = Field(default=16_384, ge=1)
    """Most rows scored at once; larger requests are split."""
    max_queue_delay_us: int = Field(default=0, ge=0, le=1_000_000)
    """How long a request waits for others; 0: only requests that are already queued are batched."""
    preferred_rows: tuple[Rows, ...] = ()
    """Batch sizes that are sent at once, without further waiting. Empty: only the delay and the largest size count."""
    threads: int = Field(default=2, ge=1)
    """Threads that score one batch."""

    @model_validator(mode="after")
    def _preferred_batches_fit(self) -> Self:
        if self.preferred_rows and max(self.preferred_rows) > self.max_batch_rows:
            raise ValueError(f"preferred_rows {max(self.preferred_rows)} is above max_batch_rows {self.max_batch_rows}")
        return self


class Scoring(Section):
    """Inference runtime of this machine's Triton; a cluster's Triton runs the whole graph in ONNX Runtime."""

    runtime: Literal["split", "onnxruntime"] = "split"
    """`split`: features in ONNX Runtime, trees in compiled loops, networks in OpenVINO; `onnxruntime`: all in one."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of a network's matrix products; `auto`: bf16 where the CPU has it. With bf16, scores may differ by
    0.02, AUC by 1e-4."""

    @model_validator(mode="after")
    def _narrow_numbers_need_a_split_graph(self) -> Self:
        if self.runtime == "onnxruntime" and self.precision != "fp32":
            raise ValueError(
                f"precision {self.precision}: ONNX Runtime computes in fp32 here; leave 'runtime' at split"
            )
        return self


class TritonPlacement(Section):
    """Device of a cluster's Triton, or of a fleet of your own; this machine's uses the CPU only."""

    device: Literal["cpu", "gpu"] = "cpu"
    """`gpu`: a network in ONNX Runtime on CUDA; trees on the FIL backend, behind their features on the CPU."""
    accelerator: Literal["none", "tensorrt"] = "none"
    """`tensorrt`: ONNX Runtime runs the supported part of a network by TensorRT, in fp32; built when a pod starts."""

    @model_validator(mode="after")
    def _tensorrt_needs_a_gpu(self) -> Self:
        if self.accelerator == "tensorrt" and self.device == "cpu":
            raise ValueError("accelerator: tensorrt runs on a GPU; declare device: gpu")
        return self


class PredictionLog(Section):
    """The log of answers."""

    sampling: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of answers that are logged, chosen by a hash of the request's id."""
    feature_sampling: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of the logged answers that include the served feature values, chosen by the same hash. Monitoring compares
    them with those of the feature table."""
    flush_seconds: float = Field(default=1.0, gt=0)
    """Longest time an answer is kept in memory only."""
    max_waiting: int = Field(default=50_000, ge=1)
    """Most answers kept in memory; further ones are dropped and counted."""
    max_waiting_bytes: int = Field(default=256 * 2**20, ge=2**20, le=2**40)
    """Approximate memory of the answers kept in memory; further ones are dropped and counted."""
    retention: Duration = "90d"
    """How long answers and outcomes are kept in the tables of the logs; collected rows stay."""


class Limits(Section):
    """Limits on clients' use of a server's memory and connections; this machine's gateway enforces them too."""

    max_request_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10, le=2**30)
    """Most bytes of a request's body; a longer one is refused with 413 (gRPC: RESOURCE_EXHAUSTED)."""
    max_buffered_bytes: int = Field(default=256 * 2**20, ge=2**20, le=64 * 2**30)
    """Most bytes of all bodies that a server holds, not counting the first 64 KiB of each; above it, it answers 429."""
    max_text_length: int = Field(default=16_384, ge=64, le=2**20)
    """Most characters of one text in a request."""
    max_tags: int = Field(default=1_000, ge=1, le=100_000)
    """Most values of one row in a column of type tags."""
    max_tag_values: int = Field(default=4 * 2**20, ge=1_000, le=2**30)
    """Most values of all rows of a request in its columns of type tags, where a value sent once for all rows counts
    once per row; and most combinations of tags in the look-ups of one feature."""
    max_history_items: int = Field(default=2_000_000, ge=1_000, le=2**31)
    """Most items shown to users that a server keeps for filters; above it, the users with the oldest items are
    dropped."""
    body_seconds: float = Field(default=20, gt=0, le=600)
    """Longest time for a request's body to arrive; a slower one is refused with 408."""
    idle_seconds: float = Field(default=60, gt=0, le=3_600)
    """Longest time that a connection may be open without a request."""
    max_connections: int = Field(default=40_000, ge=16, le=1_000_000)
    """Most client connections to each of the two gateways of this machine; further ones are closed at once. From a
    quarter of them on, idle ones are closed sooner than after `idle_seconds`, from half on after a second. Fewer where
    a process may not open as many files (`ulimit -Hn`)."""
    max_streams: int = Field(default=128, ge=1, le=4_096)
    """Most concurrent requests on one HTTP/2 connection."""
    requests_per_second: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most requests of an address (of IPv6 a /48 network) per second to each of the two gateways of this machine, of
    two seconds at once; further ones are refused with 429. `serving.backends` and who presents the backend's token are
    not limited. Null: no limit."""

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        if self.max_buffered_bytes < self.max_request_bytes:
            raise ValueError(
                f"max_buffered_bytes {self.max_buffered_bytes} is below max_request_bytes {self.max_request_bytes}"
            )
        return self


BACKEND: Final = "backend"
"""Name of every sender that presents the declared token."""


class Events(Section):
    """Who may send events to `/v1/events`, and how senders of events and requests prove who they are.

    By default whoever reaches a server that listens to its own machine alone; other servers need one of the two.
    """

    token_variable: str | None = Field(default=None, pattern="^[A-Z][A-Z0-9_]{0,63}$")
    """Environment variable with the token that a sender presents (`Authorization: Bearer TOKEN`)."""
    identity_header: str | None = Field(default=None, pattern="^[A-Za-z][A-Za-z0-9-]{0,63}$")
    """Header with the sender's identity. The gateway sets it after it has authenticated the sender, and removes a
    client's own."""

    @model_validator(mode="after")
    def _at_most_one_proof_of_sender(self) -> Self:
        if self.token_variable is not None and self.identity_header is not None:
            raise ValueError("wanted token_variable or identity_header, not both")
        return self


class Overload(Section):
    """Load shedding: when a server refuses requests (503, RESOURCE_EXHAUSTED), so that queues stay short."""

    max_concurrent: int = Field(default=16, ge=1, le=1_024)
    """Requests that a server processes at once; the others are queued."""
    max_waiting: int = Field(default=2_048, ge=0, le=100_000)
    """Requests that may be queued in a server, also for a Triton that is being restarted."""
    max_wait_ms: float = Field(default=2_000, gt=0, le=600_000)
    """Longest expected wait with which a request is queued, estimated from the queue and the time per request."""

    @property
    def max_requests(self) -> int:
        """Most requests of a server, processed and queued; the gateway sends it no more."""
        return self.max_concurrent + self.max_waiting


class KPI(Section):
    """The rollout's KPI: the share of the shown items with a positive label.

    A slate that the release itself made (`<spec>.recommend`) counts once, by `slate`.
    """

    top: int = Field(default=1, ge=1)
    """Number of best-scored items that are shown of a request with its own candidates; a user's value is the mean over
    the items shown to that user."""
    slate: Literal["hits", "clicks"] = "hits"
    """Value of a slate: `hits`, 1 if any of its items has a positive label (hit rate); `clicks`, the number of its
    items with one (clicks per slate). `max_drop` and `scale` are in the same unit."""
    max_drop: float = Field(default=0.05, gt=0, lt=1)
    """Largest absolute drop below the stable track; a canary is promoted only when a larger one is ruled out."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Probability to roll back a canary that is as good, over the whole rollout and however often it is analysed. The
    tests of the KPI and of each guard have the level `alpha / (1 + guards)`."""
    scale: float = Field(default=0.05, gt=0, lt=1)
    """Size of the difference for which the sequential test is fastest."""


class Guard(Section):
    """How much the rate of a further label may drop under a canary, per shown item or slate, as `kpi` counts these.

    Declare one of the two limits. A canary whose drop is shown to be larger is rolled back; it is promoted only when
    such a drop is ruled out.
    """

    max_drop: float | None = Field(default=None, gt=0, lt=1)
    """Largest absolute drop below the stable track: 0.01 allows 0.04 where the stable track has 0.05."""
    max_relative_drop: float | None = Field(default=None, gt=0, lt=1)
    """Largest drop as a share of the stable track's rate: 0.1 allows 0.045 where the stable track has 0.05."""
    scale: float | None = Field(default=None, gt=0, lt=1)
    """Absolute size of the difference for which its test is fastest; null: that of the KPI. Use a smaller one for a
    rare label."""

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
        """The declared limit, above 0."""
        limit = self.max_drop if self.max_relative_drop is None else self.max_relative_drop
        assert limit is not None
        return limit


class Guardrails(Section):
    """Limits whose breach rolls a canary back at once."""

    max_error_rate: float = Field(default=0.01, gt=0, lt=1)
    """Largest share of failed answers; breached when the lower confidence bound is above it."""
    max_p99_ms: float = Field(default=500, gt=0)
    """Largest 99th percentile of the canary's latency ..."""
    max_latency_ratio: float = Field(default=3.0, gt=1)
    """... or this multiple of the stable track's p99, whichever is smaller; never below `latency_floor_ms`."""
    latency_floor_ms: float = Field(default=20, gt=0)
    """Lower latencies never breach a limit."""
    max_score_shift: float = Field(default=1.0, gt=0)
    """Largest population stability index of the canary's scores against the stable track's."""
    confidence: float = Field(default=0.999, gt=0.5, lt=1)
    """Confidence level of the bounds that are compared with these limits."""


class DeclaredCheck(Section):
    """A further canary check without code: a condition over the evidence of a step, or over a query of Prometheus.

    Conditions are SQL expressions. They read the numbers of both tracks at the step, such as `degraded`, `hits` and
    `p99_ms`, after the track and an underscore. A condition on a number that is not known yet holds the rollout.
    """

    breach: str
    """Condition that rolls the canary back, such as "canary_degraded > 0.02 * canary_logged". It allows nothing for
    chance: compare large counts."""
    wait: str | None = None
    """Condition that holds the rollout, such as "canary_logged < 500"; checked before `breach`."""
    query: str | None = None
    """PromQL with one value, which the conditions read as `value`; `$version` stands for the canary's version."""
    prometheus: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Address of the Prometheus that is asked."""

    @model_validator(mode="after")
    def _has_prometheus_with_query(self) -> Self:
        if (self.query is None) != (self.prometheus is None):
            raise ValueError("wanted query and prometheus together, or neither")
        return self


class Canary(Section):
    """A canary rollout: steps, durations, limits."""

    steps: tuple[Percent, ...] = Field(default=(5, 25, 50, 100), min_length=1)
    """Percentages of the users, increasing to 100."""
    interval_seconds: float = Field(default=20, gt=0)
    """Shortest duration of a step."""
    min_requests: int = Field(default=200, ge=1)
    """Answers of each track needed in a step before it can end."""
    min_users: int = Field(default=100, ge=2)
    """Users with outcomes, of each track over the whole rollout, needed before the last step."""
    deadline_seconds: float = Field(default=600, gt=0)
    """Longest duration of a step; a canary that is still undecided is rolled back."""
    drain_seconds: float = Field(default=2, ge=0)
    """Time for requests in flight before a server is stopped."""
    kpi: KPI = KPI()
    """The KPI of users, with its limit."""
    guards: dict[str, Guard] = Field(default={}, max_length=16)
    """Limits for the drop of further labels (`data.labels`), such as `like: {max_relative_drop: 0.1}`."""
    guardrails: Guardrails = Guardrails()
    """Limits of errors, latency and score shift."""
    checks: dict[CheckName, DeclaredCheck] = Field(default={}, max_length=16)
    """Further checks by name, each with a condition."""

    @property
    def alpha_per_test(self) -> float:
        """Level of the test of the KPI, and of each guard's, over a whole rollout."""
        return self.kpi.alpha / (1 + len(self.guards))

    @model_validator(mode="after")
    def _steps_grow_to_all(self) -> Self:
        if self.steps[-1] != 100:
            raise ValueError(f"steps end at {self.steps[-1]}; the last step must be 100")
        if any(next_step <= step for step, next_step in pairwise(self.steps)):
            raise ValueError(f"steps {list(self.steps)}: each must be larger than the one before")
        if self.deadline_seconds < self.interval_seconds:
            raise ValueError(
                f"deadline_seconds {self.deadline_seconds:g} is shorter than interval_seconds {self.interval_seconds:g}"
            )
        if self.checks:  # type-checked in a layer above
            resolve_address("check_declared_checks")(self.checks)
        return self


def check_guards(canary: Canary, labels: Mapping[str, FurtherLabel]) -> None:
    """Check that the guards are of declared labels.

    Args:
        canary: The declared rollout.
        labels: `data.labels`.

    Raises:
        ValueError: A guard names another label.
    """
    for name in canary.guards:
        if name not in labels:
            suggestion = did_you_mean(name, labels) or "; declare it there, or leave the guard out"
            raise ValueError(f"serving.canary.guards: '{name}' is not declared in data.labels{suggestion}")


class LiveTraffic(Section):
    """Traffic of real users."""

    kind: Literal["live"] = "live"
    """Requests come from users."""


class ReplayTraffic(Section):
    """A replay of the log's newest days, for a laptop without users."""

    kind: Literal["replay"]
    """Requests are made from the log; outcomes are those of the log."""
    rate: float = Field(default=120, gt=0)
    """Requests per second, open loop."""
    days: int = Field(default=1, ge=1)
    """Newest days of the log that are replayed in a loop."""
    outcome_delay_seconds: float = Field(default=0.5, ge=0)
    """Time from an answer to its outcome."""


class Serving(Section):
    """Serving and rollout."""

    batching: Batching = Batching()
    """Triton's dynamic batching."""
    placement: TritonPlacement = TritonPlacement()
    """Triton's device."""
    scoring: Scoring = Scoring()
    """Inference runtime and precision."""
    log: PredictionLog = PredictionLog()
    """The prediction log."""
    canary: Canary = Canary()
    """The rollout."""
    traffic: Annotated[LiveTraffic | ReplayTraffic, Field(discriminator="kind")] = LiveTraffic()
    """Source of requests during a rollout."""
    limits: Limits = Limits()
    """Limits on clients."""
    events: Events = Events()
    """Who may send what users saw and did."""
    backends: tuple[str, ...] = ()
    """Senders that vouch for their users, because they are the application's own servers: identities
    (`events.identity_header`), addresses, or networks such as 10.0.0.0/8; whoever presents the token of
    `events.token_variable`, or of a stack's `secrets.json`, is one. What all others can move is capped
    (docs/trust.md)."""
    overload: Overload = Overload()
    """Load shedding."""
    max_rows: int = Field(default=10_000, ge=1)
    """Most rows (candidates) of a request."""
    refresh_seconds: float = Field(default=5, gt=0)
    """How often the server checks for newer features of items."""
    max_feature_age: Duration | None = None
    """Largest age of the newest tile of the statistics in use, from the tile's end, such as 3h; an alert is raised
    above it. Null: no limit."""
    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Servers of a version on this machine, each with its own Triton; a cluster has its own number."""
    hold_seconds: float = Field(default=15, ge=0)
    """How long a request waits for a model server that is being restarted, before it fails."""

    @model_validator(mode="after")
    def _backends_are_senders(self) -> Self:
        for name in self.backends:
            if not name or (_NETWORK.fullmatch(name) and _network(name) is None):
                raise ValueError(f"backends: '{name}' is no network; wanted an identity, an address, or 10.0.0.0/8")
        return self

    @property
    def backend_networks(self) -> tuple[_Network, ...]:
        """Networks among `backends`."""
        return _networks(self.backends)

    def vouches_for_users(self, sender: str | None) -> bool:
        """Whether a sender is one of the application's own servers; None, an unknown sender, is not.

        >>> Serving(backends=("10.1.0.0/16",)).vouches_for_users("10.1.2.3"), Serving().vouches_for_users("10.1.2.3")
        (True, False)
        """
        if sender is None:
            return False
        if sender == BACKEND or sender in self.backends:
            return True
        networks = _networks(self.backends)
        address = _network(sender) if networks else None
        return address is not None and any(address.network_address in network for network in networks)


@cache
def _networks(names: tuple[str, ...]) -> tuple[_Network, ...]:
    return tuple(network for network in map(_network, names) if network is not None)


def _network(text: str) -> _Network | None:
    """Return a network, or an address as one of its own; None for another text."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
