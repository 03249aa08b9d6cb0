"""A further canary check: declared in the spec, or one function and one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import prometheus_server
import pytest
from prometheus_server import PrometheusServer

from shortlist.rollout.checks import analysis
from shortlist.rollout.checks.analysis import CANARY_CHECKS, CheckInputs
from shortlist.rollout.checks.analysis_observer import AnalysisObserver
from shortlist.rollout.checks.health import CheckResult, Health
from shortlist.rollout.checks.observations import CheckRecord, Observation
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import KPI, Canary
from shortlist.system import registry

QUERY = 'sum(gpu_memory{version="7"})'


@pytest.fixture
def prometheus() -> Iterator[PrometheusServer]:
    with prometheus_server.running() as server:
        yield server


def observe(folder: Path, checks: dict[str, dict[str, str]], retirement: str = "") -> Observation:
    """Analyse a canary with 20 logged requests, of which 5 were client errors of one user; return what was observed."""
    paths = ServingPaths.for_spec(folder, "demo")
    paths.logs.mkdir(parents=True)
    line = {"track": "canary", "rollout": "r1", "step": "0", "path": "/v2/models/demo/infer", "grpc": None, "us": 9_000}
    line["sender"] = "backend"
    lines = [
        {**line, "id": str(number), "user": f"u{max(number, 5)}", "status": 400 if number < 5 else 200}
        for number in range(20)
    ]
    (paths.logs / "envoy-a.access.jsonl").write_text("".join(json.dumps(logged) + "\n" for logged in lines))
    policy = Canary.model_validate({"checks": checks})
    health = Health(ready=True, version=7)
    observer = AnalysisObserver(
        EvidenceReader(paths, "r1", 4, KPI()), policy, lambda: health, "demo", retirement=retirement
    )
    return observer.observe_step(0, 1.0)


def find(observation: Observation, name: str) -> CheckRecord:
    return next(check for check in observation.checks if check.name == name)


@pytest.mark.parametrize(
    ("check", "passed", "reason"),
    [
        ({"breach": "canary_client_errors > 4"}, False, "canary_client_errors > 4 (canary_client_errors 5)"),
        ({"breach": "canary_client_errors > 5"}, True, "canary_client_errors > 5 (canary_client_errors 5)"),
        ({"breach": "canary_client_errors > 4", "wait": "canary_requests < 100"}, None, "canary_requests < 100"),
        ({"breach": "canary_kpi < 0.9 * stable_kpi"}, None, "no value yet of canary_kpi, stable_kpi"),
    ],
)
def test_a_condition_over_the_evidence(tmp_path: Path, check: dict[str, str], passed: bool | None, reason: str) -> None:
    result = find(observe(tmp_path, {"mistakes": check}), "mistakes")
    assert result.passed is passed
    assert result.reason.startswith(f"mistakes: {reason}")


def test_a_condition_over_scores_and_outcomes_of_a_retired_version_is_skipped(tmp_path: Path) -> None:
    checks = {
        "worse": {"breach": "canary_kpi < 0.9 * stable_kpi"},
        "soon": {"breach": "canary_failed >= 0", "wait": "stable_kpi_users < 5"},
        "mistakes": {"breach": "canary_client_errors > stable_client_errors"},
    }
    observation = observe(tmp_path, checks, "version 1 was retired: it reads dwell")
    assert {name: (find(observation, name).skipped, find(observation, name).passed) for name in checks} == {
        "worse": (True, True), "soon": (False, False), "mistakes": (False, False),
    }  # fmt: skip
    assert find(observation, "soon").reason.startswith("soon: canary_failed >= 0 (canary_failed ")  # no wait
    assert find(observation, "worse").reason == "not compared: version 1 was retired: it reads dwell"
    assert observation.decision == "roll_back"


def test_a_declared_breach_rolls_the_canary_back(tmp_path: Path) -> None:
    observation = observe(tmp_path, {"mistakes": {"breach": "canary_client_errors > 4"}})
    assert observation.decision == "roll_back"
    assert observation.reason == "at 5 %: mistakes: canary_client_errors > 4 (canary_client_errors 5)"


@pytest.mark.parametrize(
    ("values", "passed", "reason"),
    [
        ([0.97], False, "memory: value > 0.95 (value 0.97)"),
        ([0.5], True, "memory: value > 0.95 (value 0.5)"),
        ([], None, "memory: no value yet of value"),
        ([0.5, 0.6], None, f"memory: got 2 values of '{QUERY}', wanted one; add sum(...)"),
    ],
)
def test_a_query_of_prometheus(
    tmp_path: Path, prometheus: PrometheusServer, values: list[float], passed: bool | None, reason: str
) -> None:
    prometheus.values[QUERY] = values
    query = QUERY.replace("7", "$version")
    check = {"breach": "value > 0.95", "query": query, "prometheus": prometheus.url}
    result = find(observe(tmp_path, {"memory": check}), "memory")
    assert (result.passed, result.reason) == (passed, reason)


def test_a_prometheus_that_refuses_the_query_holds_the_rollout(tmp_path: Path, prometheus: PrometheusServer) -> None:
    check = {"breach": "value > 0.95", "query": "no query", "prometheus": prometheus.url}
    prometheus.broken = "nonsense"
    result = find(observe(tmp_path, {"memory": check}), "memory")
    assert result.passed is None
    assert "the answer to 'no query' is not Prometheus'" in result.reason


def few_client_errors(inputs: CheckInputs) -> CheckResult:
    """Breach when a fifth of the canary's requests were client errors."""
    canary = inputs.step_evidence.canary
    status = "breach" if canary.client_errors > 0.2 * canary.requests else "ok"
    return CheckResult("few_client_errors", status, f"{canary.client_errors} client errors")


def test_a_further_check_is_a_function_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANARY_CHECKS, "few_client_errors", few_client_errors)
    observation = observe(tmp_path, {})
    assert observation.decision == "roll_back"
    assert observation.reason == "at 5 %: 5 client errors"


CHECK_FILE = """
from shortlist.rollout.checks.analysis import CheckInputs
from shortlist.rollout.checks.health import CheckResult


def CHECK(inputs: CheckInputs) -> CheckResult:
    errors = inputs.step_evidence.canary.client_errors
    return CheckResult("mistakes", "breach" if errors > 4 else "ok", f"{errors} client errors")
"""


@pytest.mark.parametrize(
    ("text", "decision", "reason"),
    [
        (CHECK_FILE, "roll_back", "at 5 %: 5 client errors"),
        (CHECK_FILE.replace("> 4", "/ 0"), "hold", "mistakes: the check itself failed ({path}): ZeroDivisionError: "),
        (CHECK_FILE.replace("return CheckResult", ""), "hold", "({path}): TypeError: it returned NoneType"),
    ],
)
def test_a_check_in_a_file_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, decision: str, reason: str
) -> None:
    path = tmp_path / "project/pipelines/canary_checks/mistakes.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setattr(registry, "project_root", lambda: tmp_path / "project")
    checks = registry.Registry("canary_checks", dict(CANARY_CHECKS), file_attribute="CHECK")
    monkeypatch.setattr(analysis, "CANARY_CHECKS", checks)
    observation = observe(tmp_path, {})
    assert observation.decision == decision
    assert reason.format(path=path) in observation.reason
