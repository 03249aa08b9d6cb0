"""The compiled training pipeline, run for real with kfp.local, Feast, MLflow and SQLite."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import polars as pl
import pytest
import yaml

from benchmarks.kills import kill_in_runs
from monitoring.store.monitoring_store import open_monitoring_store
from monitoring.windows.records import RetrainDecision
from shortlist.evaluation.comparison import ModelComparison
from shortlist.report.summary import Summary
from shortlist.runs.growth import NEVER_REUSED
from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

ROOT = Path(__file__).parents[2]


END = datetime(2026, 1, 12, tzinfo=UTC)
"""End of the first run's log, a day before the end of the last one's."""
LINE = {
    "kind": "logistic",
    "role": "baseline",
    "features": ["*"],
    "bins": [0],
    "l2": [1e-5],
    "refit": False,
    "epochs": 3,
}
"""The baseline without its search for settings, which costs more than the trees of a small run."""


class Run(NamedTuple):
    """A run that ended."""

    code: int
    summary: dict[str, Any]
    folder: Path


def run(spec: dict[str, Any], runs: Path, data: Path | None = None, until: datetime | None = None) -> Run:
    """Run a spec given as plain data, as `make run` does."""
    code = run_locally(parse_spec(yaml.safe_dump(spec)), data, runs, until=until)
    latest = (runs / "latest").resolve()
    return Run(code, json.loads((latest / "summary.json").read_text()), latest)


def small_demo() -> dict[str, Any]:
    """The shipped demo on fewer rows and with smaller models; every kind of feature stays."""
    spec = shipped_demo()
    spec["data"]["source"] |= {"rows": 20_000, "users": 800, "items": 300, "days": 8}
    spec["data"]["rules"] = {**spec["data"].get("rules", {}), "min_rows": 1_000}
    spec["models"]["xgboost"] |= {"rounds": 60, "learning_rate": 0.2}
    spec["models"]["dlrm"] |= {"epochs": 1}
    spec["models"]["logistic"] = LINE
    spec["models"]["dlrm"] |= {"learning_rate": 0.002}
    loose = {"max_calibration_error": 0.1, "max_rate_error": 0.3}  # a small model on few rows is poorly calibrated
    spec["gates"] = {"min_auc": 0.52, "min_test_rows": 500, "bootstrap_rounds": 60, "skew_rows": 100, **loose}
    spec["gates"]["infra"] = {"seconds": 0.5}
    spec["gates"]["slices"] = ["country", {"where": "surface = 'home'", "min_auc": 0.52, "max_drop": 0.1}]
    rate = "SELECT avg(score) / avg(label) FROM test_rows WHERE duration > 5 AND published_date IS NOT NULL"
    spec["gates"]["queries"] = {"rate_of_long": {"sql": rate, "min": 0.3, "max": 3}}
    sources = {"recent": {"kind": "popular", "keys": ["surface"]}, "together": {"kind": "co_visitation"}}
    spec["retrieval"] = {"candidates": 100, "sources": sources, "context": ["surface"]}
    spec["filters"]["fallback"] = ["recent"]
    spec["ordering"]["value"] = "score / (10 + COALESCE(rank_of_recent, 200))"
    return spec


def shipped_demo() -> dict[str, Any]:
    """The demo as it is shipped."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/demo.yaml").read_text())
    return spec


