"""Metrics of lists against the recorded answers of ranx and RecTools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.list_metrics import differences

RECORDED = json.loads((Path(__file__).parent / "peer_metrics.json").read_text())


@pytest.mark.parametrize("case", RECORDED["cases"])
def test_metrics_of_lists_are_those_of_ranx_and_rectools(case: str) -> None:
    gaps = {
        (peer, metric): gap for peer, metric, gap in differences(RECORDED["cases"][case], RECORDED["answers"][case])
    }
    ranx = {"recall", "hit_rate_at_10", "ndcg_at_10", "reciprocal_rank"}
    assert {name for peer, name in gaps if peer == "ranx"} == ranx
    assert {name for peer, name in gaps if peer == "rectools"} == ranx | {"novelty", "diversity", "coverage"}
    assert max(gaps.values()) < 1e-9, gaps


def test_a_changed_number_of_one_user_is_reported_as_a_difference() -> None:
    answers = json.loads(json.dumps(RECORDED["answers"]["random"]))
    answers["ranx"]["recall"][3] += 0.25
    gaps = {(peer, name): gap for peer, name, gap in differences(RECORDED["cases"]["random"], answers)}
    assert gaps["ranx", "recall"] == pytest.approx(0.25)
