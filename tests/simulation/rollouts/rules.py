"""Invariants of every simulated rollout; the first broken one ends the simulation."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from shortlist.rollout.deployment import Route
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import REVERTING_PHASES, Phase, RolloutState
from shortlist.rollout.verdict import EVIDENCE, RolloutVerdict
from shortlist.spec.serving import Canary
from tests.simulation.rollouts.history import History

USERS = tuple(f"user {number}" for number in range(40))
_TOLERANCE = 1e-6


class BrokenRuleError(BaseException):
    """A rule is broken; no `Exception`, so that no controller handles it as a fault."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class ServerState(Protocol):
    """Deployed and ready servers, and the present route."""

    deployed: set[int]
    ready: set[int]
    now: Route | None


class AliasState(Protocol):
    """Aliases of the registry."""

    aliases: dict[str, int]


class RecordState(Protocol):
    """Written records."""

    texts_by_name: dict[str, str]


class WorldState(Protocol):
    """State of a world that the rules read."""

    history: History
    policy: Canary
    now: float
    rival: bool
    """A process other than the controller that holds the lock is running."""
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


class RolloutInvariants:
    """Checks one world at every call that changes routes, aliases, servers or records, and at the end of a rollout."""

    def __init__(self, world: WorldState) -> None:
        self._world = world
        self.on_canary: dict[str, frozenset[str]] = {}
        """Users of the canary by rollout."""
        self.last_served: dict[int, float] = {}
        """Time at which each version last had users."""

    def expect(self, holds: bool, rule: str, message: str) -> None:
        """Raise `BrokenRuleError` unless a condition holds."""
        if not holds:
            raise BrokenRuleError(rule, message)

    def check_route(self, route: Route | None) -> None:
        """Check a route before it is applied."""
        self.expect(not self._world.rival, "one controller", f"another process sends users by {route}")
        previous = self._world.servers.now
        for version in {previous.stable, previous.canary} - {None} if previous else set():
            assert version is not None
            self.last_served[version] = self._world.now
        if route is None:
            state = self._state()
            self.expect(state.former is None, "users are served", "nobody gets anything though a version served before")
        elif route.canary is not None:
            self._check_split(route)
        else:
            self._check_full_route(route)

    def _check_split(self, route: Route) -> None:
        state, is_current = self._state(), route == self._world.servers.now
        ready = {route.stable, route.canary} <= self._world.servers.ready
        self.expect(ready, "servers", f"{route} sends users to servers that are not ready")
        self.expect(route.rollout == state.rollout, "sticky users", f"salt {route.rollout}, not {state.rollout}")
        self.expect(
            (route.stable, route.canary) == (state.former, state.candidate), "two tracks", f"{route} in {state}"
        )
        is_recorded = state.phase in {Phase.SHIFTING, Phase.WATCHING}
        self.expect(is_recorded and route.percent == state.percent, "written down first", f"{route} in {state}")
        passed_steps = self._world.proceeded.get(state.rollout, set())
        allowed = all(step in passed_steps for step in range(state.step))
        self.expect(
            allowed and route.percent == state.steps[state.step] and route.step == state.step,
            "share within the declared step", f"{route} after {sorted(passed_steps)} were passed",
        )  # fmt: skip
        is_tested = state.candidate in self._world.load_tested
        self.expect(is_tested, "no users without a load test", f"version {state.candidate} was never put under load")
        self.expect(
            is_current or state.candidate not in self._world.tampered, "served files", "users get swapped files"
        )
        users = frozenset(user for user in USERS if crc32(f"{route.rollout}|{user}".encode()) % 100 < route.percent)
        previous_users = self.on_canary.get(state.rollout, frozenset())
        self.expect(
            previous_users <= users,
            "sticky users",
            f"{sorted(previous_users - users)} left the canary though its share grew",
        )
        self.on_canary[state.rollout] = users

    def _check_full_route(self, route: Route) -> None:
        record, now = self._world.record, self._world.servers.now
        if record is None or record.state.final:
            raise BrokenRuleError("written down first", f"{route} before a rollout is written down")
        state = record.state
        if route.stable == state.candidate:
            self.check_promotion(state)
            is_recorded = state.phase in {Phase.PROMOTING, Phase.CONFIRMING, Phase.DRAINING}
            self.expect(is_recorded, "written down first", f"{route} in {state}")
            self.expect(route.stable in self._world.servers.ready, "servers", f"{route}: it is not ready")
            is_current = now is not None and route.stable == now.stable
            self.expect(
                is_current or route.stable not in self._world.tampered, "served files", "users get swapped files"
            )
            return
        self.expect(route.stable == state.former, "two tracks", f"{route} in {state}")
        is_deployed = route.stable in self._world.servers.deployed
        self.expect(is_deployed, "servers", f"{route}: version {route.stable} is not deployed")
        is_change = now is not None and now != route
        is_early = is_change and state.phase not in REVERTING_PHASES and not self._world.store_failed
        self.expect(not is_early, "sticky users", f"{route} outside a rollback, in {state.phase}")

    def check_alias(self, version: int | None) -> None:
        """Check the champion alias before it is moved."""
        state = self._state()
        self.expect(not self._world.rival, "one controller", f"another process calls version {version} champion")
        if version == state.candidate and version != state.champion:
            self.check_promotion(state)

    def check_retire(self, version: int) -> None:
        """Check a version before its servers are stopped."""
        self.expect(not self._world.rival, "one controller", f"another process stops version {version}")
        now = self._world.servers.now
        has_users = now is not None and version in {now.stable, now.canary}
        self.expect(not has_users, "servers", f"version {version} is stopped under its users")
        has_drained = (
            self._world.now - self.last_served.get(version, -1e9) + _TOLERANCE >= self._world.policy.drain_seconds
        )
        first = self._state().former is None
        self.expect(has_drained or first, "draining", f"version {version} is stopped while requests are under way")

    def check_promotion(self, state: RolloutState) -> None:
        """Check that a candidate may get all users."""
        passed = self._world.proceeded.get(state.rollout, set()) >= set(range(len(state.steps)))
        by_hand = state.rollout in self._world.by_hand
        is_justified = state.former is None or passed or by_hand
        self.expect(is_justified, "no promotion without evidence", f"version {state.candidate} in {state.phase}")
        is_tested = state.candidate in self._world.load_tested
        self.expect(is_tested, "no users without a load test", f"version {state.candidate} was never put under load")

    def check_record(self, record: RolloutRecord) -> None:
        """Check a written record against the previous one."""
        self.expect(not self._world.rival, "one controller", "another process writes the rollout's state")
        spent = self._world.alive
        self.expect(record.elapsed_seconds <= spent + _TOLERANCE, "time", "time without a controller is counted")
        previous = self._world.record
        if previous is None or previous.id != record.id:
            return
        self.expect(record.elapsed_seconds >= previous.elapsed_seconds, "time", "time goes backwards")
        old, new = previous.state, record.state
        if old.phase in REVERTING_PHASES:
            ends = {Phase.ROLLING_BACK: Phase.ROLLED_BACK, Phase.ABORTING: Phase.ABORTED}[old.phase]
            stays_on_course = new.phase in {old.phase, ends} and new.reason == old.reason
            self.expect(stays_on_course, "rollbacks are not cancelled", f"from {old.phase} to {new.phase}")
        if old.phase is Phase.DRAINING and new.phase is Phase.ROLLING_BACK:
            raise BrokenRuleError("a promotion stays", "a failure after it undoes it")

    def check_final(self, record: RolloutRecord) -> None:
        """Check route, alias, servers and verdict after a rollout."""
        state, world = record.state, self._world
        route, alias = world.servers.now, world.models.aliases.get("champion")
        text = world.store.texts_by_name.get(f"{record.id}/{EVIDENCE}")
        self.expect(text is not None, "evidence", "a rollout is over without its evidence")
        verdict = RolloutVerdict.model_validate_json(text or "")
        of_return = {"promoted": "returned", "rolled_back": "return_failed", "aborted": "return_aborted"}
        expected = of_return[state.phase.value] if record.returning else state.phase.value
        self.expect(verdict.verdict == expected, "evidence", f"{verdict.verdict} of {state.phase}")
        if state.phase is Phase.PROMOTED:
            self.check_promotion(state)
            self.expect(route == Route(stable=state.candidate), "alias and route", f"{route} after a promotion")
            self.expect(alias == state.candidate, "alias and route", f"champion {alias} after a promotion")
            is_alone = world.servers.deployed == {state.candidate}
            self.expect(is_alone, "one champion", f"{sorted(world.servers.deployed)} are deployed after a promotion")
            self.expect((state.percent, state.stable) == (100, state.candidate), "record", f"{state}")
            bad = world.history.bad_from is not None and state.former is not None
            wrong = (bad and record.id not in world.by_hand) or (world.history.slow and not record.returning)
            self.expect(not wrong, "no promotion without evidence", "a bad candidate was promoted")
            return
        self.expect(state.percent == 0, "record", f"{state.percent} % of the users after a rollback")
        untouched = state.reached is Phase.VERIFYING
        expected_route = None if state.former is None else Route(stable=state.former)
        self.expect(
            route == (world.route_before if untouched else expected_route), "alias and route", f"{route} after {state}"
        )
        has_moved_alias = state.reached in {Phase.PROMOTING, Phase.CONFIRMING, Phase.DRAINING}
        lost_alias = state.former is None and has_moved_alias
        champion = None if lost_alias else state.champion
        self.expect(alias == champion, "alias and route", f"champion {alias}, not {champion}, after {state.phase}")
        is_stopped = untouched or state.candidate not in world.servers.deployed
        self.expect(is_stopped, "one champion", f"version {state.candidate} runs on after a rollback")
        is_undisturbed = world.history.bad_from is None and not world.history.slow and not world.disturbed
        self.expect(not is_undisturbed, "a good candidate is promoted", f"{state.phase}: {state.reason}")

    def _state(self) -> RolloutState:
        record = self._world.record
        if record is None:
            raise BrokenRuleError("written down first", "something is changed before a rollout is written down")
        return record.state
