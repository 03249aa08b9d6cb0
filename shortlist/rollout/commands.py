"""What a user can ask for: roll out, promote now, roll back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from shortlist.rollout.candidates import newest_candidate
from shortlist.rollout.controller import Controller
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.operator_commands import OperatorCommand
from shortlist.rollout.phases import Phase, RolloutState
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError, Rollouts
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import Canary

_OBEYED_SECONDS: Final = 180.0


class RolloutCommands:
    """The rollouts of one spec.

    Args:
        rollouts: Where they are kept.
        policy: Steps, patience and limits of new ones.
        tools: What a controller works with.
        labels: Further labels of the spec (`data.labels`), those of the policy's guards among them.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        policy: Canary,
        tools: ControllerContext,
        labels: Mapping[str, FurtherLabel] | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._policy = policy
        self._tools = tools
        self._guarded = {name: (labels or {})[name] for name in policy.guards}

    def canary(self, version: int | None = None) -> RolloutRecord:
        """Roll a version out step by step; a rollout whose controller died is brought to its end instead.

        Args:
            version: Which one; the registry's candidate by default.

        Returns:
            The rollout, which is over.

        Raises:
            ShortlistError: It cannot begin, and nothing was changed; or its rollback failed.
        """
        with self._rollouts.held():
            unfinished = self._rollouts.unfinished()
            if unfinished is None:
                return self._begin(version)
            if version not in {None, unfinished.state.candidate}:
                raise RolloutError(
                    f"rollout {unfinished.id} of version {unfinished.state.candidate} lost its controller and is not"
                    " over. make deploy-canary without a version resumes it, make rollback ends it."
                )
            return self._drive(unfinished)

    def promote(self, reason: str = "promoted by hand", seconds: float = _OBEYED_SECONDS) -> RolloutRecord:
        """Promote now what is being rolled out, or else the candidate, without watching.

        Args:
            reason: Kept with the rollout.
            seconds: How long a running controller may take to obey.

        Raises:
            ShortlistError: There is nothing to promote, or the controller did not obey.
        """
        return self._order("promote", reason, seconds) or self._alone("promote", reason)

    def rollback(self, reason: str = "rolled back by hand", seconds: float = _OBEYED_SECONDS) -> RolloutRecord:
        """End what is being rolled out, or else return to the version that served before the present one.

        A rollout that was promoted before its controller could obey is undone by a rollout of the former version.

        Args:
            reason: Kept with the rollout.
            seconds: How long a running controller may take to obey.

        Raises:
            ShortlistError: There is nothing to return to, or the controller did not obey.
        """
        return self._order("rollback", reason, seconds) or self._alone("rollback", reason)

    def _order(self, wish: Literal["promote", "rollback"], reason: str, seconds: float) -> RolloutRecord | None:
        """Have the unfinished rollout's controller obey, or obey in its place; None when all are over."""
        running = self._rollouts.unfinished()
        if running is None:
            return None
        self._rollouts.order(running.id, OperatorCommand(wish=wish, reason=reason))
        with self._rollouts.held(seconds):  # the living controller frees it when it is done, a dead one has
            record = self._rollouts.read(running.id)
            if not record.state.final:
                record = self._drive(record)
            if wish == "rollback" and not record.is_rolled_back:
                return self._undo_promotion(record, reason)
            return record

    def _undo_promotion(self, record: RolloutRecord, reason: str) -> RolloutRecord:
        """Return to the former version of a rollout that was over before its controller could obey a rollback.

        Raises:
            ShortlistError: There is no former version, or the rollout was itself a rollback; or this one failed.
        """
        state = record.state
        if record.returning or state.former is None:
            why = "it is the first version" if state.former is None else "the rollout was itself a rollback"
            raise RolloutError(
                f"rollout {record.id} was over ({state.phase.value}) before the rollback reached it, and {why}. Nothing"
                " was changed; make canary-status shows it, make deploy-canary rolls out another version."
            )
        return self._begin(state.former, straight=True, manual=True, returning=True, reason=reason)

    def _alone(self, wish: Literal["promote", "rollback"], reason: str) -> RolloutRecord:
        with self._rollouts.held():
            if wish == "promote":
                return self._begin(None, straight=True, manual=True, reason=reason)
            return self._begin(self._before(), straight=True, manual=True, returning=True, reason=reason)

    def _before(self) -> int:
        """Return the version that served before the one that serves now."""
        route = self._tools.fleet.serving()
        if route is None:
            raise RolloutError("nothing serves, so there is nothing to roll back; make deploy-canary, or make serve")
        for record in self._rollouts.newest_first():
            state = record.state
            led_here = state.phase is Phase.PROMOTED and state.candidate == route.stable and not record.returning
            if led_here and state.former is not None:
                return state.former
        raise RolloutError(
            f"version {route.stable} serves, no rollout is under way, and none before it led away from another version:"
            " there is nothing to return to"
        )

    def _begin(
        self,
        version: int | None,
        straight: bool = False,
        manual: bool = False,
        returning: bool = False,
        reason: str = "",
    ) -> RolloutRecord:
        models = self._tools.models
        candidate = version if version is not None else newest_candidate(models, self._rollouts.spec)
        former, champion = self._serving_version(candidate), models.version_of("champion")
        if former is not None and not straight and len(self._policy.steps) == 1:
            raise RolloutError(
                "serving.canary.steps: [100] leaves no stable track to compare a canary with; declare a smaller step"
                " before it, or take it over without evidence: make promote"
            )
        rollout = self._rollouts.new_id()
        with self._rollouts.temporary_folder() as files:
            checked = self._tools.blessed(models, candidate, self._tools.store, Path(files))
        state = RolloutState(
            rollout=rollout,
            candidate=candidate,
            former=former,
            champion=champion,
            stable=former,
            steps=self._policy.steps,
            straight=straight,
            manual=manual,
            reason=reason,
        )
        return self._drive(
            RolloutRecord(
                spec=self._rollouts.spec,
                state=state,
                kind=checked.kind,
                digest=checked.digest,
                policy=self._policy,
                labels=self._guarded,
                returning=returning,
            )
        )

    def _serving_version(self, candidate: int) -> int | None:
        """Return the version that serves, or should; None when this is the first model ever."""
        route, champion = self._tools.fleet.serving(), self._tools.models.version_of("champion")
        if route is None:
            return champion if champion != candidate else None
        if route.stable == candidate:
            raise RolloutError(
                f"version {candidate} serves everybody already;"
                f" make run SPEC={self._rollouts.spec} makes a new candidate"
            )
        return route.stable

    def _drive(self, record: RolloutRecord) -> RolloutRecord:
        return Controller(self._rollouts, self._tools, record).run()
