"""The baseline of a run: the serving version, the earlier model of each model, and the earlier features."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from shortlist.data.collected import CollectedLog
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.registry import kind_of
from shortlist.storage.records.identity import claim
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.lineage import run_tags
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.steps import note
from shortlist.training.continued_training import find_previous_run


class RunBaseline(NamedTuple):
    """The baseline of a run, as parameters of its steps; empty where there is none."""

    version: str
    """Registered version that is serving."""
    models: tuple[DeclaredModel, ...]
    """The declared models, each with the MLflow run of the model to continue."""
    previous: str
    """Path or address of the fitted features that the store was last filled from; only for triggered runs."""


def find_run_baseline(
    context: RunContext, models: Sequence[DeclaredModel], started: datetime | None = None
) -> RunBaseline:
    """Return the baseline of a run, and open its MLflow run; note what is missing.

    Args:
        context: Spec, stores, log and cause.
        models: The declared models.
        started: Start of the run; None: now.

    Raises:
        ShortlistError: A store cannot be reached, or belongs to another cluster; raised before anything is written.
    """
    claim(StorageConfig.parse(context.stores))
    tracker, log = context.tracker, (context.input_digest, context.cause.until)
    tracker.begin_pipeline(run_tags(context.cause, context.code, context.gate_code), started or datetime.now(UTC))
    previous = ""
    if context.cause.trigger != "manual":  # a manual training counts every day
        previous = newest_fit(spec_feast_store_location(StorageConfig.parse(context.stores), context.name))
        if not previous:
            note("Every day is counted: there are no earlier features yet.")
    sections = [kind_of(model.kind).section.model_validate(model.section) for model in models]
    withdrawn = CollectedLog.open(context.stores, context.name).withdrawn()
    runs = [
        find_previous_run(model.name, section, tracker, *log, withdrawn)
        for model, section in zip(models, sections, strict=True)
    ]
    return RunBaseline(
        version=str(tracker.registry.version_to_beat() or ""),
        models=tuple(model.model_copy(update={"previous_run": run}) for model, run in zip(models, runs, strict=True)),
        previous=previous,
    )
