"""What a promoted model and the one that it replaced make of the days after: would it have done without training?"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics import auc
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.data import Live
from shortlist.spec.spec import Spec
from shortlist.training.train import load_ranker


def auc_by_version(spec: Spec, log: Path, days: frozenset[date], models: Mapping[int, Path]) -> dict[int, float]:
    """Return the AUC of some versions on the rows of some days, each version with the same fresh statistics.

    Args:
        spec: The declaration.
        log: Folder of a valid log with these days and those before.
        days: Those that are scored.
        models: Model folder of every version.
    """
    data = spec.data.model_copy(update={"live": Live()})
    found = {}
    with TemporaryDirectory(prefix="shortlist-drill-") as scratch:
        counted = Path(scratch) / "fitted"
        fit(data, spec.features, spec.gates, spec.runtime, log, counted)
        for version, model in models.items():
            table = build_table(
                data, spec.features, spec.gates, spec.runtime, log, counted, Path(scratch) / f"table-{version}",
                preprocessing=model / Files.PREPROCESSING, only=days,
            )  # fmt: skip
            ranker, labels, scores = load_ranker(model), [], []
            for _, rows in table.frames():
                labels.append(rows[Columns.LABEL].to_numpy())
                scores.append(ranker.predict(rows))
            found[version] = auc(np.concatenate(labels), np.concatenate(scores))
    return found
