"""Doing what a rollout asks for, so that asking twice does no harm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from shortlist.serving.rollout.actions import (
    Action,
    Crown,
    Drain,
    Prove,
    Retire,
    Send,
    SendAll,
    Serve,
    Stand,
    Unchanged,
    Verify,
    Withdraw,
)
from shortlist.serving.rollout.candidates import blessed_version, registered_version
from shortlist.serving.rollout.interruption import Interruption
from shortlist.serving.rollout.record import RolloutRecord
from shortlist.serving.rollout.rollouts import RolloutError
from shortlist.serving.rollout.tools import Tools
from shortlist.serving.stack.deployment import Deployment, Route

_ATTEMPTS: Final = 4
_QUICK: Final = (Send, SendAll, Withdraw, Crown, Retire)
"""One short call each: a hiccup of these is not the candidate's fault."""


class Performer:
    """Carries out actions of one rollout.

    Args:
        tools: Servers, registry, proof.
        record: The rollout when the controller took it up; which versions it is about never changes.
        files: Folder for files that have to be fetched from a remote registry.
        interruption: Cuts long waits short.
    """

    def __init__(self, tools: Tools, record: RolloutRecord, files: Path, interruption: Interruption) -> None:
        self._tools = tools
        self._record = record
        self._state = record.state
        self._files = files
        self._interruption = interruption
        self._known: dict[int, Deployment] = {}
        self._insists = False
        self._ways: Mapping[type[Action], Callable[[Any], None]] = {
            Verify: self._verify,
            Stand: self._stand,
            Serve: self._serve,
            Prove: self._prove,
            Unchanged: self._unchanged,
            Send: self._send,
            SendAll: self._send_all,
            Withdraw: self._withdraw,
            Crown: self._crown,
            Drain: self._drain,
            Retire: self._retire,
        }

    def perform(self, action: Action) -> None:
        """See that what an action asks for is so.

        Raises:
            ShortlistError: It is not, and why.
            Interrupted: A signal came while it waited.
        """
        way = partial(self._ways[type(action)], action)
        self._again(way) if isinstance(action, _QUICK) else way()

    def insistently(self, action: Action) -> None:
        """Perform an action of the way back: nothing cuts it short, and it is tried again.

        Raises:
            RolloutError: It failed every time.
        """
        self._insists = True
        try:
            self._again(partial(self._ways[type(action)], action))
        except Exception as error:
            raise RolloutError(
                f"rollout {self._state.rollout}: {type(action).__name__} failed {_ATTEMPTS} times ({error})."
                " Nothing is forgotten: mend the cause, then make rollback goes on from here."
            ) from error
        finally:
            self._insists = False

    def _verify(self, _: Verify) -> None:
        self._deployment(self._state.candidate, anew=True)

    def _stand(self, action: Stand) -> None:
        if self._tools.fleet.serving() is None:
            self._serve(Serve(action.version))
            self._send_all(SendAll(action.version))

    def _serve(self, action: Serve) -> None:
        self._tools.fleet.deploy(self._deployment(action.version))
        with nullcontext() if self._insists else self._interruption.cut_short():
            self._tools.fleet.wait_ready(action.version)

    def _prove(self, _: Prove) -> None:
        with self._interruption.cut_short():
            reasons = self._tools.prove(self._deployment(self._state.candidate))
        if reasons:
            raise RolloutError("; ".join(reasons))

    def _unchanged(self, _: Unchanged) -> None:
        self._tools.fleet.verify(self._state.candidate)

    def _send(self, action: Send) -> None:
        assert self._state.former is not None  # without one there are no steps
        self._tools.fleet.route(
            Route(
                stable=self._state.former,
                canary=self._state.candidate,
                percent=action.percent,
                rollout=self._state.rollout,
                step=action.step,
            )
        )

    def _send_all(self, action: SendAll) -> None:
        self._tools.fleet.route(Route(stable=action.version))

    def _withdraw(self, _: Withdraw) -> None:
        self._tools.fleet.withdraw()

    def _crown(self, action: Crown) -> None:
        self._tools.models.set_alias("champion", action.version)

    def _drain(self, _: Drain) -> None:
        self._tools.sleep(self._record.policy.drain_seconds)

    def _retire(self, action: Retire) -> None:
        self._tools.fleet.retire(action.version)

    def _again(self, call: Callable[[], None]) -> None:
        patience = wait_exponential(self._tools.patience_seconds, max=2)
        attempts = Retrying(
            retry=retry_if_exception_type(Exception),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=patience,
            sleep=self._tools.sleep,
            reraise=True,
        )
        attempts(call)

    def _deployment(self, version: int, anew: bool = False) -> Deployment:
        if anew or version not in self._known:
            prepare = blessed_version if version == self._state.candidate else registered_version
            files = self._files / str(version)
            shutil.rmtree(files, ignore_errors=True)
            self._known[version] = prepare(self._tools.models, version, self._tools.store, files)
        return self._known[version]
