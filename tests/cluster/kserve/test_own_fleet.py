"""A fleet that only this file knows takes a release from its blessing to all users, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Self

import pytest
import yaml
from kserve_world import FolderModels, Script

from shortlist.cli.serving import _target_deployer
from shortlist.contracts import ShortlistError
from shortlist.deployment.deployer import Deployer
from shortlist.deployment.fleets import FLEETS
from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.fleet import Observer
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.load import load_spec
from shortlist.spec.runtime import FleetSection
from shortlist.storage.artefacts import IntegrityError, folder_digest
from shortlist.tracking.run_context import RunContext

ROOT = Path(__file__).parents[3]
CANARY = {"steps": [25, 100], "interval_seconds": 1, "drain_seconds": 0}


class Memory(FleetSection):
    """Servers that are entries of a dictionary."""

    connection: ClassVar[str] = f"{__name__}:MemoryConnection"
    kind: Literal["memory"]
    """Its only kind."""
    size: int = 3
    """Most versions at once."""


class MemoryFleet:
    """Versions by number, and who gets which; implements `shortlist.rollout.fleet.Fleet`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.deployed: dict[int, str] = {}
        self.now: Route | None = None
        self.shares: list[tuple[int, int]] = []
        """Canary's version and percent of every route, in order."""

    def serving(self) -> Route | None:
        return self.now

    def deploy(self, deployment: Deployment) -> None:
        if deployment.version not in self.deployed and len(self.deployed) == self.size:
            raise ShortlistError(f"the fleet has room for {self.size} versions")
        self.deployed[deployment.version] = folder_digest(deployment.model_folder)

    def wait_ready(self, version: int) -> None:
        assert version in self.deployed

    def verify(self, version: int) -> None:
        if version not in self.deployed:
            raise IntegrityError(f"version {version} is gone")

    def route(self, route: Route) -> None:
        assert {route.stable, route.canary or route.stable} <= set(self.deployed)
        self.now = route
        self.shares.append((route.canary or route.stable, route.percent))

    def withdraw(self) -> None:
        self.now = None

    def retire(self, version: int) -> None:
        self.deployed.pop(version, None)


class MemoryConnection(FleetConnection):
    """The one fleet of this file."""

    poll_seconds: ClassVar[float] = 0.01
    the_fleet: ClassVar[MemoryFleet]
    bad_step: ClassVar[int | None]

    @classmethod
    def connect(cls, context: FleetContext) -> Self:
        assert isinstance(context.runtime.target, Memory)
        assert cls.the_fleet.size == context.runtime.target.size
        connection = cls()
        connection.fleet = cls.the_fleet
        return connection

    def observe(self, record: RolloutRecord) -> Observer:
        return Script(self.bad_step)

    def load_failures(self, deployment: Deployment) -> Sequence[str]:
        return []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a spec that names the fleet; versions 1 and 2 are blessed, and 1 is the champion."""
    monkeypatch.setitem(FLEETS, "memory", Memory)
    MemoryConnection.the_fleet, MemoryConnection.bad_step = MemoryFleet(2), None
    spec: dict[str, Any] = yaml.safe_load((ROOT / "tests/specs/valid/minimal.yaml").read_text())
    spec |= {"runtime": {"target": {"kind": "memory", "size": 2}}, "serving": {"canary": CANARY}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    models = FolderModels(tmp_path / "registry")
    for version in (1, 2):
        models.add(version)
    models.set_alias("champion", 1)
    models.set_alias("candidate", 2)
    monkeypatch.setattr(RunContext, "tracker", property(lambda _: SimpleNamespace(registry=models)))
    RunsFolder.open(tmp_path / "runs")
    return tmp_path


def deployer_of(project: Path) -> Deployer:
    """Return what the commands use, from the spec on."""
    return _target_deployer(str(project / "spec.yaml"), "memory", project / "runs")


def test_a_release_is_deployed_tried_on_a_share_and_promoted_and_taken_back(project: Path) -> None:
    fleet = MemoryConnection.the_fleet
    models = RunContext(name="demo", stores="stores").tracker.registry
    first = deployer_of(project).canary(1)
    assert (first.state.phase, fleet.now) == (Phase.PROMOTED, Route(stable=1))
    fleet.shares.clear()
    ending = deployer_of(project).after_training("2")
    assert (ending.state, ending.version) == ("promoted", 2), ending.sentence
    assert [share for version, share in fleet.shares if version == 2 and share] == [25, 100]
    assert (fleet.now, models.version_of("champion")) == (Route(stable=2), 2)
    assert fleet.deployed == {2: folder_digest(models.fetch(2).folder)}
    assert deployer_of(project).after_training("2").sentence == "Version 2 serves already"
    back = deployer_of(project).rollback()
    assert (back.state.phase, fleet.now, models.version_of("champion")) == (Phase.PROMOTED, Route(stable=1), 1)


def test_a_release_that_is_not_well_is_rolled_back(project: Path) -> None:
    fleet = MemoryConnection.the_fleet
    deployer_of(project).canary(1)
    MemoryConnection.bad_step = 1
    record = deployer_of(project).canary()
    assert (record.state.phase, record.state.reason) == (Phase.ROLLED_BACK, "4 % of the answers failed")
    assert (fleet.now, set(fleet.deployed)) == (Route(stable=1), {1})


def test_its_name_alone_is_a_section_and_a_wrong_one_is_refused(project: Path) -> None:
    text = (project / "spec.yaml").read_text()
    (project / "spec.yaml").write_text(text.replace("kind: memory", "kind: memry"))
    with pytest.raises(ShortlistError, match="did you mean 'memory'"):
        load_spec(project / "spec.yaml")
    (project / "spec.yaml").write_text(text.replace("size: 2", "size: 3"))
    assert load_spec(project / "spec.yaml").runtime.target == Memory(kind="memory")
