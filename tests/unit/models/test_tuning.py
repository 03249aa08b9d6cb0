"""Searching for better settings: spaces, trials that fail in every way, studies that go on, patches."""

from __future__ import annotations

import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from models.registry import KINDS
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.registry import kind_of
from shortlist.spec.load import SpecError, parse_spec
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Dimension, Tune, apply_section_changes, check_space
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.store_access import sqlite_uri
from shortlist.training.tuning.batches import TrialBatch, choose_best_trials, plan_batches
from shortlist.training.tuning.outcome import PAGE, PATCH, write_outcome
from shortlist.training.tuning.search import STUDY, SearchOutcome, SearchSettings, Trial, search
from shortlist.training.tuning.space import optuna_distributions, search_space, section_changes, shipped_params
from shortlist.training.tuning.tracked import TrackedSearch
from shortlist.training.tuning.trial import OnLoss, TrialFailure, TrialJob, measure, run_trial
from tests.page_rules import HOSTILE, injected, planted, problems_of

DEMO = Path(__file__).parents[3] / "pipelines/specs/demo.yaml"
TREES = next(iter(KINDS))
"""A kind that reports the validation loss of every step."""


def section(**changes: Any) -> ModelSection:
    return kind_of(TREES).section.model_validate({"kind": TREES, "features": ["age"], "rounds": 20, **changes})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("{max_depth: {low: 2, high: 30}}", r"tune\.models\.xgboost\.max_depth\.high: .*equal to 16 \(got 30\)"),
        ("{subsample: {low: 0, high: 1}}", r"xgboost\.subsample\.low: Input should be greater than 0 \(got 0\)"),
        ("{max_dept: {low: 2, high: 3}}", r"xgboost\.max_dept: kind xgboost has no such key; did you mean 'max_depth'"),
        ("{max_depth: {low: 2.5, high: 4}}", r"xgboost\.max_depth\.low: Input should be a valid integer"),
        ("{max_depth: {choices: [3, 40]}}", r"xgboost\.max_depth\.choices\.1: .* \(got 40\)"),
        ("{features: {low: 1, high: 2}}", r"xgboost\.features: not a number; declare choices"),
        ("{refit: {choices: [true]}}", r"xgboost\.refit: a search does not change this key"),
        ("{max_depth: {low: 4, high: 4}}", r"low 4\.?0? is not below high 4"),
        ("{reg_lambda: {low: 0, high: 4, log: true}}", "with log: true, numbers must be above 0"),
        ("{max_depth: {low: 4}}", "wanted choices, or low and high"),
        ("{max_depth: {choices: [3], low: 1}}", "leave low, high, log and step out"),
    ],
)  # fmt: skip
def test_a_space_beyond_the_sections_bounds_is_refused(space: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec(DEMO.read_text(), changes=[f"tune.models.xgboost={space}"])


def test_a_space_for_a_model_that_is_not_declared_is_refused() -> None:
    with pytest.raises(SpecError, match=r"tune\.models\.xgbost: no model is called 'xgbost'; did you mean 'xgboost'"):
        parse_spec(DEMO.read_text(), changes=["tune.models.xgbost={max_depth: {low: 2, high: 3}}"])


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(SpecError, match="declare minutes or trials"):
        parse_spec(DEMO.read_text(), changes=["tune.minutes=null"])


@pytest.mark.parametrize("name", [name for name in KINDS if kind_of(name).tuning.space])
def test_the_usual_space_of_a_kind_is_within_its_bounds(name: str) -> None:
    kind = kind_of(name)
    required = {"history": "past", "target": "item"} if "history" in kind.section.model_fields else {}
    usual = kind.section.model_validate({"kind": name, "features": ["age"], **required})
    check_space(name, usual, kind.tuning.space)
    space = search_space(Tune(), name, usual)
    params = shipped_params(space, usual)
    assert (
        apply_section_changes(usual, section_changes(space, params)) == usual
    )  # the section's own values are in its space
    assert set(optuna_distributions(space, usual)) == set(space)
    assert not kind.tuning.pace or kind.tuning.pace in type(usual).model_fields


def test_a_space_takes_in_the_sections_own_values() -> None:
    shipped = section(max_depth=12, reg_lambda=0, subsample=0.31)
    space = search_space(Tune(), "trees", shipped)
    assert space["max_depth"].high == 12
    assert space["subsample"].low == 0.31
    assert space["reg_lambda"].choices is not None  # 0 has no logarithm
    assert space["reg_lambda"].choices[:2] == (0, 0.1)
    grid = Tune.model_validate({"models": {"trees": {"max_depth": {"low": 2, "high": 9, "step": 2}}}})
    with pytest.raises(ShortlistError, match=r"own value, 5, is none of 2, 4\.?0?, \.\.\. 9"):
        search_space(grid, "trees", section(max_depth=5))


def test_a_kind_without_a_usual_space_says_what_to_declare() -> None:
    plain = next(
        name for name in KINDS if not kind_of(name).tuning.space and "features" in kind_of(name).section.model_fields
    )
    usual = kind_of(plain).section.model_validate({"kind": plain, "features": ["age"]})
    with pytest.raises(ShortlistError, match=r"no usual search space; declare one as tune\.models\.plain"):
        search_space(Tune(), "plain", usual)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ([], None),
        (["gates.metric=gauc"], "gauc"),
        (["gates.metric=auc"], "auc"),
        (["gates.metric=gauc", "tune.metric=log_loss"], "log_loss"),
    ],
)
def test_what_is_compared_is_what_the_gates_decide_by(changes: list[str], metric: str | None) -> None:
    assert parse_spec(DEMO.read_text(), changes=changes).search.metric == metric


