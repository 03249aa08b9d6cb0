"""Rollouts on a fleet in memory: whatever fails or is killed, the stable track keeps its users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from shortlist.contracts import ShortlistError
from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES, Gate, required_gates
from shortlist.evaluation.metrics.records import Measures
from shortlist.rollout.candidates import describe_versions
from shortlist.rollout.checks.observations import Observation, TrackSummary
from shortlist.rollout.commands import RolloutCommands, describe_older_versions
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence.counts import RequestTotals, TrackCounts
from shortlist.rollout.page import PAGE, headline
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import FAULTS, RolloutError, Rollouts
from shortlist.rollout.states.phases import Phase
from shortlist.rollout.verdict import EVIDENCE, RolloutVerdict
from shortlist.serving.processes.errors import StackError
from shortlist.spec.serving import Canary
from shortlist.storage.artefacts import IntegrityError, folder_digest, write_manifest
from shortlist.storage.records.store import LockedError, RecordStoreError
from shortlist.tracking.registry import Alias, RegisteredModel, UnknownVersionError

POLICY = Canary(steps=(5, 50, 100), interval_seconds=1, deadline_seconds=60, drain_seconds=0.5)


class Killed(BaseException):
    """A simulated SIGKILL: nothing in the code may catch it."""


class KillSwitch:
    """Kills the controller at the n-th call, before or after its effect; never by default."""

    def __init__(self) -> None:
        self.dies_at, self.dies_after, self.moments = 0, False, 0

    def watch(self, happen: Callable[[], None]) -> None:
        self.moments += 1
        if self.moments == self.dies_at and not self.dies_after:
            raise Killed
        happen()
        if self.moments == self.dies_at:
            raise Killed


class MemoryFleet:
    """A fleet in memory, with scripted faults."""

    def __init__(self, death: KillSwitch) -> None:
        self.death = death
        self.deployed: dict[int, Deployment] = {}
        self.ready: set[int] = set()
        self.route_now: Route | None = None
        self.routes: list[Route | None] = []
        self.faults: dict[str, list[Exception]] = {}
        self.violations: list[str] = []
        self.on_wait: Callable[[], None] = lambda: None

    def serving(self) -> Route | None:
        return self.route_now

    def deploy(self, deployment: Deployment) -> None:
        self._fail("deploy")
        self.death.watch(lambda: self.deployed.update({deployment.version: deployment}))

    def wait_ready(self, version: int) -> None:
        self.on_wait()
        self._fail("wait_ready")
        self._expect(version in self.deployed, f"version {version} is waited for and not deployed")
        self.ready.add(version)

    def verify(self, version: int) -> None:
        self._fail("verify")
        self._expect(version in self.ready, f"version {version} is verified and does not run")

    def route(self, route: Route) -> None:
        self._fail("route")
        self._expect({route.stable, route.canary} - {None} <= self.ready, f"{route} sends users where nothing answers")
        self.death.watch(lambda: self._sent(route))

    def withdraw(self) -> None:
        self._sent(None)

    def retire(self, version: int) -> None:
        self._fail("retire")
        route = self.route_now
        self._expect(route is None or version not in {route.stable, route.canary}, f"version {version} has users")
        self.death.watch(lambda: self._stopped(version))

    def _sent(self, route: Route | None) -> None:
        self.route_now = route
        self.routes.append(route)

    def _stopped(self, version: int) -> None:
        self.deployed.pop(version, None)
        self.ready.discard(version)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:  # kept, not raised: the controller would handle it as a fault of the candidate
            self.violations.append(otherwise)

    def _fail(self, operation: str) -> None:
        if self.faults.get(operation):
            raise self.faults[operation].pop(0)


class MemoryModels:
    """A registry with real folders and real blessings."""

    name = "shortlist-demo"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.aliases: dict[str, int] = {}
        self.unblessed: set[int] = set()
        self.retired: dict[int, str] = {}
        self.faults: list[Exception] = []

    def add(self, version: int) -> None:
        model = self.folder / str(version) / "model"
        model.mkdir(parents=True)
        (model / "model.json").write_text(f'{{"version": {version}}}')
        digests = write_manifest(model)
        gates = [GateResult(name=name, passed=True, reason="fine", numbers={"digests": digests}) for name in GATES]
        report = GateReport.from_results("xgboost", folder_digest(model), gates)
        measures = Measures(model="xgboost", role="candidate", validation_log_loss=0.5)
        write_blessing(model.parent / "blessing.json", bless([report], [measures]))

    def version_of(self, alias: Alias) -> int | None:
        return self.aliases.get(alias)

    def fetch(self, version: int, to: Path | None = None) -> RegisteredModel:
        folder = self.folder / str(version) / "model"
        if not folder.exists():
            raise UnknownVersionError(f"{self.name} has no version {version}; registered: 1, 2")
        return RegisteredModel(version=version, run_id="run", kind="xgboost", folder=folder)

    def retrieval_of(self, version: int, to: Path | None = None) -> Path | None:
        return None

    def retirement_of(self, version: int) -> str:
        self.fetch(version)
        return self.retired.get(version, "")

    def blessing_of(self, version: int, to: Path | None = None) -> Path | None:
        return None if version in self.unblessed else self.folder / str(version) / "blessing.json"

    def set_alias(self, alias: Alias, version: int | None) -> None:
        if self.faults:
            raise self.faults.pop(0)
        if version is None:
            self.aliases.pop(alias, None)
        else:
            self.aliases[alias] = version


class ScriptedObserver:
    """An observer with scripted observations, which proceeds when they are used up."""

    def __init__(self) -> None:
        self.analyses: list[tuple[int, float]] = []
        self.observations: dict[int, list[Observation | Exception]] = {}

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        self.analyses.append((step, at_step_seconds))
        scripted = self.observations.get(step) or [make_observation("proceed", f"step {step} is fine")]
        answer = scripted.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def total(self) -> RequestTotals:
        return RequestTotals(canary=TrackCounts(requests=1_000, failed=3), logged=997)


def make_observation(decision: str, reason: str) -> Observation:
    return Observation.model_validate(
        {
            "decision": decision,
            "reason": reason,
            "stable": TrackSummary(requests=90, users=80, p99_ms=8.0, kpi=0.31),
            "canary": TrackSummary(requests=10, failed=1, users=9, p99_ms=9.5, kpi=0.30),
            "canary_share": 0.1,
        }
    )


class DyingRollouts(Rollouts):
    def __init__(self, folder: Path, death: KillSwitch) -> None:
        super().__init__(folder, "demo")
        self._death = death

    def save(self, record: RolloutRecord) -> None:
        self._death.watch(lambda: super(DyingRollouts, self).save(record))


class World:
    """Version 1 serves, version 2 is the blessed candidate."""

    def __init__(self, folder: Path, first: bool = False) -> None:
        self.death = KillSwitch()
        self.models, self.fleet, self.observer = (
            MemoryModels(folder / "registry"),
            MemoryFleet(self.death),
            ScriptedObserver(),
        )
        self.rollouts = DyingRollouts(folder / "rollouts", self.death)
        self.load_test_reasons: Sequence[str] = ()
        self.unread_log = False
        self.unpublished: dict[int, list[str]] = {}
        self.now = 0.0
        self.sleeps: list[float] = []
        self.on_change: Callable[[RolloutRecord], None] = lambda _: None
        self.models.add(1)
        self.models.add(2)
        self.models.aliases = {"candidate": 2} if first else {"candidate": 2, "champion": 1}
        if not first:
            self.serve(1)

    def serve(self, version: int) -> None:
        folder = self.models.fetch(version).folder
        self.fleet.deployed[version] = Deployment(
            version=version, kind="xgboost", model_folder=folder, digest=folder_digest(folder), store=None
        )
        self.fleet.ready.add(version)
        self.fleet.route_now = Route(stable=version)

    def roll_out(self, policy: Canary = POLICY) -> RolloutCommands:
        """A new controller, as a new process would have."""
        tools = ControllerContext(
            fleet=self.fleet,
            models=self.models,
            observe=lambda _: self.observer,
            load_test=lambda _: self.load_test_reasons,
            notices=self.notices,
            unpublished_features=lambda deployment: self.unpublished.get(deployment.version, []),
            on_change=self.changed,
            patience_seconds=0.0,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        return RolloutCommands(self.rollouts, policy, tools)

    def notices(self, deployment: Deployment) -> Sequence[str]:
        if self.unread_log:
            raise OSError("the prediction log cannot be read")
        return [f"version {deployment.version} reads 'surface', which no request carries"]

    def changed(self, record: RolloutRecord) -> None:
        self.on_change(record)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def percents(self) -> list[int]:
        return [route.percent for route in self.fleet.routes if route]

    def is_back(self) -> bool:
        return self._end_state() == (Route(stable=1), {1}, 1, [])

    def is_promoted(self) -> bool:
        return self._end_state() == (Route(stable=2), {2}, 2, [])

    def _end_state(self) -> tuple[Route | None, set[int], int, list[str]]:
        fleet = self.fleet
        return fleet.route_now, set(fleet.deployed), self.models.aliases["champion"], fleet.violations

    def verdict(self, record: RolloutRecord) -> RolloutVerdict:
        return RolloutVerdict.model_validate_json((self.rollouts.rollout_folder(record.id) / EVIDENCE).read_text())


@pytest.fixture(autouse=True)
def _no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "page" not in request.node.name:  # drawing hundreds of them takes long
        monkeypatch.setattr("shortlist.rollout.rollouts.write_page", lambda record, out: None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- from the beginning to the end


def test_what_should_be_known_is_in_the_record_before_users_get_the_candidate(world: World) -> None:
    notices_by_percent: dict[int, tuple[str, ...]] = {}
    world.on_change = lambda record: notices_by_percent.setdefault(record.state.percent, record.notices)
    record = world.roll_out().canary()
    assert record.notices == ("version 2 reads 'surface', which no request carries",) == notices_by_percent[5]
    assert world.is_promoted()


def test_a_gate_that_is_required_since_the_blessing_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    of_today = (*required_gates(), "fairness")
    monkeypatch.setattr("shortlist.rollout.candidates.required_gates", lambda: of_today)
    assert world.roll_out().canary().notices[0] == (
        "version 2 was blessed before gate 'fairness' was required, which did not judge it"
    )


def test_serving_names_the_version_that_serves_and_the_blessed_one_that_waits(world: World) -> None:
    reason = (
        "it is the champion: the first blessed version, the newest where that was retired, or the one that was promoted"
        " or returned to last."
    )
    serves = f"Version 1 serves: {reason}"
    assert list(describe_versions(world.models, world.rollouts, 1)) == [
        serves,
        "Version 2 is blessed, for it passed every gate, and waits: make deploy-canary SPEC=demo rolls it out step by"
        " step, make promote SPEC=demo at once.",
    ]
    sentences_by_change: list[list[str]] = []
    world.on_change = lambda _: sentences_by_change.append(list(describe_versions(world.models, world.rollouts, 1)))
    world.observer.observations = {0: [make_observation("roll_back", "at 5 %: kpi: it is worse")]}
    world.roll_out().canary()
    assert sentences_by_change[0] == [serves]
    world.models.aliases["candidate"] = 1
    assert list(describe_versions(world.models, world.rollouts, 1)) == [serves]
    for champion, other in ((2, "the champion is version 2"), (None, "no version is the champion")):
        world.models.set_alias("champion", champion)
        (kept,) = describe_versions(world.models, world.rollouts, 1)
        assert kept == f"Version 1 serves: the fleet kept it; {other}."


@pytest.mark.parametrize("reason", ["at 5 %: kpi: it is worse", "interrupted by SIGTERM", "2 is odd"])
def test_serving_names_the_version_that_was_rolled_back(world: World, reason: str) -> None:
    if reason.startswith("at"):
        world.observer.observations = {0: [make_observation("roll_back", reason)]}
    elif reason.startswith("interrupted"):
        during(world, Phase.WATCHING, lambda: os.kill(os.getpid(), signal.SIGTERM))
    world.roll_out().canary()
    if reason == "2 is odd":
        world.roll_out().rollback(reason)  # of the promoted version
    assert world.is_back()
    _, rolled_back = describe_versions(world.models, world.rollouts, 1)
    assert rolled_back == f"Version 2 was rolled back: {reason}; make deploy-canary SPEC=demo rolls it out again."


def test_retired_versions_are_marked_and_wait_for_no_rollout(world: World) -> None:
    world.models.retired = {1: "it reads dwell", 2: "it reads dwell too"}
    _, serves, waits = describe_versions(world.models, world.rollouts, 1)
    assert serves == "Version 1 was retired: it reads dwell; it serves until another version is promoted."
    assert waits == (
        "Version 2 was retired: it reads dwell too; it waits for no rollout. make run SPEC=demo trains another."
    )


def test_a_version_that_served_after_its_rollback_and_was_replaced_waits(world: World) -> None:
    world.observer.observations = {0: [make_observation("roll_back", "it is worse")]}
    for version in (2, 2, 1):
        world.roll_out().canary(version)
    _, waits = describe_versions(world.models, world.rollouts, 1)
    assert "Version 2 is blessed" in waits


def test_a_log_that_gives_no_notices_ends_no_rollout(world: World) -> None:
    world.unread_log = True
    assert world.roll_out().canary().notices == ()
    assert world.is_promoted()


def test_a_good_candidate_is_promoted_step_by_step(world: World) -> None:
    record = world.roll_out().canary()
    assert world.is_promoted()
    assert world.percents() == [5, 50, 100, 0]
    assert [route.rollout for route in world.fleet.routes if route and route.canary] == [record.id] * 3
    assert record.state.phase is Phase.PROMOTED
    assert world.sleeps == [POLICY.drain_seconds]
    assert world.rollouts.read(record.id) == record


def test_the_evidence_has_steps_requests_and_reason(world: World) -> None:
    record = world.roll_out().canary()
    verdict = world.verdict(record)
    assert (verdict.verdict, verdict.reason, verdict.champion, verdict.candidate) == (
        "promoted", "step 2 is fine", 1, 2,
    )  # fmt: skip
    first = verdict.steps[0].model_dump()
    assert first == {
        "weight": 5, "requests": 100, "failed": 1, "canary_share": 0.1, "p99_ms": {"stable": 8.0, "canary": 9.5},
        "kpi": {"stable": 0.31, "canary": 0.30}, "guards": (), "decision": "proceed", "reason": "step 0 is fine",
    }  # fmt: skip
    requests = verdict.requests
    assert requests.by_track() == [("requests", 0, 1_000), ("failed", 0, 3)]
    assert (requests.total, requests.lost, requests.logged) == (1_000, 0, 997)


def test_a_page_is_written_beside_the_evidence(world: World) -> None:
    record = world.roll_out().canary()
    assert "Promoted" in (world.rollouts.rollout_folder(record.id) / PAGE).read_text()
    assert not (world.rollouts.rollout_folder(record.id) / FAULTS).exists()


def test_the_analysis_repeats_until_it_decides(world: World) -> None:
    world.observer.observations = {
        1: [make_observation("hold", "too few requests")] * 3 + [make_observation("proceed", "enough")]
    }
    record = world.roll_out().canary()
    assert [observe_step for observe_step in world.observer.analyses if observe_step[0] == 1] == [
        (1, 0.0),
        (1, 1.0),
        (1, 2.0),
        (1, 3.0),
    ]
    assert [step.last.reason for step in record.steps if step.last] == ["step 0 is fine", "enough", "step 2 is fine"]
    assert record.elapsed_seconds == 3 + POLICY.drain_seconds


def test_a_bad_candidate_is_rolled_back_at_once(world: World) -> None:
    world.observer.observations = {
        1: [make_observation("hold", "wait"), make_observation("roll_back", "errors 4 % > 1 %")]
    }
    record = world.roll_out().canary()
    assert world.is_back()
    assert world.percents() == [5, 50, 0]
    assert (record.state.phase, record.state.reason) == (Phase.ROLLED_BACK, "errors 4 % > 1 %")
    assert world.verdict(record).steps[-1].decision == "roll_back"
    assert world.sleeps == [1.0, POLICY.drain_seconds]  # nothing is waited for between verdict and route


def test_the_first_model_gets_everybody_once_it_is_load_tested(tmp_path: Path) -> None:
    world = World(tmp_path, first=True)
    record = world.roll_out().canary()
    assert world.is_promoted()
    assert world.percents() == [0]
    assert (record.state.phase, record.steps, world.observer.analyses) == (Phase.PROMOTED, (), [])
    assert world.verdict(record).reason == "no version served before to compare it with"


def test_a_first_model_that_is_champion_before_it_ever_served_is_still_the_first(tmp_path: Path) -> None:
    world = World(tmp_path, first=True)
    world.models.aliases["champion"] = 2  # as the registry has it right after the first blessing
    assert world.roll_out().canary().state.former is None
    assert world.is_promoted()


def test_a_champion_that_does_not_serve_yet_is_put_up_first(world: World) -> None:
    world.fleet.route_now = None
    world.fleet.deployed.clear()
    world.fleet.ready.clear()
    world.roll_out().canary()
    assert world.is_promoted()
    assert world.fleet.routes[0] == Route(stable=1)


def test_a_retired_champion_that_does_not_serve_is_not_started_to_be_compared_with(world: World) -> None:
    world.fleet.route_now = None
    world.fleet.deployed.clear()
    world.fleet.ready.clear()
    world.models.retired[1] = "it reads paid"
    assert world.roll_out().canary().state.former is None
    assert world.is_promoted()
    assert world.fleet.routes == [Route(stable=2)]


def test_a_retired_champion_that_serves_is_named_in_the_record(world: World) -> None:
    world.models.retired[1] = "it reads paid"
    record = world.roll_out().canary()
    assert record.retirement == "version 1 was retired: it reads paid"
    assert record.notices[0] == (
        "scores, KPI and guards are not compared with those of the stable track: version 1 was retired: it reads paid"
    )
    assert world.roll_out().rollback(version=1).retirement == ""


# --- refused without any change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda world: world.models.aliases.pop("candidate"), "spec 'demo' has no candidate yet; make run SPEC=demo"),
        (lambda world: world.models.aliases.update(candidate=9), "shortlist-demo has no version 9"),
        (lambda world: world.models.aliases.update(candidate=1), "version 1 serves everybody already; make run"),
        (lambda world: world.models.unblessed.add(2), "version 2 of shortlist-demo is not blessed"),
        (
            lambda world: (world.models.folder / "2/model/model.json").write_text('{"version": 3}'),
            r"model\.json: changed after it was written",
        ),
    ],
)
def test_an_unfit_version_is_refused_before_anything_begins(
    world: World, spoil: Callable[[World], object], message: str
) -> None:
    spoil(world)
    with pytest.raises(ShortlistError, match=message):
        world.roll_out().canary()
    assert world.is_back()
    assert (world.fleet.routes, world.rollouts.latest(), list(world.rollouts.folder.glob("[!.]*"))) == ([], None, [])


def test_a_gate_that_is_installed_later_stops_no_rollout_and_no_rollback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blessing is checked against the gates that were required when it was made."""
    monkeypatch.setitem(GATES, "spread", Gate(lambda _: GateResult(name="spread", passed=False, reason="too even")))
    world.roll_out().canary()
    assert world.is_promoted()
    world.roll_out().rollback("2 is odd")
    assert world.is_back()
    world.roll_out().promote()
    assert world.is_promoted()