@pytest.fixture(scope="module")
def demo_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs that share one cache."""
    return tmp_path_factory.mktemp("demo") / "runs"


@pytest.fixture(scope="module")
def demo(demo_runs: Path) -> Run:
    """The first run of the small demo."""
    return run(small_demo(), demo_runs, until=END)


def executed(finished_run: Run) -> set[str]:
    return {name for name, step in finished_run.summary["steps"].items() if not step["cached"]}


def test_the_demo_ends_with_a_blessed_model(demo: Run) -> None:
    assert demo.code == 0
    summary = demo.summary
    jsonschema.validate(summary, Summary.model_json_schema())
    assert summary["blessed"]["version"] == "1"
    assert set(summary["models"]) >= {"xgboost", "dlrm", "popularity"}
    assert summary["rows"]["valid"] + summary["rows"]["quarantined"] == summary["rows"]["raw"]
    assert 0.5 < summary["models"]["popularity"]["auc"] < summary["models"]["xgboost"]["auc"] < 1
    assert {gate["name"] for gate in summary["gates"]} == {
        "data", "skew", "absolute", "champion", "calibration", "slices", "integrity", "parity", "infra", "retrieval",
        "slates", "unknown_values", "value", "queries",
    }  # fmt: skip
    blessed_gates = {gate["name"]: gate["reason"] for gate in summary["gates"] if gate["passed"]}
    assert re.search(
        r"surface = 'home': AUC, lower bound 0\.\d+ >= 0\.5200 \(min_auc\), AUC difference", blessed_gates["slices"]
    )
    assert re.fullmatch(r"rate_of_long: [\d.]+ >= 0\.3 and <= 3", blessed_gates["queries"])
    assert "runs in a new process" not in (demo.folder / "pipeline.log").read_text()
    begin = (demo.folder.parent / "index.html").read_text()
    assert "version 1" in begin and f'href="{demo.folder.name}/report.html"' in begin
    compared = ModelComparison.model_validate_json((demo.folder / "compare.json").read_text())
    assert set(compared.models) == set(summary["models"])
    assert (compared.spec, compared.metric) == (summary["spec"], summary["metric"])
    page = (demo.folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page


def test_mlflow_leads_from_the_version_to_log_and_code(demo: Run, demo_runs: Path) -> None:
    tracker = Tracker(tracking_uri(demo_runs / "stores"), "demo")
    champion = tracker.registry.champion()
    assert champion is not None and champion.version == 1 == tracker.registry.version_of("candidate")
    assert champion.kind == demo.summary["blessed"]["model"]
    tags = tracker._client.get_run(champion.run_id).data.tags
    assert {"spec_digest", "data_digest", "code_version", "days.train", "days.test", "gates"} <= set(tags)
    assert tags["gates"] == "passed"
    assert sorted(path.name for path in champion.folder.iterdir() if path.is_dir()) == ["preprocessing", "serving"]


def test_an_unchanged_spec_reuses_the_verdict(demo: Run, demo_runs: Path) -> None:
    unchanged = run(small_demo(), demo_runs, until=END)
    assert unchanged.code == 0
    assert executed(unchanged) <= NEVER_REUSED
    same = ("models", "gates", "blessed", "rows", "best_possible")
    assert {name: unchanged.summary[name] for name in same} == {name: demo.summary[name] for name in same}
    registry = Tracker(tracking_uri(demo_runs / "stores"), "demo").registry
    assert (registry.version_of("champion"), registry.version_of("candidate")) == (1, 1)


def retrained_demo() -> dict[str, Any]:
    """The small demo, whose models go on from earlier ones."""
    spec = small_demo()
    spec["models"]["xgboost"] |= {"rounds": 120, "retrain": "continue", "retrain_rounds": 20, "retrain_days": 2}
    spec["models"]["dlrm"] |= {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 2}
    return spec


def retraining(until: datetime) -> RetrainDecision:
    """Return a decision of the monitoring job."""
    reasons = ("drift in surface: population stability index 0.31 > 0.20",)
    window = {"window": until - timedelta(days=1), "until": until, "made": until}
    key = "0123456789abcdef"
    return RetrainDecision(spec="demo", action="retrain", trigger="drift", key=key, reasons=reasons, **window)


@pytest.mark.long
def test_a_decided_training_continues_earlier_models_and_reads_no_later_row(demo: Run, demo_runs: Path) -> None:
    spec, runs = parse_spec(yaml.safe_dump(retrained_demo())), demo_runs
    second = END + timedelta(days=1)  # the log ends a day before
    decision, store = retraining(second - timedelta(hours=6)), open_monitoring_store(str(runs / "stores"), "demo")
    assert store.start(decision, "")
    assert run_locally(spec, None, runs, decision=decision) == 0
    (ended,) = store.retrainings()  # the runs before, a person's, are not counted until one is due
    assert ended.state in ("held", "not_promoted")  # nothing is served, so nothing can be promoted
    latest = runs / "latest"
    summary = json.loads((latest / "summary.json").read_text())
    cached = {name for name, step in summary["steps"].items() if step["cached"]}
    assert cached == {"ingest"}  # whatever started the run, the log is the same
    notes = [
        event["text"]
        for line in (latest / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "note"
    ]
    assert not any("from scratch" in text or "counted again" in text for text in notes)  # everything fitted
    tracker = Tracker(tracking_uri(runs / "stores"), "demo")
    champion = tracker.registry.champion()
    assert champion is not None
    assert tracker.registry.retrieval_of(champion.version) is not None  # its sources are released with it
    sources = [(line["stage"], line["source"]) for line in summary["stages"]]
    assert sources == [
        ("retrieval", "recent"), ("retrieval", "together"), ("retrieval", None),
        ("filtering", None), ("scoring", None), ("ordering", None),
    ]  # fmt: skip
    assert {"retrieval", "slates", "value"} <= {gate["name"] for gate in summary["gates"]}
    _, filtering, scoring, ordering = summary["stages"][2:]
    assert (filtering["model"], ordering["model"]) == (None, scoring["model"]) and scoring["model"] is not None
    assert scoring["recall"] == filtering["recall"] > ordering["recall"] > 0
    assert (ordering["items"], scoring["items"]) == (10, filtering["items"])
    assert ordering["ndcg_at_10"] > scoring["ndcg_at_10"]  # clicks are known of what is shown, the popular items
    assert "minus those of the champion" in (latest / "report.html").read_text()
    for kind in ("xgboost", "dlrm"):
        new, *_, first = tracker._client.search_runs([tracker._experiment], f"tags.kind = '{kind}'")
        tags = new.data.tags
        assert (tags["trigger"], tags["decision"]) == ("drift", "0123456789abcdef")
        assert tags["until"] == "2026-01-12T18:00:00+00:00"
        assert (tags["days.test"], tags["days.learnt"]) == ("2026-01-12..2026-01-12", "2026-01-08..2026-01-10")
        assert tags["continued_from.run"] == first.info.run_id
        assert (champion.version, tags.get("continued_from.version")) == (1, "1" if kind == champion.kind else None)
        assert first.data.tags["days.test"] == "2026-01-11..2026-01-11"
        beginning = "continue" if kind == "xgboost" else "warm"
        assert f"<dt>beginning of {kind}</dt><dd><code>{beginning} from " in (latest / "report.html").read_text()
    quarantine = pl.scan_parquet(runs / "cache/artefacts/*/validate/quarantine/quarantine.parquet").collect()
    assert quarantine["rule"].unique().to_list() == ["future"]


@pytest.fixture(scope="module")
def held_run(demo: Run, demo_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of bad candidates: three trees instead of sixty, and models of a kind of their own that learnt nothing."""
    packages = tmp_path_factory.mktemp("packages")
    metadata_folder = packages / "stuck_kind-1.0.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck-kind\nVersion: 1.0\n")
    (metadata_folder / "entry_points.txt").write_text("[shortlist.model_kinds]\nstuck = stuck_kind:KIND\n")
    (packages / "stuck_kind.py").write_text((Path(__file__).parent / "new_kind/stuck_kind.py").read_text())
    bad = small_demo()
    bad["models"]["xgboost"] |= {"rounds": 3}
    for name, scores in STUCK.items():
        bad["models"][name] = {"kind": "stuck", "features": ["duration_log"], "scores": scores}
    spec = packages / "held.yaml"
    spec.write_text(yaml.safe_dump(bad))
    # In a process of its own: one that has read a spec knows the kinds that there were.
    paths = os.pathsep.join([str(packages), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    completed = subprocess.run(
        [sys.executable, "-c", RUN_UNTIL, spec, demo_runs, END.isoformat()],
        env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout[-2_000:] + completed.stderr[-2_000:]
    latest = (demo_runs / "latest").resolve()
    return Run(completed.returncode, json.loads((latest / "summary.json").read_text()), latest)


STUCK = {"stuck_constant": "constant", "stuck_two": "two-valued", "stuck_saturated": "saturated", "stuck_nan": "NaN"}
"""Models of a kind that this test defines, by what their scores are."""
RUN_UNTIL = """
import sys
from datetime import datetime
from pathlib import Path
from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec
spec, runs, until = sys.argv[1:]
sys.exit(run_locally(parse_spec(Path(spec).read_text()), None, Path(runs), until=datetime.fromisoformat(until)))
"""


@pytest.mark.long
def test_a_changed_model_section_trains_that_model_alone_and_bad_candidates_are_held_with_a_page(
    demo: Run, held_run: Run
) -> None:
    """The network, which is no better than the champion, comes from the cache."""
    judged = {"score_champion", "evaluate_gates"}
    repeated_steps = NEVER_REUSED | judged
    new = {f"{step}_{name}" for step in ("train", "validate_export", "evaluate_slates") for name in ("xgboost", *STUCK)}
    assert executed(held_run) - repeated_steps == new
    assert judged <= executed(held_run)
    assert held_run.summary["models"]["champion"]["auc"] == pytest.approx(
        demo.summary["models"][demo.summary["blessed"]["model"]]["auc"], abs=1e-9
    )
    assert (held_run.code, held_run.summary["failed"], held_run.summary["blessed"]) == (0, None, None)
    assert "Nothing blessed" in (held_run.folder / "report.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("name", "scores"), STUCK.items())
def test_a_candidate_without_skill_is_held_with_its_page(held_run: Run, name: str, scores: str) -> None:
    reasons = " ".join(held_run.summary["reasons"][name])
    assert "passes every gate" not in reasons
    assert ("NaN" in reasons) == (scores == "NaN"), reasons
    assert name in (held_run.folder / "report.html").read_text()


def test_a_log_beyond_tolerance_stops_with_the_reason_and_keeps_the_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run = run(small_file_spec(), tmp_path / "runs", clicks(tmp_path, broken_rows=300))
    assert finished_run.code == 1
    assert finished_run.summary["failed"]["step"] == "validate"
    assert finished_run.summary["blessed"] is None
    printed = capsys.readouterr().out
    assert "label_is_binary" in printed and "quarantine" in printed
    assert "Traceback" not in printed
    assert "label_is_binary" in (finished_run.folder / "report.html").read_text()
    tracker = Tracker(tracking_uri(tmp_path / "runs/stores"), small_file_spec()["name"])
    (pipeline_run,) = tracker._client.search_runs([tracker._experiment], "tags.kind = 'pipeline'")
    assert pipeline_run.info.status == "FAILED"
    assert pipeline_run.data.tags["failure"].startswith("the step validate failed: the log breaks 1 rule(s)")
    assert "label_is_binary" in pipeline_run.data.tags["failure"]


@pytest.mark.long
def test_criteo_layout_needs_no_ids_and_no_clock_and_a_killed_run_is_continued_by_the_next(tmp_path: Path) -> None:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/criteo.yaml").read_text())
    spec["models"]["xgboost"] |= {"rounds": 20}
    spec["models"]["dlrm"] |= {"bottom_mlp": [16], "top_mlp": [16], "batch_size": 512}
    spec["models"]["logistic"] = LINE | {"role": "candidate"}
    spec["gates"] = {"min_auc": 0.52, "min_test_rows": 500, "bootstrap_rounds": 60, "skew_rows": 60}
    spec["gates"]["infra"] = {"seconds": 0.5}
    spec_file, runs = tmp_path / "spec.yaml", tmp_path / "runs"
    spec_file.write_text(yaml.safe_dump(spec))
    data = criteo_like(tmp_path / "train.tsv", rows=12_000)
    program = str(Path(sys.executable).parent / "shortlist")
    command = [program, "run", str(spec_file), "--data", str(data), "--runs", str(runs)]
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    events = wait_for_event(runs, '"event": "step", "step": "materialize_features"', child)
    kill_process_tree(child.pid)
    child.wait()
    assert '"event": "done", "name": "build_table"' in events.read_text()
    finished_run = run(spec, runs, data)
    assert finished_run.code == 0
    assert executed(finished_run).isdisjoint({"ingest", "validate", "fit_features", "build_table"})
    assert "materialize_features" in executed(finished_run)
    rows = finished_run.summary["rows"]
    assert (rows["raw"], rows["quarantined"]) == (12_000, 0)
    assert sum(rows[part] for part in ("train", "validation", "test")) == pytest.approx(12_000 * 6 / 7, abs=7)
    assert finished_run.summary["models"]["xgboost"]["auc"] > 0.6


@pytest.mark.long
@pytest.mark.timeout(1_800)  # killed commands wait as long as an undisturbed one takes
def test_eight_killed_processes_of_runs_change_no_result(tmp_path: Path) -> None:
    """Four at once, because what a command costs is its start; `make bench NAME=kills` kills one at once."""
    spec_file, log = tmp_path / "spec.yaml", clicks(tmp_path, 0)
    spec_file.write_text(yaml.safe_dump(small_file_spec() | {"models": {"logistic": {**LINE, "role": "candidate"}}}))
    program = str(Path(sys.executable).parent / "shortlist")

    def command(runs: Path) -> list[str]:
        return [program, "run", str(spec_file), "--data", str(log), "--runs", str(runs)]

    outcome = kill_in_runs(command, tmp_path, kills=8, seed=1, per_run=8, at_once=4)
    assert (outcome.kills, outcome.differences) == (8, [])


def small_file_spec() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((ROOT / "tests/specs/valid/minimal.yaml").read_text())
    spec["models"]["xgboost"] |= {"rounds": 10}
    spec["gates"] = {"min_auc": 0.52, "min_test_rows": 300, "bootstrap_rounds": 60, "skew_rows": 40}
    spec["gates"]["infra"] = {"seconds": 0.5}
    return spec


def clicks(folder: Path, broken_rows: int) -> Path:
    """Write a log of clicks on 40 items, whose first rows have labels that there are not."""
    random.seed(3)
    lines = ["user_id,item_id,price,clicked,time"]
    for number in range(6_000):
        item = random.randrange(40)
        clicked = int(random.random() < 0.1 + 0.6 * (item % 4 == 0)) if number >= broken_rows else 7
        time_s = 1_760_000_000 + number * 86_400 * 5 // 6_000
        lines.append(f"{random.randrange(200)},{item},{item * 1.5},{clicked},{time_s}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


def criteo_like(path: Path, rows: int) -> Path:
    random.seed(5)
    lines = []
    for _ in range(rows):
        kinds = [int(random.paretovariate(0.7)) % (50 * (column + 1)) for column in range(26)]
        clicked = int(random.random() < 0.1 + 0.5 * (kinds[0] % 3 == 0))
        numbers = [str(random.randrange(100)) if random.random() < 0.9 else "" for _ in range(13)]
        lines.append("\t".join([str(clicked), *numbers, *(f"{kind * 2654435761 % 2**32:08x}" for kind in kinds)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def wait_for_event(runs: Path, text: str, child: subprocess.Popen[bytes]) -> Path:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and child.poll() is None:
        for events in runs.glob("*/events.jsonl"):
            if text in events.read_text():
                return events
        time.sleep(0.05)
    raise AssertionError(f"the run never said {text}")


def kill_process_tree(pid: int) -> None:
    import psutil

    family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    for process in family:
        with contextlib.suppress(ProcessLookupError):  # it ended with one of the others
            os.kill(process.pid, signal.SIGKILL)
