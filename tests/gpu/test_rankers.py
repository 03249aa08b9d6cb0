"""Both models, trained on the GPU as a run trains them, rank as well as those of the CPU."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.runtime import Runtime
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine
from shortlist.training.train import ranker_class


@pytest.fixture(scope="module")
def table(demo: Spec, log: Path, tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    out, runtime = tmp_path_factory.mktemp("table"), Runtime(engine="cpu")
    fit(demo.data, demo.features, demo.gates, runtime, log, out / "fitted")
    return build_table(demo.data, demo.features, demo.gates, runtime, log, out / "fitted", out / "table")


def auc(kind: str, section: Any, table: DayTable, engine: Engine) -> float:
    ranker = ranker_class(kind)(section)
    ranker.fit(table, Runtime(engine=engine))
    days = {date.fromisoformat(day) for day in table.notes["split"]["test"]}
    rows = pl.concat([rows for _, rows in table.frames(days)])
    return float(roc_auc_score(rows[Columns.LABEL], ranker.predict(rows)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "changes", "within"),
    [
        ("dlrm", {"epochs": 2, "precision": "fp32"}, 1e-3),
        ("dlrm", {"epochs": 2, "precision": "bf16"}, 5e-3),
        ("xgboost", {"rounds": 100}, 5e-3),  # other sums make other splits of a noisy log
    ],
)
def test_a_model_ranks_as_well_on_both(
    kind: str, changes: dict[str, Any], within: float, demo: Spec, table: DayTable
) -> None:
    section = demo.models[kind].model_copy(update=changes)
    on_cpu = auc(kind, section.model_copy(update={"precision": "fp32"} if kind == "dlrm" else {}), table, "cpu")
    EXECUTION.clear()
    assert auc(kind, section, table, "gpu") == pytest.approx(on_cpu, abs=within)
    record = EXECUTION.record()
    assert record is not None and record["name"] == "gpu"