def test_a_replaced_blessed_folder_is_refused(world: World) -> None:
    model = world.models.folder / "2" / "model"
    (model / "model.json").write_text('{"version": 3}')
    write_manifest(model)  # whole in itself, and not what was judged
    with pytest.raises(IntegrityError, match=r"model\.json: not the file that was judged"):
        world.roll_out().canary()


# --- faults


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"deploy": [StackError("port 4711 is taken")]}, "starting: port 4711 is taken"),
        ({"wait_ready": [StackError("triton-v2 ended:\n  bad weights")]}, "starting: triton-v2 ended:\n  bad weights"),
        ({"verify": [IntegrityError("model.onnx: swapped")]}, "shifting: model.onnx: swapped"),
        ({"route": [StackError("no Envoy")] * 4}, "shifting: no Envoy"),
        ({"deploy": [RuntimeError("our own")]}, "starting: RuntimeError: our own"),
    ],
)
def test_a_candidate_that_does_not_work_is_rolled_back(
    world: World, fault: dict[str, list[Exception]], reason: str
) -> None:
    world.fleet.faults = fault
    record = world.roll_out().canary()
    assert world.is_back()
    assert record.state.phase is Phase.ROLLED_BACK
    assert record.state.reason.startswith(reason)


def test_a_fault_of_ours_keeps_its_traceback(world: World) -> None:
    world.fleet.faults = {"deploy": [RuntimeError("our own")]}
    record = world.roll_out().canary()
    assert "Traceback" in (world.rollouts.rollout_folder(record.id) / FAULTS).read_text()


