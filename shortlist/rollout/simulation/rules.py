"""What must hold in every history; a rule that is broken ends it."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from shortlist.rollout.deployment import Route
from shortlist.rollout.phases import REVERTING_PHASES, Phase, RolloutState
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.simulation.history import History
from shortlist.rollout.verdict import EVIDENCE, Verdict
from shortlist.spec.serving import Canary

USERS = tuple(f"user {number}" for number in range(40))
_TOLERANCE = 1e-6


class BrokenRuleError(BaseException):
    """A rule does not hold; not an `Exception`, so that no controller takes it for a fault."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class ServerState(Protocol):
    """Which servers there are, and who gets which."""

    deployed: set[int]
    ready: set[int]
    now: Route | None


class AliasState(Protocol):
    """Where the registry's aliases point."""

    aliases: dict[str, int]


class RecordState(Protocol):
    """What is written down."""

    texts_by_name: dict[str, str]


class WorldState(Protocol):
    """What the rules read of a world."""

    history: History
    policy: Canary
    now: float
    rival: bool
    """Another process works than the controller that holds the lock."""
    record: RolloutRecord | None
    route_before: Route | None
    load_tested: set[int]
    tampered: set[int]
    proceeded: dict[str, set[int]]
    by_hand: set[str]
    disturbed: bool
    store_failed: bool

    @property
    def alive(self) -> float:
        """Seconds that controllers worked so far."""

    @property
    def servers(self) -> ServerState:
        """The servers."""

    @property
    def models(self) -> AliasState:
        """The registry."""

    @property
    def store(self) -> RecordState:
        """The records."""


