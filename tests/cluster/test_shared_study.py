"""Batches of a tuning search share one study in PostgreSQL."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from models.registry import KINDS
from shortlist.contracts import Files, ShortlistError
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.registry import kind_of
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Tune
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.run_context import RunContext
from shortlist.training.tuning.batches import OUTCOME_FILE, TrialBatch, choose_best_trials, plan_batches
from shortlist.training.tuning.outcome import PAGE
from shortlist.training.tuning.search import SearchOutcome, SearchSettings, search
from shortlist.training.tuning.shared_study import SharedStudy
from shortlist.training.tuning.trial import OnLoss, TrialFailure, TrialJob

TRIALS, BATCHES = 12, 2
TREES = next(iter(KINDS))
SECTION = kind_of(TREES).section.model_validate({"kind": TREES, "features": ["age"], "rounds": 20})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    folder.mkdir()
    (folder / Files.TABLE).write_text("the manifest, of which a study knows the digest alone")
    return folder


@pytest.fixture
def context(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    monkeypatch.setenv("RECORDS", postgres)
    stores = StorageConfig(folder=tmp_path / "runs/stores", cluster="one", database_variable="RECORDS")
    return RunContext(name="demo", stores=str(stores))


@pytest.fixture
def batches(context: RunContext, table: Path) -> list[TrialBatch]:
    declared = DeclaredModel(name="trees", section=SECTION.model_dump(mode="json"))
    tune = Tune(trials=TRIALS, minutes=None, batches=BATCHES, metric="auc")
    texts = plan_batches([declared.text], tune, Runtime(engine="cpu"), table, context.tracker)
    return [TrialBatch.model_validate_json(text) for text in texts]


def depth_score(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float]:
    """Measure what a deeper tree would, without a training."""
    auc = 0.5 + 0.01 * job.section["max_depth"] + 0.001 * job.section["learning_rate"]
    return {"auc": auc, "log_loss": 1 - auc}


def settings_of(batch: TrialBatch, table: Path, context: RunContext) -> SearchSettings:
    return batch.search(Runtime(engine="cpu"), table, context.stores)


def test_batches_at_the_same_time_share_trials_and_the_declared_section_is_tried_once(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path
) -> None:
    barrier = Barrier(BATCHES)

    def search_batch(batch: TrialBatch) -> SearchOutcome:
        def run(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float]:
            barrier.wait(60)  # each trial of one batch is open while one of the other is
            return depth_score(job, on_loss, deadline)

        folder = tmp_path / f"batch-{batch.number}"
        settings = settings_of(batch, table, context)
        outcome = search(settings, folder, run=run)
        assert settings.shared_study is not None
        study = settings.shared_study.name
        record = {"run": batch.run, "study": study, "result": outcome.model_dump(mode="json")}
        (folder / OUTCOME_FILE).write_text(json.dumps(record))
        return outcome

    with ThreadPoolExecutor(BATCHES) as pool:
        outcomes = list(pool.map(search_batch, batches))
    trials = [trial for outcome in outcomes for trial in outcome.trials]
    assert [len(outcome.trials) for outcome in outcomes] == [TRIALS // BATCHES] * BATCHES
    assert sorted(trial.number for trial in trials) == list(range(TRIALS))  # numbers of one study
    assert sum(trial.shipped for trial in trials) == 1
    assert max(Counter(str(trial.changes) for trial in trials).values()) == 1

    best = json.loads(choose_best_trials([tmp_path / f"batch-{n}" for n in range(BATCHES)], context, tmp_path / "out"))
    assert best["trees"]["value"] == max(trial.value or 0 for trial in trials)
    # Neither batch has the eight finished trials that importance needs; the study has twelve.
    assert "By functional ANOVA over the finished trials" in (tmp_path / "out/trees" / PAGE).read_text()


def end_process(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float]:
    os._exit(9)


def test_a_batch_whose_pod_was_killed_goes_on_in_the_next_pod(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path
) -> None:
    first, second = batches
    first_settings, second_settings = (settings_of(batch, table, context) for batch in (first, second))
    arguments = first_settings, tmp_path / "killed"
    killed = get_context("spawn").Process(target=search, args=arguments, kwargs={"run": end_process})
    killed.start()
    killed.join(120)
    assert killed.exitcode == 9
    # The other batch neither ends the trial of the first, which may be running, nor tries the declared section too.
    second_outcome = search(second_settings, tmp_path / "b", run=depth_score)
    assert [trial.shipped for trial in second_outcome.trials] == [False] * (TRIALS // BATCHES)
    outcome = search(first_settings, tmp_path / "a", run=depth_score)
    assert [trial.state for trial in outcome.trials] == ["failed"] + ["finished"] * (TRIALS // BATCHES)
    assert [trial.shipped for trial in outcome.trials[:2]] == [True, True]  # it is tried again
    assert outcome.shipped is not None
    outcome_after_budget = search(first_settings, tmp_path / "c", run=end_process)
    assert outcome_after_budget.trials == outcome.trials


def fail_trial(job: TrialJob, on_loss: OnLoss, deadline: float | None) -> dict[str, float]:
    if job.section == SECTION.without_refit.model_dump(mode="json"):
        raise TrialFailure("no memory")
    return depth_score(job, on_loss, deadline)


def test_a_declared_section_that_always_fails_costs_the_trials_of_the_first_batch_alone(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path
) -> None:
    first, second = (
        search(settings_of(batch, table, context), tmp_path / f"{batch.number}", run=fail_trial) for batch in batches
    )
    assert {(trial.shipped, trial.reason) for trial in first.trials} == {(True, "no memory")}
    assert {(trial.shipped, trial.state) for trial in second.trials} == {(False, "finished")}


def test_a_trial_whose_end_finds_no_database_is_kept_when_it_comes_back(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    moments = iter(["before", "before", "after"])
    tell: Callable[..., Any] = optuna.Study.tell

    def tell_late(study: optuna.Study, *arguments: Any, **options: Any) -> Any:
        moment = next(moments, "")
        if moment != "before":
            tell(study, *arguments, **options)
        if moment:  # after: the trial has ended, and the answer is lost
            raise optuna.exceptions.StorageInternalError("the server is away")

    monkeypatch.setattr(optuna.Study, "tell", tell_late)
    outcome = search(settings_of(batches[0], table, context), tmp_path, run=depth_score)
    assert [trial.state for trial in outcome.trials] == ["finished"] * (TRIALS // BATCHES)
    assert next(moments, None) is None


def test_an_account_without_the_right_to_create_schemas_uses_an_existing_schema(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path, postgres: str
) -> None:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE ROLE tuner LOGIN PASSWORD 'tuner'")
        connection.execute("CREATE SCHEMA shortlist_tuning AUTHORIZATION tuner")
        connection.execute("GRANT CREATE ON SCHEMA public TO tuner")  # for its records
        try:
            address = f"postgresql://tuner:tuner@{postgres.rpartition('@')[2]}"
            settings = settings_of(batches[0], table, context)._replace(shared_study=SharedStudy(address, "trees-1"))
            assert search(settings, tmp_path, run=depth_score).best is not None
        finally:
            connection.execute("DROP OWNED BY tuner CASCADE")
            connection.execute("DROP ROLE tuner")


def test_a_database_that_is_not_there_is_named_without_its_password(
    batches: list[TrialBatch], context: RunContext, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable_study = SharedStudy("postgresql://me:secret@127.0.0.1:1/none", "trees-1")
    monkeypatch.setattr("shortlist.storage.records.postgres_server.PATIENCE_SECONDS", 0.1)
    with pytest.raises(ShortlistError, match=r"127\.0\.0\.1:1/none") as raised:
        search(
            settings_of(batches[0], table, context)._replace(shared_study=unreachable_study), tmp_path, run=depth_score
        )
    assert "secret" not in str(raised.value)