def test_a_candidate_that_is_too_slow_gets_no_user(world: World) -> None:
    world.load_test_reasons = ("p99 800 ms > 500 ms", "memory 5000 MiB > 4096 MiB")
    record = world.roll_out().canary()
    assert world.is_back()
    assert record.state.reason == "load_testing: p99 800 ms > 500 ms; memory 5000 MiB > 4096 MiB"
    assert world.fleet.routes == []


def test_a_passing_failure_of_envoy_or_mlflow_does_not_roll_back(world: World) -> None:
    world.fleet.faults = {"route": [StackError("busy")], "retire": [StackError("busy")]}
    world.models.faults = [ShortlistError("MLflow is unavailable")]
    world.roll_out().canary()
    assert world.is_promoted()


def test_a_failing_analysis_rolls_back(world: World) -> None:
    world.observer.observations = {0: [OSError("no such log")]}
    record = world.roll_out().canary()
    assert world.is_back()
    assert record.state.reason == "watching: the canary analysis failed: OSError: no such log"


def test_a_promotion_that_cannot_move_the_alias_is_rolled_back(world: World) -> None:
    world.models.faults = [ShortlistError("MLflow is unavailable")] * 8  # four tries forward, four on the way back
    with pytest.raises(
        RolloutError, match=r"Alias failed 4 times \(MLflow is unavailable\)\. The state is kept.*rollback"
    ):
        world.roll_out().canary()
    assert world.fleet.route_now == Route(stable=1)  # users first
    assert world.roll_out().canary().state.phase is Phase.ROLLED_BACK
    assert world.is_back()


