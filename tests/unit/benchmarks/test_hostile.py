"""What is said of a hostile client beside everybody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from benchmarks.hostile import NextModel, Outcome, hostile_spec, lines_of
from benchmarks.targets import TARGETS, missed_names
from shortlist.rollout.states.phases import Phase

HONEST = NextModel(True, 0.75)
NAMES = {
    "rollouts under attack, sent back", "trainings stopped", "AUC of the next model, distance", "others, p99",
}  # fmt: skip


def outcome(phase: Phase = Phase.PROMOTED, slowest_seconds: float = 0.014) -> Outcome:
    """Return a hundred honest requests without the attack and a hundred beside it; one of each was not answered."""
    requests = [
        (10.0 * attacked + number / 100, 200 if number else 503, 0.010 if number < 50 else last)
        for attacked, last in enumerate((0.010, slowest_seconds))
        for number in range(100)
    ]
    ledger = pl.DataFrame(requests, ["due", "status", "seconds"], orient="row")
    ledger = ledger.with_columns(answered=pl.col("due") + pl.col("seconds"))
    record: Any = SimpleNamespace(state=SimpleNamespace(phase=phase))
    return Outcome([record], 2_000, ledger, (0.0, 10.0, 20.0), 12)


@pytest.mark.parametrize(
    ("outcome", "with_hostile", "missed"),
    [
        (outcome(), NextModel(True, 0.7485), []),
        (outcome(Phase.ROLLED_BACK), NextModel(True, 0.75), ["rollouts under attack, sent back"]),
        (outcome(slowest_seconds=0.016), NextModel(True, 0.75), ["others, p99"]),
        (outcome(), NextModel(True, 0.753), ["AUC of the next model, distance"]),
        (
            outcome(), NextModel(False, float("nan")),
            ["trainings stopped", "AUC of the next model, distance"],
        ),
    ],
)  # fmt: skip
def test_what_a_hostile_client_moved_too_far_is_named(
    outcome: Outcome, with_hostile: NextModel, missed: list[str]
) -> None:
    lines = lines_of(outcome, (with_hostile, HONEST), 500)
    assert missed_names(lines) == missed
    values = {line.name: line.value for line in lines}
    assert (values["hostile requests"], values["others, without an answer"]) == (200.0, 1)
    asked = [target for target in TARGETS if target.program == "hostile"]
    assert {entry["name"] for target in asked for entry in target.select([line._asdict() for line in lines])} == NAMES


def test_its_world_has_no_faults_and_its_two_versions_differ_in_their_seed() -> None:
    first, second = (hostile_spec(15, seed) for seed in (1, 2))
    assert first.data.source.drifts == ()  # type: ignore[union-attr]
    assert first.model_copy(update={"runtime": second.runtime}) == second