class Rules:
    """Checks of one world, at every call that changes what users get, and when a rollout is over."""

    def __init__(self, world: WorldState) -> None:
        self._world = world
        self.on_canary: dict[str, frozenset[str]] = {}
        """By rollout, the users who got the canary last."""
        self.left: dict[int, float] = {}
        """By version, when users got it last."""

    def expect(self, holds: bool, rule: str, what: str) -> None:
        """Break a rule unless something holds."""
        if not holds:
            raise BrokenRuleError(rule, what)

    def routing(self, route: Route | None) -> None:
        """Check a route that is about to be taken."""
        self.expect(not self._world.rival, "one controller", f"another process sends users by {route}")
        before = self._world.servers.now
        for version in {before.stable, before.canary} - {None} if before else set():
            assert version is not None
            self.left[version] = self._world.now
        if route is None:
            state = self._state()
            self.expect(state.former is None, "users are served", "nobody gets anything though a version served before")
        elif route.canary is not None:
            self._share(route)
        else:
            self._everybody(route)

    def _share(self, route: Route) -> None:
        state, known = self._state(), route == self._world.servers.now
        ready = {route.stable, route.canary} <= self._world.servers.ready
        self.expect(ready, "servers", f"{route} sends users to servers that are not ready")
        self.expect(route.rollout == state.rollout, "sticky users", f"salt {route.rollout}, not {state.rollout}")
        self.expect(
            (route.stable, route.canary) == (state.former, state.candidate), "two tracks", f"{route} in {state}"
        )
        written = state.phase in {Phase.SHIFTING, Phase.WATCHING}
        self.expect(written and route.percent == state.percent, "written down first", f"{route} in {state}")
        done = self._world.proceeded.get(state.rollout, set())
        allowed = all(step in done for step in range(state.step))
        self.expect(
            allowed and route.percent == state.steps[state.step] and route.step == state.step,
            "share within the declared step", f"{route} after {sorted(done)} were passed",
        )  # fmt: skip
        tested = state.candidate in self._world.load_tested
        self.expect(tested, "no users without a load test", f"version {state.candidate} was never put under load")
        self.expect(known or state.candidate not in self._world.tampered, "served files", "users get swapped files")
        users = frozenset(user for user in USERS if crc32(f"{route.rollout}|{user}".encode()) % 100 < route.percent)
        before = self.on_canary.get(state.rollout, frozenset())
        self.expect(before <= users, "sticky users", f"{sorted(before - users)} left the canary though its share grew")
        self.on_canary[state.rollout] = users

    def _everybody(self, route: Route) -> None:
        record, now = self._world.record, self._world.servers.now
        if record is None or record.state.final:
            raise BrokenRuleError("written down first", f"{route} before a rollout is written down")
        state = record.state
        if route.stable == state.candidate:
            self.justified(state)
            written = state.phase in {Phase.PROMOTING, Phase.DRAINING}
            self.expect(written, "written down first", f"{route} in {state}")
            self.expect(route.stable in self._world.servers.ready, "servers", f"{route}: it is not ready")
            known = now is not None and route.stable == now.stable
            self.expect(known or route.stable not in self._world.tampered, "served files", "users get swapped files")
            return
        self.expect(route.stable == state.former, "two tracks", f"{route} in {state}")
        there = route.stable in self._world.servers.deployed
        self.expect(there, "servers", f"{route}: version {route.stable} is not deployed")
        changes = now is not None and now != route
        forward = changes and state.phase not in REVERTING_PHASES and not self._world.store_failed
        self.expect(not forward, "sticky users", f"{route} outside a rollback, in {state.phase}")

    def naming(self, version: int | None) -> None:
        """Check an alias that is about to be moved."""
        state = self._state()
        self.expect(not self._world.rival, "one controller", f"another process calls version {version} champion")
        if version == state.candidate and version != state.champion:
            self.justified(state)

    def retiring(self, version: int) -> None:
        """Check a version whose servers are about to be stopped."""
        self.expect(not self._world.rival, "one controller", f"another process stops version {version}")
        now = self._world.servers.now
        used = now is not None and version in {now.stable, now.canary}
        self.expect(not used, "servers", f"version {version} is stopped under its users")
        drained = self._world.now - self.left.get(version, -1e9) + _TOLERANCE >= self._world.policy.drain_seconds
        first = self._state().former is None
        self.expect(drained or first, "draining", f"version {version} is stopped while requests are under way")

    def justified(self, state: RolloutState) -> None:
        """Check that a candidate may get everybody."""
        passed = self._world.proceeded.get(state.rollout, set()) >= set(range(len(state.steps)))
        by_hand = state.rollout in self._world.by_hand
        may = state.former is None or passed or by_hand
        self.expect(may, "no promotion without evidence", f"version {state.candidate} in {state.phase}")
        tested = state.candidate in self._world.load_tested
        self.expect(tested, "no users without a load test", f"version {state.candidate} was never put under load")

    def saved(self, record: RolloutRecord) -> None:
        """Check a record that was written, against the one before."""
        self.expect(not self._world.rival, "one controller", "another process writes the rollout's state")
        spent = self._world.alive
        self.expect(record.elapsed_seconds <= spent + _TOLERANCE, "time", "time without a controller is counted")
        before = self._world.record
        if before is None or before.id != record.id:
            return
        self.expect(record.elapsed_seconds >= before.elapsed_seconds, "time", "time goes backwards")
        old, new = before.state, record.state
        if old.phase in REVERTING_PHASES:
            ends = {Phase.ROLLING_BACK: Phase.ROLLED_BACK, Phase.ABORTING: Phase.ABORTED}[old.phase]
            kept = new.phase in {old.phase, ends} and new.reason == old.reason
            self.expect(kept, "rollbacks are not cancelled", f"from {old.phase} to {new.phase}")
        if old.phase is Phase.DRAINING and new.phase is Phase.ROLLING_BACK:
            raise BrokenRuleError("a promotion stays", "a failure after it undoes it")

    def over(self, record: RolloutRecord) -> None:
        """Check what a rollout that is over leaves behind."""
        state, world = record.state, self._world
        route, alias = world.servers.now, world.models.aliases.get("champion")
        text = world.store.texts_by_name.get(f"{record.id}/{EVIDENCE}")
        self.expect(text is not None, "evidence", "a rollout is over without its evidence")
        verdict = Verdict.model_validate_json(text or "")
        self.expect(verdict.verdict == state.phase.value, "evidence", f"{verdict.verdict} of {state.phase}")
        if state.phase is Phase.PROMOTED:
            self.justified(state)
            self.expect(route == Route(stable=state.candidate), "alias and route", f"{route} after a promotion")
            self.expect(alias == state.candidate, "alias and route", f"champion {alias} after a promotion")
            one = world.servers.deployed == {state.candidate}
            self.expect(one, "one champion", f"{sorted(world.servers.deployed)} are deployed after a promotion")
            self.expect((state.percent, state.stable) == (100, state.candidate), "record", f"{state}")
            bad = world.history.bad_from is not None and state.former is not None
            wrong = (bad and record.id not in world.by_hand) or (world.history.slow and not record.returning)
            self.expect(not wrong, "no promotion without evidence", "a bad candidate was promoted")
            return
        self.expect(state.percent == 0, "record", f"{state.percent} % of the users after a rollback")
        untouched = state.reached is Phase.VERIFYING
        wanted = None if state.former is None else Route(stable=state.former)
        self.expect(route == (world.route_before if untouched else wanted), "alias and route", f"{route} after {state}")
        gone = state.former is None and state.reached in {Phase.PROMOTING, Phase.DRAINING}
        champion = None if gone else state.champion
        self.expect(alias == champion, "alias and route", f"champion {alias}, not {champion}, after {state.phase}")
        stays = untouched or state.candidate not in world.servers.deployed
        self.expect(stays, "one champion", f"version {state.candidate} runs on after a rollback")
        well = world.history.bad_from is None and not world.history.slow and not world.disturbed
        self.expect(not well, "a good candidate is promoted", f"{state.phase}: {state.reason}")

    def _state(self) -> RolloutState:
        record = self._world.record
        if record is None:
            raise BrokenRuleError("written down first", "something is changed before a rollout is written down")
        return record.state
