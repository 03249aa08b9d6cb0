"""The commands of a user: roll out, promote now, roll back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from shortlist.rollout.candidates import newest_candidate, retirement_reason
from shortlist.rollout.controller import Controller
from shortlist.rollout.controller_context import ControllerContext
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet import Models
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import RolloutError, Rollouts
from shortlist.rollout.states.operator_commands import OperatorCommand
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import Canary

_COMMAND_TIMEOUT_SECONDS: Final = 180.0
_SALT_BYTES: Final = 16


class RolloutCommands:
    """Starts, promotes and rolls back the rollouts of one spec.

    Args:
        rollouts: Records of the rollouts.
        policy: Steps, times and limits of new rollouts.
        context: Servers, registry and checks of a controller.
        labels: Further labels of the spec (`data.labels`), including those that the policy guards.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        policy: Canary,
        context: ControllerContext,
        labels: Mapping[str, FurtherLabel] | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._policy = policy
        self._context = context
        self._guarded_labels = {name: (labels or {})[name] for name in policy.guards}

    def canary(self, version: int | None = None) -> RolloutRecord:
        """Roll a version out step by step; an unfinished rollout whose controller died is resumed instead.

        Args:
            version: Version to roll out; the registry's candidate by default.

        Returns:
            The finished rollout.

        Raises:
            ShortlistError: It cannot begin, and nothing was changed; or its rollback failed.
        """
        with self._rollouts.lock():
            unfinished = self._rollouts.unfinished()
            if unfinished is None:
                return self._start_rollout(version)
            if version not in {None, unfinished.state.candidate}:
                raise RolloutError(
                    f"rollout {unfinished.id} of version {unfinished.state.candidate} lost its controller and is not"
                    f" over. make deploy-canary SPEC={self._rollouts.spec} resumes it, make rollback"
                    f" SPEC={self._rollouts.spec} ends it."
                )
            return self._drive(unfinished)

    def promote(self, reason: str = "promoted by hand", seconds: float = _COMMAND_TIMEOUT_SECONDS) -> RolloutRecord:
        """Promote the version that is being rolled out, or else the candidate, without waiting for evidence.

        Args:
            reason: Written to the rollout's record.
            seconds: Longest wait for a running controller to execute the command.

        Raises:
            ShortlistError: There is nothing to promote, or the controller did not execute the command in time.
        """
        return self._send_command("promote", reason, seconds) or self._start_by_command("promote", reason)

    def rollback(
        self,
        reason: str = "rolled back by hand",
        seconds: float = _COMMAND_TIMEOUT_SECONDS,
        version: int | None = None,
        degraded: bool = False,
    ) -> RolloutRecord:
        """Roll back the unfinished rollout, or else return to the version that served before the present one.

        A rollout that was promoted before its controller read the command is undone by a rollout of its former version.
        A retired version is passed over: it is returned to only where it is named.

        Args:
            reason: Written to the rollout's record.
            seconds: Longest wait for a running controller to execute the command.
            version: Version to return to where no rollout is under way; the one that served before by default.
            degraded: Whether to return to a version some of whose features are not published.

        Raises:
            ShortlistError: There is no version to return to, its features are not published, or the controller did not
                execute the command in time.
        """
        record = self._send_command("rollback", reason, seconds, degraded)
        return record or self._start_by_command("rollback", reason, version, degraded)

    def _send_command(
        self, action: Literal["promote", "rollback"], reason: str, seconds: float, degraded: bool = False
    ) -> RolloutRecord | None:
        """Send a command to the controller of the unfinished rollout, or act in its place; None when there is none."""
        unfinished = self._rollouts.unfinished()
        if unfinished is None:
            return None
        self._rollouts.send_command(unfinished.id, OperatorCommand(action=action, reason=reason))
        with self._rollouts.lock(seconds):  # a running controller releases it at its end, a dead one has released it
            record = self._rollouts.read(unfinished.id)
            if not record.state.final:
                return self._drive(record)
            command = self._rollouts.pending_command(record.id)
            is_overruled = command is not None and command.action != action  # by a newer command
            if action == "rollback" and not record.is_rolled_back and not is_overruled:
                return self._undo_promotion(record, reason, degraded)
            return record

    def _undo_promotion(self, record: RolloutRecord, reason: str, degraded: bool) -> RolloutRecord:
        """Return to the former version of a rollout that was over before its controller read a rollback.

        Raises:
            ShortlistError: There is no former version, the rollout was itself a rollback, or the return failed.
        """
        state = record.state
        if record.returning or state.former is None:
            hindrance = "it is the first version" if state.former is None else "the rollout was itself a rollback"
            raise RolloutError(
                f"rollout {record.id} was over ({state.phase.value}) before the rollback reached it, and {hindrance}."
                f" Nothing was changed; make canary-status SPEC={record.spec} shows it, make deploy-canary"
                f" SPEC={record.spec} rolls out another version."
            )
        return self._return_to(self._previous_version(), reason, degraded)

    def _start_by_command(
        self, action: Literal["promote", "rollback"], reason: str, version: int | None = None, degraded: bool = False
    ) -> RolloutRecord:
        with self._rollouts.lock():
            if action == "promote":
                return self._start_rollout(None, straight=True, manual=True, reason=reason)
            return self._return_to(version if version is not None else self._previous_version(), reason, degraded)

    def _return_to(self, version: int, reason: str, degraded: bool) -> RolloutRecord:
        return self._start_rollout(
            version, straight=True, manual=True, returning=True, reason=reason, degraded=degraded
        )

    def _previous_version(self) -> int:
        """Return the version that served before the one that serves now; retired and deleted ones are passed over."""
        route = self._context.fleet.serving()
        if route is None:
            raise RolloutError(
                f"nothing serves, so there is nothing to roll back; make serve SPEC={self._rollouts.spec}"
            )
        version, has_replaced = route.stable, False
        for record in self._rollouts.newest_first():
            state = record.state
            is_its_promotion = state.phase is Phase.PROMOTED and state.candidate == version and not record.returning
            if not is_its_promotion or state.former is None:
                continue
            version = state.former
            if version == route.stable:
                continue
            if retirement_reason(self._context.models, version) == "":
                return version
            has_replaced = True
        hindrance = "no earlier rollout replaced another version"
        if has_replaced:
            hindrance = "no version that it replaced is left that was not retired"
        raise RolloutError(
            f"version {route.stable} serves, no rollout is under way, and {hindrance}: there is nothing to return to."
            f" Nothing was changed. {describe_older_versions(self._rollouts, self._context.models, route.stable)}"
        )

    def _start_rollout(
        self,
        version: int | None,
        straight: bool = False,
        manual: bool = False,
        returning: bool = False,
        reason: str = "",
        degraded: bool = False,
    ) -> RolloutRecord:
        models = self._context.models
        candidate = version if version is not None else newest_candidate(models, self._rollouts.spec)
        former, champion = self._serving_version(candidate), models.version_of("champion")
        if former is not None and not straight and len(self._policy.steps) == 1:
            raise RolloutError(
                "serving.canary.steps: [100] leaves no stable track to compare a canary with; declare a smaller step"
                f" before it, or take it over without evidence: make promote SPEC={self._rollouts.spec}"
            )
        rollout = self._rollouts.new_id()
        with self._rollouts.temporary_folder() as files:
            deployment = self._context.prepare_blessed(models, candidate, self._context.store, Path(files))
            notices = self._check_return(deployment, degraded) if returning else _describe_unjudged_gates(deployment)
        retirement = "" if former is None else self._retirement_of(former)
        if retirement and not straight:
            notices = (
                *notices,
                f"scores, KPI and guards are not compared with those of the stable track: {retirement}",
            )
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
                kind=deployment.kind,
                digest=deployment.digest,
                salt=secrets.token_hex(_SALT_BYTES),
                policy=self._policy,
                labels=self._guarded_labels,
                returning=returning,
                served_before=not returning or candidate in self._rollouts.served_versions(),
                notices=notices,
                retirement=retirement,
            )
        )

    def _check_return(self, deployment: Deployment, degraded: bool) -> tuple[str, ...]:
        """Return what should be known of a version that is returned to: why it was retired, which features it lacks.

        Raises:
            RolloutError: Features that it looks up are not published, and `degraded` is false.
        """
        spec, version = self._rollouts.spec, deployment.version
        restoring = f".venv/bin/shortlist refresh {spec} then counts and publishes the features of version {version}"
        unpublished = self._context.unpublished_features(deployment)
        if unpublished and not degraded:
            raise RolloutError(
                f"version {version} looks up features that are not published: {'; '.join(unpublished)}. It would count"
                f" them as unknown in every answer. Nothing was changed. .venv/bin/shortlist rollback {spec} --version"
                f" {version} --degraded returns to it all the same; {restoring}"
            )
        notices = tuple(f"version {version} answers without features: {reason}. {restoring}" for reason in unpublished)
        retirement = self._retirement_of(version)
        return (*notices, retirement) if retirement else notices

    def _retirement_of(self, version: int) -> str:
        """Return that a version was retired, and why; empty when it was not."""
        reason = retirement_reason(self._context.models, version)
        return f"version {version} was retired: {reason}" if reason else ""

    def _serving_version(self, candidate: int) -> int | None:
        """Return the version that serves, or the champion when nothing does and it is not retired; None for none."""
        route, models = self._context.fleet.serving(), self._context.models
        champion = models.version_of("champion")
        if route is None:
            return champion if champion not in {None, candidate} and not models.retirement_of(champion) else None
        if route.stable == candidate:
            raise RolloutError(
                f"version {candidate} serves everybody already;"
                f" make run SPEC={self._rollouts.spec} makes a new candidate"
            )
        return route.stable

    def _drive(self, record: RolloutRecord) -> RolloutRecord:
        return Controller(self._rollouts, self._context, record).run()


def _describe_unjudged_gates(deployment: Deployment) -> tuple[str, ...]:
    """Return a sentence on the gates that are required now and did not judge a version; none where all did."""
    if not deployment.unjudged_gates:
        return ()
    names = ", ".join(f"'{name}'" for name in deployment.unjudged_gates)
    return (f"version {deployment.version} was blessed before gate {names} was required, which did not judge it",)


def describe_older_versions(rollouts: Rollouts, models: Models, serving: int | None) -> str:
    """Return how to return to a version that is named, and which versions served before.

    Args:
        rollouts: Records of the rollouts.
        models: The registry, which knows the retired versions.
        serving: The version that serves.
    """
    served = (version for version in rollouts.served_versions() if version != serving)
    reasons = {version: reason for version in served if (reason := retirement_reason(models, version)) is not None}
    if not reasons:
        return "No other registered version has served; --version names any registered one"
    names = [f"{version} (retired: {reason})" if reason else str(version) for version, reason in reasons.items()]
    target = next((version for version, reason in reasons.items() if not reason), next(iter(reasons)))
    return (
        f".venv/bin/shortlist rollback {rollouts.spec} --version {target} returns to a version by its number"
        f" (served before: {', '.join(names)})"
    )