def test_a_closed_terminal_does_not_end_a_rollout(world: World) -> None:
    def broken(_: RolloutRecord) -> None:
        raise BrokenPipeError

    world.on_change = broken
    world.roll_out().canary()
    assert world.is_promoted()


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RecordStoreError("PostgreSQL at db:5432/records for 60 s: gone.")]
)
def test_users_are_routed_back_when_the_record_cannot_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pattern = r"(No space left on device|PostgreSQL at db:5432).*everybody was sent back to version 1"
    with monkeypatch.context() as disk:
        disk.setattr(Rollouts, "save", failing_at_the_first_look(error))
        with pytest.raises(RolloutError, match=pattern):
            world.roll_out().canary()
    assert world.fleet.route_now == Route(stable=1)
    world.roll_out().canary()
    assert world.is_promoted()


def test_a_controller_that_lost_its_lock_does_not_route_users(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as store:
        store.setattr(Rollouts, "save", failing_at_the_first_look(LockedError("another process took it over")))
        with pytest.raises(LockedError, match="another process took it over"):
            world.roll_out().canary()
    assert world.fleet.route_now is not None
    assert world.fleet.route_now.canary == 2  # as it was: the other one drives
    world.roll_out().canary()
    assert world.is_promoted()


def failing_at_the_first_look(error: Exception) -> Callable[[Rollouts, RolloutRecord], None]:
    whole = Rollouts.save

    def save(self: Rollouts, record: RolloutRecord) -> None:
        if record.steps and record.steps[-1].last:
            raise error
        whole(self, record)

    return save


# --- killed and resumed


def worlds_after_each_kill(make: Callable[[], World], run: Callable[[World], object]) -> Iterator[World]:
    """Yield a world for every call at which a controller can be killed, after it was killed there."""
    for dies_after in (False, True):
        call = 0
        while True:
            world, call = make(), call + 1
            world.death.dies_at, world.death.dies_after = call, dies_after
            try:
                run(world)
            except Killed:
                assert world.fleet.violations == []
                world.death.dies_at = 0
                yield world
            else:
                assert call > 15  # the moments were really there
                break


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], World]:
    numbers = iter(range(10_000))
    return lambda: World(tmp_path / str(next(numbers)))


