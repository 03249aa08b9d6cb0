"""What surrounds a rollout fails: disk, traffic, ports; and what nobody should ask for is refused."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import harm
from shortlist.contracts import ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.rollout.local.stack import Stack
from shortlist.rollout.rollouts import RolloutError
from shortlist.rollout.states.phases import Phase
from shortlist.tracking.registry import UnknownVersionError

pytestmark = pytest.mark.long


def test_a_full_disk_costs_the_log_and_no_answer_and_nothing_is_promoted_blindly(
    live: Any, full_stream_disk: Any
) -> None:
    # The log holds 300 answers before it drops any: about 4 s of these users, and much longer on a busy machine.
    rollout = live.begin(live.other_version, live.deployer_with({}, {"deadline_seconds": 20}))
    live.reaches(Phase.WATCHING, 10)
    count_before = dropped(live)
    with full_stream_disk():
        live.until(lambda: dropped(live) > count_before + 50, "no answers are dropped")
        # One look may find a busy server silent.
        live.until(lambda: complains(live), "status says nothing of a full disk")
        live.until(lambda: live.record().state.phase is not Phase.WATCHING, "the rollout goes on being watched")
    live.until(lambda: live.problems() == [], "the log is not written again")
    record = live.end(rollout)
    evidence = live.evidence(record)
    assert evidence.verdict == "rolled_back"
    assert "undecided after" in evidence.reason and "are in the prediction log" in evidence.reason
    assert (evidence.requests.stable.failed, evidence.requests.canary.failed) == (0, 0)
    # Nothing is missing but what the server says it dropped: the rest was written when there was room again.
    assert 0 < evidence.requests.lost <= dropped(live) - count_before


def test_a_slow_disk_costs_no_answer(stack_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short form of one of the faults of `make bench NAME=soak_faults`."""
    monkeypatch.setattr(harm, "SLOW_SECONDS", 6.0)
    rollouts = harm.Rollouts(stack_up.deployer, stack_up.world.spec_file, stack_up.world.runs, (1, 2))
    faults = harm.Harm(stack_up.deployer, rollouts, Random(0))
    with stack_up.visited() as story:
        stack_up.until(lambda: int(story.users.ledger.answered.sum()) > 10, "nobody is answered")
        count_before = int(story.users.ledger.answered.sum())
        faults.kinds["slow disk"]()
        assert int(story.users.ledger.answered.sum()) > count_before, "nobody was answered meanwhile"
        faults.wait_ready()
    requests = story.users.ledger.frame()
    assert requests.filter(requests["status"] != 200).to_dicts() == []


def test_without_traffic_nothing_is_ever_promoted(stack_up: Any) -> None:
    live_only = stack_up.deployer_with({"traffic": {"kind": "live"}}, {"deadline_seconds": 3})
    record = live_only.canary(stack_up.other_version)
    evidence = stack_up.evidence(record)
    assert (evidence.verdict, evidence.requests.total) == ("rolled_back", 0)
    assert "at 10 %: undecided after" in evidence.reason
    stack_up.restore()


def test_a_stack_that_is_stopped_during_a_rollout_returns_to_the_former_version(stack_up: Any) -> None:
    former = stack_up.champion
    rollout = stack_up.begin(stack_up.other_version, stack_up.deployer_with({}, {"interval_seconds": 200}))
    stack_up.reaches(Phase.WATCHING, 10)
    command = stack_up.command("stop")
    output, error = command.communicate(timeout=180)
    assert (command.returncode, error) == (0, "")
    assert "stopped" in output and "Fault" not in output
    state = rollout.result(360).state
    assert state.phase is Phase.ROLLED_BACK
    # The second while servers that answer what is under way take longer to stop than the judge asks.
    assert re.search("the stack was stopped; make serve SPEC=|its servers are not ready", state.reason), state.reason
    assert Stack.connect(stack_up.paths) is None  # no rollout starts what somebody stopped
    stack_up.deployer.serve()
    assert stack_up.champion == former
    stack_up.restore()


def test_a_taken_port_is_an_error_and_nothing_is_half_started(stack_up: Any, tmp_path: Path) -> None:
    (tmp_path / "stores").symlink_to(stack_up.world.runs / "stores")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = stack_up.command("serve", "--port", str(port), runs=tmp_path)
        output, error = command.communicate(timeout=180)
    assert command.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken" in error and "nothing was started" in error
    assert output == ""
    assert [
        path.name for path in tmp_path.rglob("*") if path.suffix in {".pid", ".sock"} or path.name == "state.json"
    ] == []


def test_what_cannot_be_rolled_out_is_refused_with_a_reason(stack_up: Any) -> None:
    state_before = stack_up.deployer.rollouts.ids(), set(stack_up.stack.record.versions)
    with pytest.raises(UnknownVersionError, match="99"):
        stack_up.deployer.canary(99)
    with pytest.raises(RolloutError, match=r"version \d+ of shortlist-small is not blessed"):
        stack_up.deployer.canary(stack_up.world.versions["unblessed"])
    with pytest.raises(RolloutError, match="serves everybody already"):
        stack_up.deployer.canary(stack_up.champion)
    assert (stack_up.deployer.rollouts.ids(), set(stack_up.stack.record.versions)) == state_before
    stack_up.restore()


def test_a_spec_without_a_champion_cannot_be_served(stack_up: Any) -> None:
    spec = stack_up.world.spec
    origin = stack_up.world.origin.model_copy(update={"name": "nobody"})
    deployer = LocalDeployer(origin, spec.serving, spec.gates, spec.runtime)
    refusal = "spec 'nobody' has no blessed model to serve yet, one that passed every gate; make run SPEC=nobody"
    with pytest.raises(ShortlistError, match=refusal):
        deployer.serve()
    with pytest.raises(ShortlistError, match="spec 'nobody' is not being served"):
        deployer.canary()
    assert Stack.connect(deployer.paths) is None
    assert not deployer.paths.root.exists()


def complains(live: Any) -> bool:
    """Whether status says that the champion's log is not whole, and why."""
    fragments = f"server-v{live.champion} answers, but log: ", "No space left on device", "answers are missing in it"
    return any(all(fragment in problem for fragment in fragments) for problem in live.problems())


def dropped(live: Any) -> int:
    """Return how many answers the champion's log had no room for."""
    ports = live.stack.record.versions[live.champion].ports
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("shortlist_log_dropped "))))
