"""The last lines of a run name the commands that fit its outcome."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gates import GATES, skew_gate
from shortlist.evaluation.metrics.records import SkewMeasures
from shortlist.ranking.kind import DeclaredModel
from shortlist.report.summary import gate_lines
from shortlist.runs.next_steps import _ADVICE, advice_after_failure, next_steps
from shortlist.spec.gates import Gates

MODELS = {
    "trees": {"auc": 0.75, "gauc": 0.60, "role": "candidate"},
    "network": {"auc": 0.76, "gauc": 0.59, "role": "candidate"},
    "logistic": {"auc": 0.74, "gauc": 0.61, "role": "baseline"},
    "popularity": {"auc": 0.55, "gauc": 0.52, "role": "baseline"},
    "champion": {"auc": 0.77, "gauc": 0.62, "role": "champion"},
}
BLESSED = {"model": "trees", "version": "3"}


def stage(name: str, ndcg: float, source: str | None = None) -> dict[str, Any]:
    return {"stage": name, "source": source, "ndcg_at_10": ndcg}


STAGES = [stage("retrieval", 0.03, "popular"), stage("retrieval", 0.02, "towers"), stage("ordering", 0.04)]


@pytest.fixture
def ending(tmp_path: Path) -> Any:
    def written(
        notes: tuple[str, ...] = (), champion: int | None = None, with_rollout: bool = True, **facts: Any
    ) -> list[str]:
        summary = {
            "spec": "mine",
            "metric": "gauc",
            "models": MODELS,
            "blessed": None,
            "gates": [],
            "stages": [],
        } | facts
        arguments: dict[str, Any] = {"log": {"location": "/logs"}, "retrieval": json.dumps({"candidates": 300})}
        arguments["with_rollout"] = with_rollout
        features = {"role": "baseline", "features": ["*"]}
        sections = {"logistic": {**features, "bins": [24]}, "popularity": {"role": "baseline"}}
        baselines = (
            DeclaredModel(name=name, section={"kind": name, **settings}) for name, settings in sections.items()
        )
        arguments["models"] = [model.text for model in baselines]
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        (tmp_path / "arguments.json").write_text(json.dumps(arguments))
        return next_steps(tmp_path, "specs/mine.yaml", Path("runs/latest/report.html"), notes, champion).splitlines()

    return written


@pytest.mark.parametrize(
    ("note", "command"),
    [
        ("Version 3 was not rolled out: mine is not served.", "make serve SPEC=specs/mine.yaml"),
        ("Version 3 was promoted: nothing is wrong (state.json)", "make status SPEC=specs/mine.yaml"),
        ("Version 3 was rolled back: at 20 %: undecided (state.json)", "make deploy-canary SPEC=specs/mine.yaml"),
        ("Version 3 was not rolled out: a rollout is under way", "make deploy-canary SPEC=specs/mine.yaml"),
    ],
)
@pytest.mark.parametrize("champion", [None, 1])
def test_the_first_command_follows_the_rollout_in_a_running_stack(
    ending: Any, note: str, command: str, champion: int | None
) -> None:
    lines = ending(("The log is old.", note), champion, blessed=BLESSED)
    assert lines[lines.index("Next:") + 1].startswith(f"  {command}  ")
    waits = "version 3, which is blessed and waits" in "\n".join(lines)
    assert waits == (champion == 1 and command.startswith("make serve"))


def test_quality_is_the_deciding_metric_beside_the_best_baseline(ending: Any) -> None:
    created, quality, *_ = ending(blessed=BLESSED)
    assert created.startswith("Trained: logistic, network, popularity, trees.")
    assert quality == (
        "Quality: trees (blessed as version 3) has a test GAUC of 0.6000, against 0.6100 of 'logistic', the best"
        " baseline (-0.0100)."
    )
    assert "network (held) has a test AUC of 0.7600" in ending(metric="auc")[1]


def value_line(name: str, model: str | None, estimate: float | None, truth: float | None) -> dict[str, Any]:
    bounds = {"low": None, "high": None} if estimate is None else {"low": estimate - 0.5, "high": estimate + 0.5}
    return {"list": name, "model": model, "estimate": estimate, "truth": truth, "problem": ""} | bounds


def test_the_value_of_the_blessed_slates_is_put_beside_popularity_and_the_best_possible(ending: Any) -> None:
    lists = [
        value_line("slates", "network", 1.0, None),
        value_line("slates", "trees", 2.5, None),
        value_line("popular", None, 1.9, None),
    ]
    value = {"reward": "clicks", "lists": lists, "problem": ""}
    of_trees = "Slates: those of 'trees' earn 2.50 [2.00, 3.00] a request (clicks)"
    popular = "the most popular items 1.90 [1.40, 2.40]"
    assert ending(blessed=BLESSED, value=value)[2] == f"{of_trees}; {popular}."
    best = value_line("best_possible", None, None, 3.0)
    planted = ending(blessed=BLESSED, value={**value, "lists": [*lists, best]})[2]
    assert planted == f"{of_trees}; {popular}; the best possible 3.00."
    unknown = ending(blessed=BLESSED, value={"reward": "", "lists": [], "problem": "no propensities"})[2]
    assert unknown == "Slates: their value is unknown: no propensities."
    assert not any(line.startswith("Slates") for line in ending(blessed=BLESSED))


@pytest.mark.parametrize(
    ("gate", "command"),
    [
        ("data", ".venv/bin/shortlist check specs/mine.yaml --data /logs"),
        ("absolute", "make tune SPEC=specs/mine.yaml MODEL=trees MINUTES=10"),
        ("calibration", "make run SPEC=specs/mine.yaml DATA=/logs SET=models.trees.calibration=isotonic"),
        ("retrieval", "make run SPEC=specs/mine.yaml DATA=/logs SET=retrieval.candidates=600"),
        ("slates", "runs/latest/report.html#candidates"),
        ("value", "runs/latest/report.html#value"),
    ],
)
def test_the_failed_gate_of_the_best_candidate_decides_the_advice(ending: Any, gate: str, command: str) -> None:
    gates = [
        {"name": "infra", "model": "network", "passed": False, "reason": ""},
        {"name": "skew", "model": "trees", "passed": True, "reason": ""},
        {"name": gate, "model": "trees", "passed": False, "reason": ""},
    ]
    lines = ending(gates=gates)
    first = lines[lines.index("Next:") + 1]
    assert first.startswith(f"  {command}  ") and f"gate '{gate}': " in first


@pytest.mark.parametrize(
    ("rows", "differing", "command"),
    [
        (496, 0, ".venv/bin/shortlist check"), (4, 3, "runs/latest/report.html#features"),
        (500, 3, "runs/latest/report.html#features"),
    ],
)  # fmt: skip
def test_differing_rows_are_shown_where_rows_differ(ending: Any, rows: int, differing: int, command: str) -> None:
    skew = SkewMeasures(rows_checked=rows, historical_mismatches=differing, online_mismatches=0, row_count_ok=True)
    held = skew_gate(skew, 4_000, Gates(min_auc=0.6, skew_rows=500))
    (line,) = gate_lines((GateReport.from_results("trees", "digest", [held]),))
    lines = ending(gates=[line.model_dump() | {"reason": "said otherwise"}])
    first = lines[lines.index("Next:") + 1]
    assert first.startswith(f"  {command}") and ("none differs" in first) == (not differing)


def test_after_a_run_without_rollout_the_blessed_version_waits(ending: Any) -> None:
    note = "Version 3 was not rolled out, as --no-rollout says; make deploy-canary SPEC=mine does."
    lines = ending((note,), 1, with_rollout=False, blessed=BLESSED)
    assert lines[lines.index("Next:") + 1].startswith("  make serve SPEC=specs/mine.yaml  ")
    assert "version 3, which is blessed and waits" in "\n".join(lines)


def test_the_candidate_that_the_fewest_gates_hold_decides_the_advice(ending: Any) -> None:
    """Not the better model of two that more gates hold: it is farther from being blessed."""
    held = [("absolute", "trees"), ("slices", "trees"), ("infra", "network")]
    gates = [{"name": gate, "model": model, "passed": False, "reason": ""} for gate, model in held]
    lines = ending(gates=gates)
    assert "gate 'infra': measure again on an idle machine" in lines[lines.index("Next:") + 1]


def test_the_gate_of_a_retirement_is_the_champions_whichever_failed_first(ending: Any) -> None:
    reason = "version 1 reads paid. If it is no yardstick, `shortlist retire-champion mine --reason 'paid'` helps"
    gates = [("absolute", "behind"), ("champion", reason)]
    held = [{"name": name, "model": "trees", "passed": False, "reason": text} for name, text in gates]
    lines = ending(gates=held)
    assert lines[lines.index("Next:") + 1].startswith(
        "  shortlist retire-champion mine --reason 'paid'   gate 'champion'"
    )


def test_a_champion_whose_retirement_the_gate_names_gets_that_command(ending: Any) -> None:
    command = ".venv/bin/shortlist retire-champion mine --reason 'it reads paid'"
    reason = f"AUC difference -0.03; version 1 reads paid. If it is no yardstick, `{command}` compares with baselines"
    lines = ending(gates=[{"name": "champion", "model": "trees", "passed": False, "reason": reason}])
    assert lines[lines.index("Next:") + 1].startswith(f"  {command}   gate 'champion': compare with the baselines")


def test_a_kind_that_cannot_be_searched_is_not_to_be_tuned(ending: Any) -> None:
    held = [{"model": "logistic", "name": "absolute", "passed": False, "reason": "AUC 0.54 < 0.55 (min_auc)"}]
    linear = {"auc": 0.9, "gauc": 0.9, "role": "candidate"}
    lines = "\n".join(ending(gates=held, models={**MODELS, "logistic": linear}))
    assert "make tune SPEC=specs/mine.yaml MODEL=trees MINUTES=10" in lines
    alone = "\n".join(ending(gates=held, models={"logistic": linear}))
    assert "make tune" not in alone and "after an edit of the features; rates of pairs help most" in alone


def test_every_gate_has_an_advice() -> None:
    assert set(_ADVICE) == set(GATES)


def test_a_blessed_model_is_served_and_tuned_only_where_a_baseline_is_not_beaten(ending: Any) -> None:
    beaten = "\n".join(ending(blessed=BLESSED))
    assert "make serve SPEC=specs/mine.yaml " in beaten and "prints a curl that ranks" in beaten
    assert "make tune" not in beaten and "#candidates" not in beaten
    behind = "\n".join(ending(blessed=BLESSED, notice="No candidate beats 'logistic'.", stages=STAGES))
    assert "make tune SPEC=specs/mine.yaml MODEL=trees MINUTES=10 " in behind
    assert "prints a curl that recommends" in behind and "runs/latest/report.html#candidates" in behind
    change = "SET='models.logistic={kind: logistic, role: candidate, features: [\"*\"], bins: [24]}'"
    command, _, purpose = behind.partition(f"  make run SPEC=specs/mine.yaml DATA=/logs {change}\n")
    assert command and purpose.strip().startswith("make 'logistic' a candidate")  # below: it is long
    ahead = MODELS | {"trees": {"auc": 0.75, "gauc": 0.62, "role": "candidate"}}  # of another one speaks the notice
    assert "make tune" not in "\n".join(ending(blessed=BLESSED, notice="'network' is behind.", models=ahead))
    worse = MODELS | {"popularity": {"auc": 0.9, "gauc": 0.9, "role": "baseline"}}  # of a kind that is never served
    assert "role: candidate" not in "\n".join(ending(blessed=BLESSED, notice="None is better.", models=worse))


def test_a_blessed_version_beside_a_champion_waits_for_its_rollout(ending: Any) -> None:
    lines = ending(blessed=BLESSED, stages=STAGES, champion=1)
    commands = [" ".join(line.split()) for line in lines[lines.index("Next:") + 1 :]]
    assert commands[:2] == [
        "make serve SPEC=specs/mine.yaml serve the champion, version 1, here",
        "make deploy-canary SPEC=specs/mine.yaml then roll out version 3, which is blessed and waits",
    ]
    assert "recommends" not in str(lines)  # version 1 may not
    retired = {name: model for name, model in MODELS.items() if name != "champion"}  # `make serve` passes it over
    for served in ({"champion": 3}, {"champion": 1, "models": retired}):
        assert "deploy-canary" not in str(ending(blessed=BLESSED, stages=STAGES, **served))


def test_a_run_that_stops_at_its_log_names_the_command_that_lists_all_problems(ending: Any, tmp_path: Path) -> None:
    ending()
    advice = advice_after_failure(tmp_path, "specs/mine.yaml", {"ingest": "column 'x' is missing"})
    assert advice.endswith(".venv/bin/shortlist check specs/mine.yaml --data /logs")
    assert advice_after_failure(tmp_path, "specs/mine.yaml", {"train_trees": "too large"}) == ""


def test_a_gate_of_a_package_names_its_result_on_the_page(ending: Any) -> None:
    lines = ending(gates=[{"name": "fairness", "model": "trees", "passed": False, "reason": ""}])
    first = lines[lines.index("Next:") + 1]
    assert re.fullmatch(r"  runs/latest/report.html#gates +gate 'fairness': what it measured", first)


def test_a_log_with_collected_rows_is_not_all_in_its_files(ending: Any, tmp_path: Path) -> None:
    ending()
    arguments = {"log": {"location": "/logs"}, "data": json.dumps({"live": {"collect": True}})}
    (tmp_path / "arguments.json").write_text(json.dumps(arguments))
    advice = advice_after_failure(tmp_path, "specs/mine.yaml", {"validate": "a rule is broken"})
    assert advice.endswith("(of the files alone; the quarantine on the run's page holds the collected rows)")
