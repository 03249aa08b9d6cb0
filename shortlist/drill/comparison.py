"""What a promoted model and the one that it replaced make of the days after, each with the features that it served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics import auc
from shortlist.features.open_counts import with_open_events
from shortlist.features.plan import Plan
from shortlist.features.slates import whole_slates
from shortlist.features.transform import Transformer
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.train import load_ranker


@dataclass(frozen=True)
class ServedModel:
    """A model, and the statistics that servers looked up while it was the champion."""

    model: Path
    """Model folder."""
    fitted: Path
    """The fit whose views were published; what happened after them is in no feature."""


def auc_as_served(
    log: Path, days: frozenset[date], models: Mapping[int, ServedModel], runtime: Runtime
) -> dict[int, float]:
    """Return the AUC that some versions have on the rows of some days, each with the statistics that it served with.

    The views of a fit hold no value from after it. A row of a later day is therefore given what the server had: the
    newest published value of each key.

    Args:
        log: Folder of a valid log with these days.
        days: Those that are scored.
        models: By version.
        runtime: Engine of the look-ups.

    Raises:
        UnmeasurableError: All rows have one label.
    """
    table = DayTable.open(log, Files.LOG)
    found = {}
    for version, served in models.items():
        transformer = Transformer.load(served.fitted, runtime.engine, served.model / Files.PREPROCESSING)
        ranker, labels, scores = load_ranker(served.model), [], []
        for day, rows in _rows(table, days, transformer.plan):
            labels.append(rows[Columns.LABEL].to_numpy())
            scores.append(ranker.predict(transformer.compute(transformer.look_up(rows, day))))
        found[version] = auc(np.concatenate(labels), np.concatenate(scores))
    return found


def _rows(table: DayTable, days: frozenset[date], plan: Plan) -> Iterator[tuple[date, pl.DataFrame]]:
    if not plan.slates:
        for day, rows in table.frames(set(days)):
            yield day, with_open_events(rows, plan.streaming, table, day)
        return
    for part in table.days:
        if part.day in days:
            yield from ((part.day, rows) for rows in whole_slates(table, part, plan.declared.data))