def at_the_second_step(world: World, *observations: Observation) -> None:
    world.observer.observations = {1: [make_observation("hold", "wait"), *observations]}


def begin(world: World) -> None:
    at_the_second_step(world)
    world.roll_out().canary()


def test_a_killed_promotion_is_finished_by_the_next_controller(worlds: Callable[[], World]) -> None:
    for world in worlds_after_each_kill(worlds, begin):
        began = world.rollouts.latest()
        record = began if began and began.state.final else world.roll_out().canary()
        assert world.is_promoted(), (began and began.state, world.fleet.violations)
        assert began is None or record.id == began.id  # gone on with, not begun again
        assert world.verdict(record).verdict == "promoted"
        assert len(world.rollouts.ids()) == 1


def test_a_killed_rollback_is_finished_by_the_next_controller(worlds: Callable[[], World]) -> None:
    def run(world: World) -> None:
        at_the_second_step(world, make_observation("roll_back", "NaN"))
        world.roll_out().canary()

    for world in worlds_after_each_kill(worlds, run):
        world.observer.observations = {step: [make_observation("roll_back", "NaN")] for step in (0, 1, 2)}
        record = world.roll_out().canary()
        assert world.is_back(), (record.state, world.fleet.violations)
        assert (world.verdict(record).verdict, record.state.reason) == ("rolled_back", "NaN")


def test_a_killed_rollout_can_be_aborted_in_every_phase(worlds: Callable[[], World]) -> None:
    for world in worlds_after_each_kill(worlds, begin):
        if world.rollouts.unfinished() is None:
            continue
        record = world.roll_out().rollback("enough")
        assert world.is_back(), (record.state, world.fleet.violations)
        assert (record.state.phase, record.state.reason) == (Phase.ABORTED, "enough")


def test_a_controller_killed_while_resuming_is_resumed(worlds: Callable[[], World]) -> None:
    for at in range(1, 40, 3):
        world = worlds()
        for number in (at, 5, 3, 7):
            world.death.dies_at, world.death.moments = number, 0
            try:
                begin(world)
            except Killed:
                continue
            break
        world.death.dies_at = 0
        if world.rollouts.unfinished() is not None:
            world.roll_out().canary()
        assert world.is_promoted()


