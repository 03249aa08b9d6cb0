"""The retrieval step of a run: fit the declared sources on the days before the test days, and evaluate them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shortlist.contracts import Files
from shortlist.evaluation.gates.retrieval import EVALUATION
from shortlist.slates.retrieval.evaluate import evaluate_retrieval
from shortlist.slates.retrieval.retriever import Retriever, fit_retrieval
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.split import split_days
from shortlist.storage.tables import DayTable

RELEASE: Final = "release"
"""Folder of the fitted sources and their indices, with a manifest."""


def build_retrieval(section: Retrieval, data: Data, valid_log: Path, out: Path, seed: int) -> int:
    """Write the fitted sources and their evaluation; return the number of rows that were learnt from.

    The released sources are the evaluated ones: they are fitted on the days before the test days.

    Args:
        section: The declared retrieval.
        data: The spec's section.
        valid_log: The validated log.
        out: Folder to write.
        seed: Seed of all random choices.

    Raises:
        DataError: The log has too few days or items, or a source has nothing to learn from.
    """
    log = DayTable.open(valid_log, Files.LOG)
    split = split_days(log.rows_by_day, data)
    days = frozenset((*split.fitted_on, *split.validation))
    out.mkdir(parents=True, exist_ok=True)
    fit_retrieval(section, data, log, days, out / RELEASE, seed)
    evaluate_retrieval(Retriever.open(out / RELEASE), data, log, frozenset(split.test), out / EVALUATION, seed)
    return sum(part.rows for part in log.days if part.day in days)