def test_gauc_without_users_is_refused() -> None:
    minimal = DEMO.parents[2] / "tests/specs/valid/minimal.yaml"
    text = minimal.read_text().replace("  user: user_id\n", "").replace("  item: item_id\n", "")
    with pytest.raises(SpecError, match=r"tune\.metric: gauc is measured within each user, and data\.user names no"):
        parse_spec(text, changes=["tune.metric=gauc"])


def with_users(table: DayTable, folder: Path, users: pl.Expr | None) -> DayTable:
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=1_000)
    for _, frame in table.frames():
        named = frame.drop(Columns.USER) if users is None else frame.with_columns(users.alias(Columns.USER))
        writer.append(named)
    return writer.close(dict(table.notes))


@pytest.mark.parametrize(
    ("users", "metric"),
    [
        (None, "auc"),
        (pl.col(Columns.USER) % 99, "auc"),  # fewer than a hundred
        (pl.col(Columns.IMPRESSION) % 100, "gauc"),
        (pl.col(Columns.IMPRESSION), "auc"),  # nobody has two rows, so nobody has rows of both classes
    ],
)
def test_where_nothing_is_declared_the_users_of_the_validation_days_decide(
    table: DayTable, tmp_path: Path, users: pl.Expr | None, metric: str
) -> None:
    table_with_users = with_users(table, tmp_path / "table", users)
    assert (
        SearchSettings.from_spec(Tune(), "trees", section(), Runtime(engine="cpu"), table_with_users.folder).metric
        == metric
    )
    assert (
        SearchSettings.from_spec(
            Tune(metric="log_loss"), "trees", section(), Runtime(engine="cpu"), table_with_users.folder
        ).metric
        == "log_loss"
    )


def test_trials_do_not_fit_the_validation_days() -> None:
    shipped = section(refit=True, retrain="refit")
    assert (shipped.without_refit.refit, shipped.without_refit.retrain) == (False, "scratch")  # type: ignore[attr-defined]
    assert apply_section_changes(shipped.without_refit, {}) == shipped.without_refit  # and it is valid so


# --- the search, with scripted trials ------------------------------------------------------------------------------