def test_the_stack_may_go_down_with_the_controller(worlds: Callable[[], World]) -> None:
    for world in worlds_after_each_kill(worlds, begin):
        if world.rollouts.unfinished() is None:
            continue
        world.fleet.ready.clear()  # stopped, and started again without having waited for anything
        world.roll_out().canary()
        assert world.fleet.route_now == Route(stable=2)
        assert set(world.fleet.deployed) == {2}


def test_time_without_a_controller_is_not_counted_and_clocks_may_jump(world: World) -> None:
    at_the_second_step(world)
    world.observer.observations[1].append(make_observation("hold", "wait"))
    kill_at = 2

    def die(record: RolloutRecord) -> None:
        if len(world.observer.analyses) > kill_at:
            raise Killed

    world.on_change = die
    with pytest.raises(Killed):
        world.roll_out().canary()
    unfinished = world.rollouts.latest()
    assert unfinished is not None
    world.now -= 1_000_000.0  # another machine's monotonic clock, say
    world.on_change = lambda _: None
    record = world.roll_out().canary()
    assert unfinished.elapsed_seconds <= record.elapsed_seconds < unfinished.elapsed_seconds + 10
    moments = [change.elapsed_seconds for change in record.history]
    assert moments == sorted(moments)


def test_a_rollout_keeps_the_limits_it_began_with(world: World) -> None:
    world.death.dies_at = 12
    with pytest.raises(Killed):
        world.roll_out().canary()
    record = world.roll_out(Canary(steps=(100,))).canary()
    assert record.policy == POLICY
    assert world.percents()[:3] == [5, 50, 100] or 50 in world.percents()


def test_another_version_is_refused_until_the_unfinished_rollout_ends(world: World) -> None:
    world.death.dies_at = 8
    with pytest.raises(Killed):
        world.roll_out().canary()
    world.models.add(3)
    with pytest.raises(
        RolloutError,
        match=r"of version 2 lost its controller and is not over\. make deploy-canary SPEC=",
    ):
        world.roll_out().canary(3)


# --- told by people


def during(world: World, phase: Phase, act: Callable[[], object]) -> None:
    """Run an action once, when the rollout has reached a phase."""
    pending_actions = [act]

    def notice(record: RolloutRecord) -> None:
        if record.state.phase is phase and pending_actions:
            pending_actions.pop()()

    world.on_change = notice


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "phase",
    [
        Phase.VERIFYING,
        Phase.STARTING,
        Phase.LOAD_TESTING,
        Phase.SHIFTING,
        Phase.WATCHING,
        Phase.PROMOTING,
        Phase.CONFIRMING,
        Phase.DRAINING,
    ],
)
def test_a_signal_aborts_and_restores_the_former_version(world: World, number: signal.Signals, phase: Phase) -> None:
    handler = signal.getsignal(number)
    during(world, phase, lambda: os.kill(os.getpid(), number))
    record = world.roll_out().canary()
    assert world.is_back()
    assert (record.state.phase, record.state.reason) == (Phase.ABORTED, f"interrupted by {number.name}")
    assert signal.getsignal(number) is handler


def test_a_signal_cuts_waiting_for_a_server_short(world: World) -> None:
    world.fleet.on_wait = lambda: os.kill(os.getpid(), signal.SIGTERM)
    record = world.roll_out().canary()
    assert world.is_back()
    assert record.state.phase is Phase.ABORTED
    assert 2 not in world.fleet.ready  # it was not waited for


@pytest.mark.timeout(60)
@pytest.mark.parametrize("slow_call", ["observe_step", "total"])
def test_a_signal_ends_a_rollout_within_a_pods_grace_period_whatever_the_logs_take(
    world: World, monkeypatch: pytest.MonkeyPatch, slow_call: str
) -> None:
    """A pod is killed 30 s after its signal; reading the log from an object store may take minutes."""
    monkeypatch.setattr(world.observer, slow_call, lambda *_: time.sleep(300))
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    during(world, Phase.WATCHING, timer.start if slow_call == "observe_step" else timer.function)
    started = time.monotonic()
    record = world.roll_out().canary()
    assert world.is_back()
    assert (record.state.phase, record.state.reason) == (Phase.ABORTED, "interrupted by SIGTERM")
    assert time.monotonic() - started < 30


def test_a_signal_does_not_interrupt_a_rollback(world: World) -> None:
    world.observer.observations = {0: [make_observation("roll_back", "NaN")]}
    during(world, Phase.ROLLING_BACK, lambda: os.kill(os.getpid(), signal.SIGINT))
    record = world.roll_out().canary()
    assert world.is_back()
    assert (record.state.phase, record.state.reason) == (Phase.ROLLED_BACK, "NaN")


def test_a_first_model_can_be_withdrawn(tmp_path: Path) -> None:
    world = World(tmp_path, first=True)
    during(world, Phase.PROMOTING, lambda: os.kill(os.getpid(), signal.SIGTERM))
    record = world.roll_out().canary()
    assert (record.state.phase, world.fleet.route_now, world.fleet.deployed) == (Phase.ABORTED, None, {})


