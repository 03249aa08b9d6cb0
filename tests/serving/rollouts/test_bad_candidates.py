"""Candidates that every gate let pass: users of the stable track notice none of them."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from shortlist.rollout.states.phases import Phase
from shortlist.spec.log_shape import FurtherLabel, Positive
from shortlist.storage.artefacts import IntegrityError

pytestmark = pytest.mark.long


def test_a_model_that_cannot_be_loaded_gets_no_users(live: Any) -> None:
    record = live.roll_out(live.world.versions["not_loadable"])
    evidence = live.rolled_back(record, r"starting: version \d+ does not start: triton-v\d+ ended \d times")
    assert "Explode" in evidence.reason  # what onnxruntime said
    assert (evidence.steps, evidence.requests.total) == ((), 0)


def test_scores_that_are_no_numbers_send_the_users_back(live: Any) -> None:
    record = live.roll_out(live.world.versions["not_a_number"])
    # Whichever is certain first, of the log and of the clients' answers.
    evidence = live.rolled_back(record, r"at (10|50) %: .* answers (hold NaN, infinite or no scores|failed)")
    assert evidence.requests.canary.failed > 0  # they were told so, instead of being ranked by nothing


def test_a_candidate_that_answers_ten_times_slower_sends_the_users_back(live: Any) -> None:
    limits = live.world.spec.serving.canary.guardrails.model_dump() | {"latency_floor_ms": 150}
    record = live.roll_out(live.world.versions["slow"], live.deployer_with({}, {"guardrails": limits}))
    # At 10 %, unless the machine is so busy that the stable track has bad moments, too: then it may stay undecided.
    evidence = live.rolled_back(record, r"at (10|50) %: (undecided .*: )?p99 latency .* ms > .* ms")
    p99_ms = evidence.steps[-1].p99_ms
    assert p99_ms.canary > 300 and evidence.requests.canary.failed == 0


GLANCE = FurtherLabel(column="watch_seconds", positive=Positive(at_most=1.5))
"""Half of the items that nobody clicks are looked at for so long, and hardly any that somebody does."""


def test_a_better_candidate_goes_back_when_a_guarded_label_falls_and_a_promotion_is_taken_back(live: Any) -> None:
    good, worse = live.champion, live.world.versions["shuffled"]
    rollout = live.begin(worse)
    live.deployer.promote()  # whatever the analysis would say
    assert live.end(rollout).state.phase is Phase.PROMOTED
    try:
        # The good one shows less of what nobody clicks: its KPI rises, and glances fall.
        guards = {"steps": [50, 100], "guards": {"glance": {"max_drop": 0.01}}}
        record = live.roll_out(good, live.deployer_with({}, guards, {"glance": GLANCE}))
        evidence = live.rolled_back(record, r"glance difference -0\.\d+ in .* it falls by more than 0\.01")
        kpi, (glances,) = evidence.steps[-1].kpi, evidence.steps[-1].guards
        assert kpi.canary > kpi.stable and glances.canary < glances.stable
        assert glances.difference.high < -0.01
        assert live.failed_checks(record) == ["guard glance"]
    finally:
        returned = live.deployer.rollback() if live.champion == worse else None
    assert (returned.state.phase, returned.returning, live.champion) == (Phase.PROMOTED, True, good)
    assert (returned.state.former, returned.steps) == (worse, ())


@pytest.mark.parametrize("part", ["model's process", "server"])
def test_a_candidate_that_crashes_after_hundreds_of_answers_sends_the_users_back(live: Any, part: str) -> None:
    version = live.world.versions["crashing"]
    answers_before = live.answered(version)
    rollout = live.begin(version, live.deployer_with({}, {"steps": [50, 100]}))
    live.until(lambda: live.answered(version) - answers_before >= 200, "200 answers")
    if part == "server":
        live.kill(f"server-v{version}")
    else:
        live.kill_process(live.backend_of(version), f"triton-v{version}")
    evidence = live.evidence(live.end(rollout))
    assert evidence.verdict == "rolled_back"
    assert re.search(r"its servers (crashed \d time|are not ready)", evidence.reason), evidence.reason
    assert evidence.requests.stable.failed == 0
    # What a killed server had not written yet is all that can be missing: a flush, and what was under way.
    assert evidence.requests.lost <= (0 if part == "model's process" else 100)


def test_a_replaced_served_file_is_detected_before_the_next_step(live: Any) -> None:
    version = live.world.versions["swapped"]
    rollout = live.begin(version)
    live.reaches(Phase.WATCHING, 10)
    served = live.paths.versions / f"v{version}" / "repository" / live.world.spec.name / str(version) / "model.onnx"
    shutil.copyfile(live.world.spec_file.parent / "shuffled" / "serving" / "model.onnx", served)
    record = live.end(rollout)
    evidence = live.rolled_back(record, r"shifting: .*model\.onnx: changed after it was written")
    assert [step.weight for step in evidence.steps] == [10]


def test_a_model_that_was_changed_after_its_blessing_is_refused_before_anything_starts(live: Any) -> None:
    version = live.world.versions["tampered"]
    file = live.world.origin.tracker.registry.fetch(version).folder / "serving" / "model.onnx"
    whole, processes_before = file.read_bytes(), live.deployer.rollouts.ids()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        with pytest.raises(IntegrityError, match=r"model\.onnx: changed after it was written"):
            live.deployer.canary(version)
    finally:
        file.write_bytes(whole)
    assert live.deployer.rollouts.ids() == processes_before
    assert version not in live.stack.record.versions