class Trials:
    """A stand-in for trainings: trials end with the given outcomes, in order."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.jobs: list[TrialJob] = []

    def __call__(self, job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float] | None:
        self.jobs.append(job)
        outcome = self.outcomes.pop(0) if self.outcomes else 0.5
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, list):
            return (
                {"auc": 0.5, "gauc": 0.5, "log_loss": 0.6}
                if all(on_loss(step, loss) for step, loss in outcome)
                else None
            )
        return outcome if isinstance(outcome, dict) else {"auc": outcome, "log_loss": 1 - outcome}


def searched(table: DayTable, **changes: Any) -> SearchSettings:
    settings = SearchSettings.from_spec(
        Tune(trials=4, minutes=None, metric="auc"), "trees", section(), Runtime(engine="cpu"), table.folder
    )
    return settings._replace(**changes)


def test_the_shipped_section_comes_first_and_wins_against_equal_trials(table: DayTable, tmp_path: Path) -> None:
    trials = Trials(0.7, 0.6, 0.7, 0.65)
    outcome = search(searched(table), tmp_path, run=trials)
    assert [trial.value for trial in outcome.trials] == [0.7, 0.6, 0.7, 0.65]
    assert trials.jobs[0].section == section().without_refit.model_dump(mode="json")
    assert outcome.best == outcome.shipped == outcome.trials[0]  # an equal one is no reason to change anything
    assert all(trial.changes for trial in outcome.trials[1:])
    assert not (tmp_path / PATCH).exists()
    assert "No trial is better than the shipped section" in "\n".join(write_outcome(outcome, "demo", tmp_path))
    assert not (tmp_path / PATCH).exists()


def test_by_log_loss_lower_is_better(table: DayTable, tmp_path: Path) -> None:
    outcome = search(searched(table, metric="log_loss"), tmp_path, run=Trials(0.6, 0.7, 0.5, 0.65))
    assert outcome.best is not None
    assert outcome.best.value == pytest.approx(0.3)


def test_by_gauc_the_order_within_users_decides_and_is_printed(table: DayTable, tmp_path: Path) -> None:
    metrics = {"auc": 0.8, "gauc": 0.60, "log_loss": 0.5}
    orders = Trials(metrics, {**metrics, "gauc": 0.61, "auc": 0.7}, {**metrics, "gauc": 0.55, "auc": 0.9}, metrics)
    outcome = search(searched(table, metric="gauc"), tmp_path, run=orders)
    assert outcome.best is not None
    assert (outcome.best.number, outcome.best.value, outcome.best.auc) == (1, 0.61, 0.7)
    assert {job.metric for job in orders.jobs} == {"gauc"}
    lines = "\n".join(write_outcome(outcome, "demo", tmp_path))
    assert "trial 1, AUC 0.7000, GAUC 0.6100, log loss 0.5000; as shipped AUC 0.8000, GAUC 0.6000" in lines
    page = (tmp_path / PAGE).read_text()
    assert '<th scope="col" class="num">GAUC</th>' in page and "GAUC on the validation days" in page


def test_a_trial_that_fails_is_recorded_and_the_study_goes_on(table: DayTable, tmp_path: Path) -> None:
    dead = TrialFailure("killed by SIGKILL, most often for want of memory")
    reported: list[Trial] = []
    outcome = search(searched(table), tmp_path, reported.append, Trials(0.6, dead, 0.7, 0.5))
    assert [trial.state for trial in outcome.trials] == ["finished", "failed", "finished", "finished"]
    assert outcome.trials[1].reason == "killed by SIGKILL, most often for want of memory"
    assert outcome.best is not None
    assert outcome.best.number == 2
    assert tuple(reported) == outcome.trials


def test_a_shipped_section_that_fails_is_repeated_and_reported(table: DayTable, tmp_path: Path) -> None:
    outcome = search(searched(table, trials=2), tmp_path, run=Trials(TrialFailure("no memory"), TrialFailure("again")))
    assert [trial.shipped for trial in outcome.trials] == [True, True]
    assert outcome.best is None
    lines = "\n".join(write_outcome(outcome, "demo", tmp_path))
    assert "The shipped section was not measured: again" in lines
    assert "No trial was measured" in lines


def test_a_study_goes_on_where_it_stopped(table: DayTable, tmp_path: Path) -> None:
    first = Trials(0.6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        search(searched(table), tmp_path, run=first)
    second = Trials(0.7, 0.5, 0.5)
    outcome = search(searched(table), tmp_path, run=second)
    assert len(second.jobs) == 3  # four trials in all: the one that was cut off is not counted
    assert [trial.shipped for trial in outcome.trials] == [True, False, False, False, False]
    assert outcome.trials[1].state == "failed"
    assert len({str(trial.changes) for trial in outcome.trials}) == 5  # and it repeats nothing
    assert search(searched(table), tmp_path, run=Trials()).trials == outcome.trials  # the budget is spent
    other_study = search(searched(table, section=section(max_depth=3)), tmp_path, run=Trials(0.1))
    assert len(other_study.trials) == 4  # another section is another study in the same file


def test_a_study_of_an_earlier_version_goes_on(table: DayTable, tmp_path: Path) -> None:
    search(searched(table, trials=2), tmp_path, run=Trials(0.8, 0.6))
    with sqlite3.connect(tmp_path / STUDY) as study:
        assert study.execute("DELETE FROM trial_user_attributes WHERE key = 'batch'").rowcount == 2
    outcome = search(searched(table), tmp_path, run=Trials(0.7, 0.5))
    assert [trial.value for trial in outcome.trials] == [0.8, 0.6, 0.7, 0.5]
    assert outcome.best == outcome.shipped == outcome.trials[0]


def test_only_hopeless_trials_are_stopped(table: DayTable, tmp_path: Path) -> None:
    good, bad = ([(step, loss) for step in range(1, 100)] for loss in (0.5, 0.9))
    outcome = search(searched(table, trials=8), tmp_path, run=Trials(bad, *[good] * 6, bad))
    assert [trial.state for trial in outcome.trials] == ["finished"] * 7 + ["stopped early"]


def test_the_time_ends_a_search_but_not_the_shipped_section(table: DayTable, tmp_path: Path) -> None:
    deadlines: list[float | None] = []

    def run(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float] | None:
        deadlines.append(deadline)
        time.sleep(0.02)
        return {"auc": 0.5, "log_loss": 0.6}

    outcome = search(searched(table, trials=None, minutes=1e-4), tmp_path, run=run)
    assert deadlines == [None]
    assert len(outcome.trials) == 1


def test_two_searches_in_one_folder_are_refused(table: DayTable, tmp_path: Path) -> None:
    def run(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float] | None:
        with pytest.raises(ShortlistError, match="another process searches here"):
            search(searched(table), tmp_path)
        return None

    search(searched(table, trials=1), tmp_path, run=run)


def test_a_damaged_study_is_refused(table: DayTable, tmp_path: Path) -> None:
    (tmp_path / STUDY).write_text("no database at all, and long enough to be looked at as one")
    with pytest.raises(ShortlistError, match=r"study\.db: cannot be read or written: .* Delete it"):
        search(searched(table), tmp_path, run=Trials())


# --- trials that are real processes ---------------------------------------------------------------------------------


def job(table: DayTable, **changes: Any) -> TrialJob:
    trial_section = section(**changes).without_refit
    return TrialJob(
        kind=trial_section.kind, name="trees", section=trial_section.model_dump(mode="json"),
        runtime=Runtime(engine="cpu"), table=str(table.folder),
    )  # fmt: skip


def test_a_trial_trains_and_measures_the_validation_days(table: DayTable) -> None:
    losses: list[float] = []
    measured = run_trial(job(table), lambda step, loss: not losses.append(loss))  # type: ignore[func-returns-value]
    assert measured is not None
    assert 0.5 < measured["auc"] < 1
    assert measured["log_loss"] == pytest.approx(min(losses), abs=1e-5)


def test_a_trial_measures_the_order_within_users(table: DayTable, tmp_path: Path) -> None:
    table_with_users = with_users(table, tmp_path / "table", pl.col(Columns.USER))
    measured = measure(job(table_with_users).model_copy(update={"metric": "gauc"}), lambda line: None)
    rows = pl.concat(frame for day, frame in table_with_users.frames() if day == table_with_users.days[-2].day)
    ranker = kind_of(TREES).load("ranker")(section().without_refit, "trees")
    ranker.fit(table_with_users, Runtime(engine="cpu"))
    expected = 0.0
    for _, of_user in rows.with_columns(score=pl.Series(ranker.predict(rows))).group_by(Columns.USER):
        expected += of_user.height * roc_auc_score(of_user[Columns.LABEL], of_user["score"])
    assert measured["gauc"] == pytest.approx(expected / rows.height, abs=1e-6)


def test_a_metric_that_cannot_be_measured_is_the_trials_reason(table: DayTable, tmp_path: Path) -> None:
    lonely = with_users(table, tmp_path / "table", pl.col(Columns.IMPRESSION))
    with pytest.raises(ShortlistError, match=r"tune\.metric: gauc: no user has clicks and other rows"):
        measure(job(lonely).model_copy(update={"metric": "gauc"}), lambda line: None)


@pytest.mark.long
def test_what_a_trial_refuses_is_its_reason(table: DayTable, tmp_path: Path) -> None:
    wrong = job(table).model_copy(update={"table": str(tmp_path)})
    with pytest.raises(TrialFailure, match=Files.TABLE):
        run_trial(wrong, lambda step, loss: True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "killed by SIGKILL, most often for want of memory"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "killed by SIGSEGV"),
        ("raise MemoryError('Unable to allocate 9 TiB')", "exit code 1: MemoryError: Unable to allocate 9 TiB"),
        ("raise SystemExit(3)", "exit code 3: without a word"),
        ("pass", "exit code 0: without a word"),
    ],
)
def test_the_end_of_a_dead_trial_is_its_reason(table: DayTable, code: str, reason: str) -> None:
    with pytest.raises(TrialFailure, match=reason):
        run_trial(job(table), lambda step, loss: True, command=(sys.executable, "-c", code))


@pytest.mark.parametrize("late", [True, False])
def test_a_trial_that_is_stopped_leaves_no_process(table: DayTable, tmp_path: Path, late: bool) -> None:
    say = "import sys, time, os, pathlib; f = pathlib.Path(sys.argv[1])"
    say += f"; pathlib.Path('{tmp_path}/pid').write_text(str(os.getpid()))"
    say += "; (f / 'said.jsonl').write_text('{\"step\": 1, \"loss\": 9.0}\\n'); time.sleep(600)"
    deadline = time.monotonic() + 1 if late else None
    assert run_trial(job(table), lambda step, loss: late, deadline, (sys.executable, "-c", say)) is None
    if not late:
        pid = (tmp_path / "pid").read_text()
        assert not Path(f"/proc/{pid}").exists()


# --- files of a search -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    return Tracker(sqlite_uri(tmp_path_factory.mktemp("mlflow") / "mlflow.db"), "demo")


@pytest.fixture
def outcome() -> SearchOutcome:
    shipped = Trial(number=0, state="finished", shipped=True, changes={}, value=0.7, auc=0.7, log_loss=0.5)
    better = shipped.model_copy(
        update={"number": 2, "shipped": False, "value": 0.72, "auc": 0.72,
                "changes": {"max_depth": 4, "learning_rate": 0.05}}
    )  # fmt: skip
    failed = Trial(number=1, state="failed", shipped=False, changes={"max_depth": 16}, reason="<no memory>")
    return SearchOutcome(
        model="xgboost", metric="auc", trials=(shipped, failed, better), importance={"max_depth": 0.8, "x": 0.2}
    )


def test_the_patch_and_the_printed_command_say_the_same(outcome: SearchOutcome, tmp_path: Path) -> None:
    lines = write_outcome(outcome, "demo", tmp_path)
    patch = yaml.safe_load((tmp_path / PATCH).read_text())
    assert patch == {"models": {"xgboost": {"max_depth": 4, "learning_rate": 0.05}}}
    command = next(line for line in lines if "--set" in line).split("--set ")
    assert command[0].strip() == "shortlist run demo"
    by_command = parse_spec(DEMO.read_text(), changes=[change.strip() for change in command[1:]])
    declared = yaml.safe_load(DEMO.read_text())
    declared["models"]["xgboost"] |= patch["models"]["xgboost"]
    assert by_command == parse_spec(yaml.safe_dump(declared))
    page = (tmp_path / PAGE).read_text()
    assert page.count("<svg") == 2
    assert "&lt;no memory&gt;" in page


def test_no_text_of_a_search_runs_on_its_page(outcome: SearchOutcome, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    hostile = planted(outcome, kept={"importance"})
    last_trial = hostile.trials[-1].model_copy(update={"state": "finished", "value": 0.72})
    write_outcome(hostile.model_copy(update={"trials": (*hostile.trials[:-1], last_trial)}), HOSTILE, folder)
    page = (folder / PAGE).read_text()
    assert injected(page, least=8) == []
    assert "default-src 'none'" in page


def test_the_page_keeps_the_rules_of_pages(outcome: SearchOutcome, tmp_path: Path) -> None:
    write_outcome(outcome, "demo", tmp_path)
    assert problems_of((tmp_path / PAGE).read_text()) == []


def test_a_search_that_finds_nothing_removes_the_last_ones_patch(outcome: SearchOutcome, tmp_path: Path) -> None:
    write_outcome(outcome, "demo", tmp_path)
    write_outcome(outcome.model_copy(update={"trials": outcome.trials[:1]}), "demo", tmp_path)
    assert not (tmp_path / PATCH).exists()


@pytest.mark.long
def test_every_trial_is_a_nested_run(outcome: SearchOutcome, tracker: Tracker) -> None:
    tracked = TrackedSearch(tracker, "trees", section(), "study")
    for trial in outcome.trials:
        tracked.log(trial)
    tracked.close(outcome)
    resumed = TrackedSearch(tracker, "trees", section(), "study")
    assert resumed.run == tracked.run  # a search that goes on adds to its run
    trial_runs = tracker.nested_runs(tracked.run)
    assert [run.tags["mlflow.runName"] for run in trial_runs] == ["as shipped", "trial 1", "trial 2"]
    assert trial_runs[1].tags["reason"] == "<no memory>"


def test_batches_share_the_trials_and_are_put_together(table: DayTable, tmp_path: Path, outcome: SearchOutcome) -> None:
    context = RunContext(name="demo", stores=str(StorageConfig(folder=tmp_path / "stores", epoch="1")))
    tracker = context.tracker
    declared = DeclaredModel(name="trees", section=section().model_dump(mode="json"))
    runtime = Runtime(engine="cpu")
    tune = Tune(trials=5, minutes=None, batches=2)
    batches = [
        TrialBatch.model_validate_json(text)
        for text in plan_batches([declared.text], tune, runtime, table.folder, tracker)
    ]  # fmt: skip
    searches = [batch.search(runtime, table.folder, context.stores) for batch in batches]
    assert [(settings.trials, settings.batch) for settings in searches] == [(3, 0), (3, 1)]
    assert searches[0].key != searches[1].key
    with pytest.raises(ShortlistError, match=r"no candidate has a search space; declare one in tune\.models"):
        plan_batches([declared.model_copy(update={"section": {**declared.section, "role": "baseline"}}).text], tune,
                     runtime, table.folder, tracker)  # fmt: skip
    folders = []
    for batch, trials in zip(batches, (outcome.trials[:2], outcome.trials[2:]), strict=True):
        folders.append(tmp_path / f"study-{batch.number}")
        folders[-1].mkdir()
        part = outcome.model_copy(update={"trials": trials})
        (folders[-1] / "result.json").write_text(
            f'{{"run": "{batch.run}", "study": "", "result": {part.model_dump_json()}}}'
        )  # fmt: skip
    assert '"number": 2' in choose_best_trials(folders, context, tmp_path / "outcome")
    assert (tmp_path / "outcome/xgboost" / PATCH).exists()
    with pytest.raises(ShortlistError, match="no trial of xgboost was measured"):
        unmeasured = outcome.model_copy(update={"trials": ()}).model_dump_json()
        (folders[0] / "result.json").write_text(f'{{"run": "{batches[0].run}", "study": "", "result": {unmeasured}}}')
        choose_best_trials(folders[:1], context, tmp_path / "none")


def test_dimension_choices_can_be_lists() -> None:
    widths = Dimension(choices=((32,), (64, 32)))
    network = next(kind_of(name) for name in KINDS if "top_mlp" in kind_of(name).section.model_fields)
    usual = network.section.model_validate({"kind": network.name, "features": ["age"], "top_mlp": [8]})
    space = search_space(Tune(models={"net": {"top_mlp": widths}}), "net", usual)
    assert space["top_mlp"].choices == ([8], [32], [64, 32])
    assert section_changes(space, {"top_mlp": "[64, 32]"}) == {"top_mlp": [64, 32]}