@pytest.mark.parametrize("champion", [None, 2])
def test_a_withdrawn_first_model_loses_the_champion_alias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, champion: int | None
) -> None:
    world = World(tmp_path, first=True)
    world.models.set_alias("champion", champion)  # 2: as the registry has it right after the first blessing

    def set_alias_and_die(alias: Alias, version: int | None) -> None:
        world.models.aliases[alias] = version or 0
        raise Killed

    with monkeypatch.context() as death, pytest.raises(Killed):
        death.setattr(world.models, "set_alias", set_alias_and_die)
        world.roll_out().canary()
    assert world.models.version_of("champion") == 2
    assert world.roll_out().rollback("enough").state.phase is Phase.ABORTED
    assert (world.fleet.route_now, world.models.version_of("champion")) == (None, None)


def test_only_one_controller_works_at_a_time(world: World) -> None:
    refused: list[str] = []

    def start_second_controller() -> None:
        with pytest.raises(RolloutError) as error:
            world.roll_out().canary()
        refused.append(str(error.value))

    during(world, Phase.WATCHING, start_second_controller)
    record = world.roll_out().canary()
    assert world.is_promoted()
    assert refused == [
        f"rollout {record.id} of version 2 is under way (watching, 5 % of the users). Wait for it, or follow it with"
        " make canary-status SPEC=demo; make promote SPEC=demo and make rollback SPEC=demo end it at once."
    ]


@pytest.mark.parametrize(("order", "ends"), [("rollback", Phase.ABORTED), ("promote", Phase.PROMOTED)])
def test_a_running_controller_executes_a_command_of_another_process(world: World, order: str, ends: Phase) -> None:
    world.observer.observations = {0: [make_observation("hold", "wait")] * 10_000}
    commanded: list[RolloutRecord] = []

    def command() -> None:
        commanded.append(getattr(world.roll_out(), order)("because", seconds=20.0))

    thread = threading.Thread(target=command)
    during(world, Phase.WATCHING, thread.start)
    slow = world.sleep
    world.sleep = lambda seconds: (slow(seconds), time.sleep(0.002))[0]  # type: ignore[method-assign]
    record = world.roll_out().canary()
    thread.join()
    assert (record.state.phase, record.state.reason) == (ends, "because")
    assert commanded == [record]
    assert world.is_promoted() if order == "promote" else world.is_back()


@pytest.mark.parametrize("moment", ["the former servers stop", "the evidence is written"])
def test_rollback_during_a_promotion_takes_effect(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    rolled_back: list[RolloutRecord] = []

    def command() -> None:
        rolled_back.append(world.roll_out().rollback("it is odd", seconds=20.0))

    thread = threading.Thread(target=command)

    def roll_back_now() -> None:
        if thread.ident is None:
            running = world.rollouts.unfinished()
            assert running is not None
            thread.start()
            while world.rollouts.pending_command(running.id) is None:
                time.sleep(0.002)

    if moment == "the former servers stop":
        retire = world.fleet.retire
        monkeypatch.setattr(world.fleet, "retire", lambda version: (roll_back_now(), retire(version)))
    else:
        conclude = world.rollouts.write_verdict
        monkeypatch.setattr(
            world.rollouts, "write_verdict", lambda rollout, verdict: (roll_back_now(), conclude(rollout, verdict))
        )
    record = world.roll_out().canary()
    thread.join()
    assert world.is_back()
    assert (rolled_back[0].state.reason, rolled_back[0].is_rolled_back) == ("it is odd", True)
    if moment == "the former servers stop":
        assert (record.state.phase, rolled_back) == (Phase.ABORTED, [record])
    else:  # too late for this rollout: another one leads back
        assert (record.state.phase, rolled_back[0].returning, rolled_back[0].state.candidate) == (
            Phase.PROMOTED, True, 1,
        )  # fmt: skip


def test_rollback_of_a_promotion_with_no_former_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, first=True)
    record = world.roll_out().canary()
    unfinished = record.model_copy(update={"state": record.state.model_copy(update={"phase": Phase.DRAINING})})
    monkeypatch.setattr(world.rollouts, "unfinished", lambda: unfinished)  # it is over right after this was read
    with pytest.raises(
        RolloutError, match=r"was over \(promoted\) before the rollback reached it, and it is the first"
    ):
        world.roll_out().rollback()
    assert world.is_promoted()


_PROMOTED = {Phase.PROMOTING, Phase.CONFIRMING, Phase.DRAINING}


def test_a_command_resumes_the_rollout_of_a_dead_controller(worlds: Callable[[], World]) -> None:
    for world in worlds_after_each_kill(worlds, begin):
        unfinished = world.rollouts.unfinished()
        if unfinished is None or unfinished.state.reached in _PROMOTED:
            continue
        record = world.roll_out().promote("I know it")
        assert world.is_promoted(), record.state
        assert (record.state.manual, record.state.reason) == (True, "I know it")


def test_promoting_without_a_rollout_takes_the_candidate_unwatched(world: World) -> None:
    record = world.roll_out().promote("I know it")
    assert world.is_promoted()
    assert (record.state.manual, record.steps, world.percents()) == (True, (), [0])
    assert world.verdict(record).reason == "I know it"


def test_a_rollback_without_a_rollout_returns_to_the_previous_version(world: World) -> None:
    world.models.add(3)
    world.roll_out().canary()
    world.roll_out().canary(3)
    back = world.roll_out().rollback("3 is odd")
    assert (back.state.phase, back.returning, back.state.candidate) == (Phase.PROMOTED, True, 2)
    evidence = world.verdict(back)
    assert (evidence.verdict, evidence.champion, evidence.candidate) == ("returned", 3, 2)
    assert world.is_promoted()
    world.roll_out().rollback("2 is odd too")  # not 3 again
    assert (world.fleet.route_now, world.models.aliases["champion"]) == (Route(stable=1), 1)
    with pytest.raises(RolloutError, match=r"version 1 serves, no rollout is under way.*nothing to return to"):
        world.roll_out().rollback()


