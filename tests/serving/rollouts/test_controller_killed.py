"""The controller is killed in every phase; each time the next `deploy-canary` goes on with the same rollout."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from filelock import FileLock

from shortlist.rollout.states.phases import Phase

pytestmark = pytest.mark.long


def test_a_controller_killed_in_every_phase_is_taken_over_and_no_user_notices(live: Any) -> None:
    former, candidate = live.champion, live.other_version
    rollouts = live.deployer.rollouts.ids()
    first = live.command("deploy-canary", "--version", str(candidate))
    live.until(lambda: live.deployer.rollouts.ids() != rollouts, "no rollout began")
    rollout = live.record().id

    killed_in(live, first, Phase.STARTING)
    killed_in(live, live.command("deploy-canary"), Phase.LOAD_TESTING)
    killed_while_it_waits(live, live.command("deploy-canary"), 10, Phase.SHIFTING)
    killed_in(live, live.command("deploy-canary"), Phase.WATCHING)
    killed_while_it_waits(live, live.command("deploy-canary"), 100, Phase.PROMOTING)
    killed_in(live, live.command("deploy-canary"), Phase.DRAINING)
    assert live.deployer.rollouts.unfinished().id == rollout
    last = live.command("deploy-canary")
    output, error = last.communicate(timeout=180)
    assert last.returncode == 0, output + error

    record = live.record()
    assert (record.id, record.state.phase, live.champion) == (rollout, Phase.PROMOTED, candidate)
    requests = live.evidence(record).requests
    assert (requests.stable.failed, requests.canary.failed, requests.lost) == (0, 0, 0)
    assert [step.weight for step in live.evidence(record).steps] == [10, 50, 100]
    assert former not in live.stack.record.versions


def test_a_controller_killed_during_a_rollback_is_resumed(live: Any) -> None:
    former, rollouts = live.champion, live.deployer.rollouts.ids()
    controller = live.command("deploy-canary", "--version", str(live.world.versions["all_the_same"]))
    live.until(lambda: live.deployer.rollouts.ids() != rollouts, "no rollout began")
    killed_in(live, controller, Phase.ROLLING_BACK)
    record = live.deployer.canary()
    assert (record.state.phase, live.champion) == (Phase.ROLLED_BACK, former)
    assert live.evidence(record).reason.startswith("at 10 %: constant scores")


def killed_in(live: Any, controller: subprocess.Popen[str], phase: Phase) -> None:
    """Kill the controller as soon as it is at work in a phase."""
    live.until(lambda: phase_of(live) == phase and is_at_work(live, controller), phase, pause_seconds=0.01)
    controller.kill()
    controller.communicate()
    assert phase_of(live) == phase
    live.keep_replay()


def killed_while_it_waits(live: Any, controller: subprocess.Popen[str], percent: int, phase: Phase) -> None:
    """Kill the controller in a phase that lasts for milliseconds, after it has watched a step.

    Another command holds the stack meanwhile.
    """
    last = count_canary_requests(live, percent)
    live.until(lambda: count_canary_requests(live, percent) > last and is_at_work(live, controller), f"{percent} %")
    with FileLock(live.paths.root / "stack.lock"):
        killed_in(live, controller, phase)


def phase_of(live: Any) -> str:
    """Return the phase of the newest rollout, as fast as can be."""
    file = live.deployer.rollouts.rollout_folder(live.deployer.rollouts.ids()[-1]) / "state.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["state"]["phase"])


def count_canary_requests(live: Any, percent: int) -> int:
    """Return how many requests the judge has seen at a step."""
    steps = [step.last for step in live.record().steps if step.percent == percent and step.last is not None]
    return steps[-1].stable.requests + steps[-1].canary.requests if steps else 0


def is_at_work(live: Any, controller: subprocess.Popen[str]) -> bool:
    """Whether the controller holds the rollouts."""
    assert controller.poll() is None, controller.communicate()
    return bool(live.deployer.rollouts.is_locked())
