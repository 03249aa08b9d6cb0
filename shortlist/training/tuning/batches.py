"""A search as a graph of steps: batches of trials that run in parallel, with one study where they share a database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.registry import kind_of
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.spec.tune import Tune
from shortlist.storage.artefacts import atomic_folder, read_json, write_json
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.steps import note
from shortlist.training.tuning.outcome import write_outcome
from shortlist.training.tuning.search import SearchOutcome, SearchSettings, merge_outcomes, search, shared_importance
from shortlist.training.tuning.shared_study import SharedStudy
from shortlist.training.tuning.tracked import TrackedSearch

OUTCOME_FILE: Final = "result.json"
RUNS_FILE: Final = "runs.json"
"""File with the MLflow run of every model's search, beside the outcomes."""


class TrialBatch(BaseModel):
    """The trials of one step."""

    model_config = ConfigDict(frozen=True)

    declared: DeclaredModel
    tune: Tune
    number: int
    """Number among the batches of the model; batch 0 tries the declared section."""
    run: str
    """MLflow run of the model's search."""

    @property
    def section(self) -> ModelSection:
        """The model's section."""
        return kind_of(self.declared.kind).section.model_validate(self.declared.section)

    def search(self, runtime: Runtime, table: Path, stores: str) -> SearchSettings:
        """Return the search of this batch, in a study that batches share where the stores have a database.

        Args:
            runtime: The spec's `runtime` section.
            table: The feature table.
            stores: The graph's `stores` parameter.
        """
        database = StorageConfig.parse(stores).database_uri
        study = None if database is None else SharedStudy(database, f"{self.declared.name}-{self.run}")
        whole = SearchSettings.from_spec(self.tune, self.declared.name, self.section, runtime, table)
        return whole._replace(batch=self.number, shared_study=study)


def plan_batches(models: Sequence[str], tune: Tune, runtime: Runtime, table: Path, tracker: Tracker) -> list[str]:
    """Return the batches of every candidate with a search space, as JSON; open their MLflow runs.

    Args:
        models: The models, each as JSON (`shortlist.ranking.kind.DeclaredModel`).
        tune: The spec's `tune` section.
        runtime: The spec's `runtime` section.
        table: The feature table.
        tracker: The spec's MLflow store.

    Raises:
        ShortlistError: No candidate has a search space.
    """
    batches = []
    for declared in map(DeclaredModel.read, models):
        kind = kind_of(declared.kind)
        if declared.role != "candidate" or not (tune.models.get(declared.name) or kind.tuning.space):
            continue
        section = kind.section.model_validate(declared.section)
        key = SearchSettings.from_spec(tune, declared.name, section, runtime, table).key
        run = TrackedSearch(tracker, declared.name, section, key).run
        count = min(tune.batches, tune.trials or tune.batches)
        share = tune.model_copy(update={"trials": ceil(tune.trials / count) if tune.trials else None})
        batches += [TrialBatch(declared=declared, tune=share, number=number, run=run) for number in range(count)]
    if not batches:
        raise ShortlistError("tune: no candidate has a search space; declare one in tune.models")
    return [batch.model_dump_json() for batch in batches]


def run_trial_batch(batch: TrialBatch, runtime: Runtime, table: Path, context: RunContext, out: Path) -> SearchOutcome:
    """Run a batch's trials; write its study, where it is a file, and its outcome into a folder."""
    settings = batch.search(runtime, table, context.stores)
    tracked = TrackedSearch(context.tracker, settings.model, settings.section, settings.key, batch.run)
    study = "" if settings.shared_study is None else settings.shared_study.name
    with atomic_folder(out) as staging:
        outcome = search(settings, staging, tracked.log)
        write_json(
            staging / OUTCOME_FILE, {"run": batch.run, "study": study, "result": outcome.model_dump(mode="json")}
        )
    return outcome


def choose_best_trials(studies: Sequence[Path], context: RunContext, out: Path) -> str:
    """Write the outcome of every model's search into a folder of its name; return the best trials, as JSON.

    Args:
        studies: Folders written by `run_trial_batch`.
        context: Name and stores of the spec.
        out: Folder to write.

    Raises:
        ShortlistError: No trial of a model was measured.
    """
    outcomes_by_model: dict[str, list[SearchOutcome]] = {}
    runs: dict[str, str] = {}
    studies_by_model: dict[str, str] = {}
    for folder in studies:
        saved = read_json(folder / OUTCOME_FILE)
        outcome = SearchOutcome.model_validate(saved["result"])
        outcomes_by_model.setdefault(outcome.model, []).append(outcome)
        runs[outcome.model], studies_by_model[outcome.model] = saved["run"], saved.get("study", "")
    merged_by_model = {model: merge_outcomes(outcomes) for model, outcomes in outcomes_by_model.items()}
    database = StorageConfig.parse(context.stores).database_uri
    for model, study in studies_by_model.items():
        if study and database is not None:
            importance = shared_importance(SharedStudy(database, study))
            merged_by_model[model] = merged_by_model[model].model_copy(update={"importance": importance})
    with atomic_folder(out) as staging:
        for model, outcome in merged_by_model.items():
            for line in write_outcome(outcome, context.name, staging / model):
                note(line.replace(str(staging), str(out)))
            context.tracker.close_run(runs[model], {"trials": len(outcome.trials)})
        write_json(staging / RUNS_FILE, runs)
    unmeasured = [model for model, outcome in merged_by_model.items() if outcome.best is None]
    if unmeasured:
        raise ShortlistError(f"tune: no trial of {', '.join(unmeasured)} was measured; its page says why: {out}")
    best = {model: outcome.best.model_dump(mode="json") for model, outcome in merged_by_model.items() if outcome.best}
    return json.dumps(best)