def test_a_retired_version_is_returned_to_only_by_name(world: World) -> None:
    world.roll_out().canary()
    world.models.retired[1] = "it reads paid"
    no_version = "no version that it replaced is left that was not retired"
    hindrance = rf"version 2 serves, .* {no_version}: there is nothing to return to\. Nothing was"
    command = r"shortlist rollback demo --version 1 returns .* \(served before: 1 \(retired: it reads paid\)\)"
    with pytest.raises(RolloutError, match=rf"{hindrance} changed\. .*{command}"):
        world.roll_out().rollback()
    assert world.is_promoted()
    back = world.roll_out().rollback(version=1)
    assert (world.fleet.route_now, world.models.aliases["champion"]) == (Route(stable=1), 1)
    assert "version 1 was retired: it reads paid" in back.notices
    assert headline(back) == "version 1 (xgboost) serves everybody again in place of version 2"


def test_a_rollback_passes_over_retired_versions(world: World) -> None:
    world.models.add(3)
    world.models.add(4)
    for version in (2, 3, 4):
        world.roll_out().canary(version)
    world.models.retired[2] = "it reads dwell"
    world.roll_out().rollback()
    assert world.fleet.route_now == Route(stable=3)
    world.roll_out().rollback()
    assert (world.fleet.route_now, world.models.aliases["champion"]) == (Route(stable=1), 1)
    assert describe_older_versions(world.rollouts, world.models, 1) == (
        ".venv/bin/shortlist rollback demo --version 3 returns to a version by its number"
        " (served before: 3, 4, 2 (retired: it reads dwell))"
    )


def test_a_version_is_no_rollback_target_of_its_own(world: World) -> None:
    for version in (2, 1, 2):
        world.roll_out().canary(version)
    world.models.retired[1] = "it reads dwell"
    with pytest.raises(RolloutError, match=r"version 2 serves, .* no version that it replaced is left that was not"):
        world.roll_out().rollback()


def test_versions_that_were_rolled_back_from_are_no_versions_that_were_replaced(world: World) -> None:
    for version in (3, 4):
        world.models.add(version)
    for version in (2, 3):
        world.roll_out().canary(version)
    world.roll_out().rollback(version=1)
    world.roll_out().canary(4)
    world.models.retired[1] = "it reads dwell"
    hindrance = r"version 4 serves, .* no version that it replaced is left that was not retired: .*--version 3 returns"
    with pytest.raises(RolloutError, match=hindrance):
        world.roll_out().rollback()


def test_a_rollback_passes_over_versions_that_were_deleted(world: World) -> None:
    world.models.add(3)
    for version in (2, 3):
        world.roll_out().canary(version)
    shutil.rmtree(world.models.folder / "2")
    world.roll_out().rollback()
    assert world.fleet.route_now == Route(stable=1)
    assert describe_older_versions(world.rollouts, world.models, 1).endswith(
        "--version 3 returns to a version by its number (served before: 3)"
    )


def test_a_version_that_never_served_is_no_rollback_target(world: World) -> None:
    world.models.add(3)
    back = world.roll_out().rollback(version=3)
    assert (back.state.phase, back.served_before) == (Phase.PROMOTED, False)
    assert headline(back) == "version 3 (xgboost) serves everybody by hand in place of version 1"


def test_a_version_without_its_features_is_returned_to_only_degraded(world: World) -> None:
    world.roll_out().canary()
    world.unpublished = {1: ["the published features have no 'users:paid'"]}
    command = "shortlist rollback demo --version 1 --degraded returns to it all the same"
    for version in (None, 1):
        with pytest.raises(RolloutError, match=rf"version 1 looks up .*'users:paid'.*Nothing was changed.*{command}"):
            world.roll_out().rollback(version=version)
        assert world.is_promoted()
    back = world.roll_out().rollback(version=1, degraded=True)
    assert world.fleet.route_now == Route(stable=1)
    assert "have no 'users:paid'. .venv/bin/shortlist refresh demo then counts" in back.notices[0]


def test_a_rollback_names_the_former_versions(world: World) -> None:
    world.models.add(3)
    world.roll_out().canary()
    world.roll_out().canary(3)
    unreadable = world.rollouts.folder / world.rollouts.new_id()
    unreadable.mkdir()
    (unreadable / "state.json").write_text("{}")
    line = ".venv/bin/shortlist rollback demo --version 2 returns to a version by its number (served before: 2, 1)"
    assert describe_older_versions(world.rollouts, world.models, 3) == line


def test_there_is_nothing_to_roll_back_when_nothing_serves(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="nothing serves, so there is nothing to roll back; make serve SPEC=demo"):
        World(tmp_path, first=True).roll_out().rollback()


def test_a_killed_process_frees_the_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from shortlist.rollout.rollouts import Rollouts\n"
        "with Rollouts(Path(sys.argv[1]), 'demo').lock():\n    print('held', flush=True); time.sleep(60)"
    )
    rollouts = Rollouts(tmp_path, "demo")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            assert rollouts.is_locked()
            with pytest.raises(RolloutError, match="another rollout is just beginning or ending"), rollouts.lock():
                pass
        finally:
            process.kill()
    assert not rollouts.is_locked()
    with rollouts.lock():
        assert rollouts.is_locked()
