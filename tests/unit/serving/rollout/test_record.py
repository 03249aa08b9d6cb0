"""A rollout's record and its folder: whole, ordered, and of bounded size."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from shortlist.rollout.checks.observations import Observation, TrackSummary
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.rollouts import STATE, RolloutError, Rollouts
from shortlist.rollout.states.operator_commands import COMMAND_FILE, OperatorCommand
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.rollout.verdict import RolloutVerdict, make_verdict
from shortlist.spec.serving import Canary
from shortlist.storage.artefacts import IntegrityError


def record(rollout: str = "20261121-120000-demo-0a1b", **changes: object) -> RolloutRecord:
    state = RolloutState(rollout=rollout, candidate=2, former=1, champion=1, stable=1, steps=(5, 100))
    new = RolloutRecord(spec="demo", state=state, kind="dlrm", digest="ab", policy=Canary(steps=(5, 100)))
    return new.with_state(state.model_copy(update=changes))


def watching(percent: int = 5, step: int = 0) -> dict[str, object]:
    return {"phase": Phase.WATCHING, "percent": percent, "step": step}


def make_observation(p99_ms: float = 8.0) -> Observation:
    return Observation(decision="hold", reason="wait", stable=TrackSummary(requests=9, p99_ms=p99_ms))


def test_every_phase_enters_the_history_once() -> None:
    rollout_record = record()
    moved = rollout_record.with_elapsed(1.5).with_state(rollout_record.state.model_copy(update=watching()))
    moved = moved.with_elapsed(2.5).with_state(moved.state).with_observation(make_observation())
    assert [(change.phase, change.percent, change.elapsed_seconds) for change in moved.history] == [
        (Phase.VERIFYING, 0, 0.0), (Phase.WATCHING, 5, 1.5),
    ]  # fmt: skip
    assert [(step.percent, step.began_seconds, step.last) for step in moved.steps] == [(5, 1.5, make_observation())]
    assert moved.at_step_seconds == 1.0


def test_time_never_runs_backwards() -> None:
    assert record().with_elapsed(5).with_elapsed(3).elapsed_seconds == 5


def test_a_long_rollout_keeps_few_samples_but_every_change_of_weight() -> None:
    rollout_record = record()
    rollout_record = rollout_record.with_elapsed(1).with_state(rollout_record.state.model_copy(update=watching()))
    for second in range(2, 2_000):
        rollout_record = rollout_record.with_elapsed(second).with_observation(make_observation(p99_ms=second))
    rollout_record = rollout_record.with_state(rollout_record.state.model_copy(update=watching(100, 1)))
    assert 300 <= len(rollout_record.samples) <= 600
    moments = [sample.elapsed_seconds for sample in rollout_record.samples]
    assert moments == sorted(moments)
    samples = rollout_record.samples
    changes = [(b.elapsed_seconds, b.percent) for a, b in itertools.pairwise(samples) if a.percent != b.percent]
    assert changes == [(1, 5), (1_999, 100)]


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    rollouts = Rollouts(tmp_path / "rollouts", "demo")
    rollout_record = record(**watching()).with_observation(make_observation())
    rollouts.save(rollout_record)
    assert rollouts.read(rollout_record.id) == rollout_record == rollouts.latest() == rollouts.unfinished()
    rollouts.save(rollout_record.with_state(rollout_record.state.model_copy(update={"phase": Phase.ABORTED})))
    assert rollouts.unfinished() is None


def test_ids_are_in_order_even_when_the_clock_was_set_back(tmp_path: Path) -> None:
    rollouts = Rollouts(tmp_path, "demo")
    first = rollouts.new_id()
    rollouts.save(record(first))
    late = "29991231-235959-demo-ffff"
    rollouts.save(record(late))
    next_id = rollouts.new_id()
    rollouts.save(record(next_id))
    assert next_id.startswith("30000101-000000-demo-")
    assert rollouts.ids() == [first, late, next_id]
    assert [earlier_record.id for earlier_record in rollouts.newest_first()] == [next_id, late, first]


def test_specs_share_a_folder_but_not_rollouts(tmp_path: Path) -> None:
    demo, other_rollouts = Rollouts(tmp_path, "demo"), Rollouts(tmp_path, "my-demo")
    demo.save(record(demo.new_id()))
    other_rollouts.save(record(other_rollouts.new_id()))
    assert [len(rollouts.ids()) for rollouts in (demo, other_rollouts)] == [1, 1]
    with demo.lock(), other_rollouts.lock():
        assert demo.is_locked()


def test_a_folder_without_a_state_is_no_rollout(tmp_path: Path) -> None:
    (tmp_path / "20261121-120000-demo-0000").mkdir()
    rollouts = Rollouts(tmp_path, "demo")
    assert (rollouts.latest(), rollouts.unfinished()) == (None, None)
    with pytest.raises(RolloutError, match="there is no rollout 'x'; the newest is none"):
        rollouts.read("x")


def test_an_edited_state_is_an_error_with_its_path(tmp_path: Path) -> None:
    rollouts = Rollouts(tmp_path, "demo")
    rollout_record = record()
    rollouts.save(rollout_record)
    path = tmp_path / rollout_record.id / STATE
    content = json.loads(path.read_text())
    content["state"]["phase"] = "dancing"
    path.write_text(json.dumps(content))
    with pytest.raises(IntegrityError, match=rf"{STATE}: not a rollout's state \(state\.phase: .*move its folder away"):
        rollouts.latest()


def test_an_order_is_found_and_an_unreadable_one_is_none(tmp_path: Path) -> None:
    rollouts, rollout_id = Rollouts(tmp_path, "demo"), record().id
    assert rollouts.pending_command(rollout_id) is None
    rollouts.send_command(rollout_id, OperatorCommand(action="rollback", reason="enough"))
    assert rollouts.pending_command(rollout_id) == OperatorCommand(action="rollback", reason="enough")
    (tmp_path / rollout_id / COMMAND_FILE).write_text("{")
    assert rollouts.pending_command(rollout_id) is None


def test_a_step_that_nobody_looked_at_is_a_hold() -> None:
    finished = record(**watching())
    finished = finished.with_state(finished.state.model_copy(update={"phase": Phase.ABORTED, "reason": "enough"}))
    verdict = make_verdict(finished)
    assert (verdict.verdict, verdict.steps[0].decision, verdict.steps[0].canary_share) == ("aborted", "hold", None)
    assert verdict.requests.total == 0


def test_the_evidence_has_a_schema() -> None:
    schema = RolloutVerdict.model_json_schema()
    assert set(schema["required"]) == {"verdict", "reason", "champion", "candidate", "steps", "requests"}
    assert schema["properties"]["verdict"]["enum"] == [
        *("promoted", "rolled_back", "aborted"), *("returned", "return_failed", "return_aborted"),
    ]  # fmt: skip
