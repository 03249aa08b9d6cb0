"""A spec with blessed versions in a folder, and everything that rolls them out on a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes import client
from real_cluster import configuration_of

from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES
from shortlist.evaluation.metrics.records import Measures
from shortlist.rollout.checks.observations import Observation, TrackSummary
from shortlist.rollout.commands import RolloutCommands
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence.counts import RequestTotals, TrackCounts
from shortlist.rollout.fleet import Observer
from shortlist.rollout.kserve.fleet import KubeFleet
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import Rollouts
from shortlist.serving.export.signature import MODEL_FILE, Signature
from shortlist.spec.cluster import Autoscaling, Cluster, Images
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Canary, Serving
from shortlist.storage.artefacts import folder_digest, write_manifest
from shortlist.storage.objects import ObjectStore
from shortlist.system.kubernetes_api import KubernetesAPI
from shortlist.tracking.registry import Alias, RegisteredModel

SPEC = "demo"
DIGEST = "sha256:" + "0" * 64
IMAGES = Images(pipeline=f"registry/shortlist@{DIGEST}", triton=f"registry/triton@{DIGEST}")
CLUSTER = Cluster(name="eu-1", namespace="ml", images=IMAGES, autoscaling=Autoscaling(min_replicas=1, max_replicas=2))
POLICY = Canary(steps=(5, 50, 100), interval_seconds=1, deadline_seconds=60, drain_seconds=0)


class FolderModels:
    """A registry with real folders and real blessings; aliases in a file, for many processes."""

    name = "shortlist-demo"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.retired: dict[int, str] = {}

    def add(self, version: int) -> None:
        model = self.folder / str(version) / "model"
        (model / "serving").mkdir(parents=True)
        (model / "model.json").write_text(f'{{"version": {version}}}')
        Signature(model=SPEC, kind="xgboost", numbers=("price",)).write(model / "serving")
        (model / "serving" / MODEL_FILE).write_bytes(b"\x08\x0a\x12\x04test:" + b"\x3a\x02\x0a\x00" * version)
        digests = write_manifest(model)
        gates = [GateResult(name=name, passed=True, reason="fine", numbers={"digests": digests}) for name in GATES]
        report = GateReport.from_results("xgboost", folder_digest(model), gates)
        measures = Measures(model="xgboost", role="candidate", validation_log_loss=0.5)
        write_blessing(model.parent / "blessing.json", bless([report], [measures]))

    def version_of(self, alias: Alias) -> int | None:
        path = self.folder / f"{alias}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        return RegisteredModel(
            version=version, run_id="run", kind="xgboost", folder=self.folder / str(version) / "model"
        )

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        return None

    def retirement_of(self, version: int) -> str:
        return self.retired.get(version, "")

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        return self.folder / str(version) / "blessing.json"

    def set_alias(self, alias: Alias, version: int | None) -> None:
        (self.folder / f"{alias}.json").write_text(json.dumps(version))


class Script:
    """A judge who is content with every step but one."""

    def __init__(self, bad_step: int | None = None) -> None:
        self.bad_step = bad_step

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        bad = step == self.bad_step
        return Observation(
            decision="roll_back" if bad else "proceed",
            reason="4 % of the answers failed" if bad else f"step {step} is fine",
            stable=TrackSummary(requests=90, users=80),
            canary=TrackSummary(requests=10, users=9),
        )

    def total(self) -> RequestTotals:
        return RequestTotals(stable=TrackCounts(requests=100), logged=100)


class World:
    """What a controller works with, in any process that knows the folder and the server."""

    def __init__(self, folder: Path, url: str, **changes: Any) -> None:
        self.folder, self.url = folder, url
        self.cluster: Cluster = changes.get("cluster", CLUSTER)
        self.patience: float = changes.get("patience", 5.0)
        self.connection: dict[str, Any] | None = changes.get("connection")
        """Of a real cluster; None: the fake one at the URL."""
        self.hold_seconds: float = changes.get("hold_seconds", 15)
        self.settling: float = changes.get("settling", 2.0)
        self.account: str = changes.get("account", "shortlist-rollout")
        self.accepted_seconds: float = changes.get("accepted_seconds", 1.0)
        self.ready_seconds: float = changes.get("ready_seconds", 5.0)
        self.models = FolderModels(folder / "registry")
        self.objects = ObjectStore.in_folder(folder / "objects")
        self.rollouts = Rollouts(folder / "rollouts", SPEC)
        self.observe: Callable[[RolloutRecord], Observer] = lambda _: Script()
        self.reasons: Sequence[str] = ()
        self.row_reasons: Sequence[str] = ()
        """Why a row is not scored."""
        self.keep_former_seconds: float = changes.get("keep_former_seconds", 0.0)
        self.on_change: Callable[[RolloutRecord], None] = lambda _: None
        if not (folder / "registry").exists():
            self.models.add(1)
            self.models.add(2)
            self.models.set_alias("champion", 1)
            self.models.set_alias("candidate", 2)

    def fleet(self) -> KubeFleet:
        if self.connection is None:
            configuration = client.Configuration(host=self.url)
            configuration.api_key = {"authorization": f"Bearer {self.account}"}
        else:
            configuration = configuration_of(self.connection)
        api = KubernetesAPI(client.ApiClient(configuration), self.cluster.namespace, self.patience, 0.02, self.settling)
        serving = Serving(canary=POLICY, hold_seconds=self.hold_seconds)
        return KubeFleet(
            api, self.objects, SPEC, Runtime(cluster=self.cluster), serving,
            ready_seconds=self.ready_seconds, accepted_seconds=self.accepted_seconds,
        )  # fmt: skip

    def deployment(self, version: int) -> Deployment:
        folder = self.models.fetch(version).folder
        return Deployment(
            version=version, kind="xgboost", model_folder=folder, digest=folder_digest(folder), store=None
        )

    def serve(self, version: int) -> None:
        fleet = self.fleet()
        fleet.deploy(self.deployment(version))
        fleet.wait_ready(version)
        fleet.route(Route(stable=version))

    def name(self, version: int) -> str:
        return self.fleet().owner.version_name(version, self.deployment(version).digest)

    def roll_out(self, policy: Canary = POLICY, labels: Mapping[str, FurtherLabel] | None = None) -> RolloutCommands:
        """A new controller, as a new process would have."""
        fleet = self.fleet()
        tools = ControllerContext(
            fleet=fleet,
            models=self.models,
            observe=self.observe,
            load_test=lambda _: self.reasons,
            answer_failures=lambda deployment: fleet.readiness_failures(deployment.version) or self.row_reasons,
            keep_former_seconds=self.keep_former_seconds,
            on_change=self.on_change,
            patience_seconds=0.01,
            poll_seconds=0.01,
            sleep=lambda seconds: time.sleep(min(seconds, 0.02)),
        )
        return RolloutCommands(self.rollouts, policy, tools, labels)
