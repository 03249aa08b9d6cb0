"""A training that the clock cut says so, and gives no ratio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import sequences
from benchmarks.sequences import PEER, SequenceFigures, _against_peer, _against_plain, _of_training, trained


def found(value: float, ended: bool) -> SequenceFigures:
    return SequenceFigures({"ndcg_at_10": value}, epochs=3, seconds=1.0, cpu_s=1.0, ended=ended)


@pytest.mark.parametrize(
    ("ours", "peers", "said", "ratio"),
    [
        (True, True, f"{PEER}: 0.0500", 0.8),
        (False, True, "ours: not trained to its end", None),
        (True, False, f"{PEER}: not trained to its end", None),
        (False, False, f"ours and {PEER}: not trained to its end", None),
    ],
)
def test_only_trainings_that_came_to_their_end_are_compared(
    ours: bool, peers: bool, said: str, ratio: float | None
) -> None:
    line = _against_peer("toys", "ndcg_at_10", found(0.04, ours), {"ndcg_at_10": 0.05, "ended": peers})
    assert (line.peer, line.value) == (said, 0.04)
    assert line.ratio == (None if ratio is None else pytest.approx(ratio))


def test_an_option_is_compared_likewise() -> None:
    line = _against_plain("toys", "crops", found(0.04, True), found(0.05, True))
    assert (line.peer, line.ratio) == ("without: 0.0500", pytest.approx(0.8))
    line = _against_plain("toys", "crops", found(0.04, False), found(0.05, True))
    assert (line.peer, line.ratio) == ("crops: not trained to its end", None)


def test_processor_time_is_compared_where_both_came_to_their_end() -> None:
    line = _of_training("toys", found(0.04, True), {"cpu_s": 4.0, "ended": True})
    assert (line.value, line.peer, line.ratio) == (1.0, f"{PEER}: 4", 1.0 / 4.0)
    for ours, peers in ((False, True), (True, False)):
        line = _of_training("toys", found(0.04, ours), {"cpu_s": 4.0, "ended": peers})
        assert (line.value, line.peer, line.ratio) == (1.0, "", None)


def test_the_clock_and_validation_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    users: list[Any] = [random.integers(0, 12, 6) for _ in range(40)]
    settings = {"kind": "sequence", "last": 4}
    assert not trained(users, settings, seconds=0.0).ended  # the first look is later than that
    monkeypatch.setattr(sequences, "evaluate", lambda *_: {"ndcg_at_10": 0.5})  # never better than at the first look
    assert trained(users, settings, seconds=600.0).ended
