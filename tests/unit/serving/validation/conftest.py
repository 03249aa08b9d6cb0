"""A small trained and exported model with the outputs of its training, and broken repositories of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import models  # noqa: F401 - says how OpenMP threads wait, which torch reads once
from models.dlrm.section import DLRMModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.data import Column
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates, Infra
from shortlist.spec.generated_options import GeneratedContent
from shortlist.spec.load import load_spec
from shortlist.spec.log_shape import FurtherLabel, Positive
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

DEMO = Path(__file__).parents[4] / "pipelines" / "specs" / "demo.yaml"


@dataclass(frozen=True)
class Trained:
    """Outputs of the steps before the validation."""

    spec: Spec
    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def scores(self) -> Path:
        return self.root / "scores"

    def network(self) -> Path:
        """Return a small DLRM of the same rows; its scores lie in `dlrm_scores`."""
        folder = self.root / "dlrm"
        if not folder.exists():
            section = DLRMModel(features=("*_log", "*_id"), embedding_dim=8, bottom_mlp=(32,), top_mlp=(32,), epochs=2)
            table = DayTable.open(self.root / "table", Files.TABLE)
            train("dlrm", section, table, self.spec.runtime, folder, self.root / "dlrm_scores")
            pack(folder, self.fitted)
            export(folder, "demo")
        return folder

    @property
    def log(self) -> Path:
        return self.root / "valid"

    @property
    def fitted(self) -> Path:
        return self.root / "fitted"


@pytest.fixture(scope="session")
def limits() -> Gates:
    """Return limits that a healthy server meets on a busy machine."""
    return Gates(parity_rows=400, infra=Infra(rows_per_request=16, requests_per_second=40, seconds=0.5))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return a model trained on a small generated log, with every kind of feature that the demo has."""
    root = tmp_path_factory.mktemp("trained")
    spec = load_spec(DEMO)
    # Contents without an effect: the rows are what they are without them.
    size = {"rows": 6_000, "users": 150, "items": 80, "days": 5, "content": GeneratedContent(effect=0)}
    source = spec.data.source.model_copy(update=size)
    labels = {"long_view": FurtherLabel(column="watch_seconds", positive=Positive(at_least=15))}
    users, items = spec.data.side_tables
    types = {"title": "string", "text_vector": "vector", "image_vector": "vector"}
    contents = (Column.model_validate({"name": name, "type": kind}) for name, kind in types.items())
    items = items.model_copy(update={"columns": (*items.columns, *contents)})
    shown_at = Column(name="shown_at", source="position", type="integer", known="after")
    changed = {"labels": labels, "side_tables": (users, items), "columns": (*spec.data.columns, shown_at)}
    data = spec.data.model_copy(update={"source": source, **changed})
    past = {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 10, "name": "user_items", "min_rows": 150}
    content = {"kind": "vector", "each": ["text_vector", "image_vector"], "normalise": False}
    fixed = {"kind": "training_only", "each": "shown_at", "serve": 1}
    features = Features.model_validate({"columns": [*spec.features.model_dump()["columns"], past, content, fixed]})
    spec = spec.model_copy(update={"data": data})
    ingest(data, Path(), root / "raw", spec.runtime)
    validate(data, root / "raw", root / "valid", root / "quarantine", spec.runtime, datetime.now(UTC))
    fit(data, features, spec.gates, spec.runtime, root / "valid", root / "fitted")
    build_table(data, features, spec.gates, spec.runtime, root / "valid", root / "fitted", root / "table")
    read = ("*_log", "hour_*", "*_age", "*_rate", "*_seen", "user_away", "surface_id", "country_id", "position_id")
    section = XGBoostModel(features=read, rounds=20)
    table = DayTable.open(root / "table", Files.TABLE)
    train("xgboost", section, table, spec.runtime, root / "model", root / "scores")
    pack(root / "model", root / "fitted")
    export(root / "model", "demo")
    return Trained(spec, root)


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Callable[[], Path]:
    """Return a function that copies the model folder, for tests that break it."""

    def copy() -> Path:
        shutil.copytree(trained.model, tmp_path / "model")
        return tmp_path / "model"

    return copy
