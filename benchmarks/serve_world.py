"""What scoring is measured on: generated logs with everything made from them, exported models, and questions to ask."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from benchmarks.criteo import write_tsv
from shortlist.contracts import Columns, Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import publish
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.rows.table import build_table
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

SPECS: Final = Path(__file__).parents[1] / "pipelines" / "specs"
CANDIDATES: Final = 1_024
_DEMO_ROWS: Final = 60_000
_CRITEO_ROWS: Final = 240_000
_KAGGLE: Final = {
    "embedding_dim": 16, "bottom_mlp": (512, 256, 64), "top_mlp": (512, 256), "epochs": 1, "batch_size": 4_096,
}  # fmt: skip
"""The layers of the Kaggle configuration; one epoch, as what a network has learnt does not change its speed."""
_TREES: Final = 300


@dataclass(frozen=True)
class World:
    """A log with everything made from it, and exported models by kind."""

    spec: Spec
    folder: Path
    models: dict[str, Path]

    @property
    def store(self) -> Path:
        """The Feast store."""
        return self.folder / "store"


def demo_world(folder: Path, kinds: tuple[str, ...] = ("xgboost", "dlrm")) -> World:
    """Return the demo, smaller, its features published, with its models; the network has the Kaggle layers."""
    spec = load_spec(SPECS / "demo.yaml")
    source = spec.data.source.model_copy(update={"rows": _DEMO_ROWS})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"source": source})})
    paths = _table(spec, Path(), folder)
    publish(spec.name, folder / "store", spec.runtime, 20, *paths, folder / "skew")
    return World(spec, folder, {kind: _model(spec, kind, folder) for kind in kinds})


def criteo_world(folder: Path) -> World:
    """Return a log in the Criteo layout and the network of the Kaggle configuration: 13 counts, 26 categories."""
    folder.mkdir()
    write_tsv(folder / "train.txt", _CRITEO_ROWS)
    spec = load_spec(SPECS / "criteo.yaml")
    _table(spec, folder / "train.txt", folder)
    return World(spec, folder, {"dlrm": _model(spec, "dlrm", folder)})


def rows_with_labels(world: World, kind: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the tensors and the labels of the newest day's rows, all as of its start."""
    model = world.models[kind]
    plan = Preprocessing.load(model / Files.PREPROCESSING).plan
    views = ViewIndex.read(world.folder / "fitted" / "views")
    log = DayTable.open(world.folder / "log", Files.LOG)
    days = [*log.frames()]
    newest = max(day for day, _ in days)
    rows = pl.concat(frame for day, frame in days if day == newest)
    tensors = DayAssembler(plan, Signature.read(model / FOLDER), views).tensors(rows, newest)
    return dict(tensors), rows[Columns.LABEL].to_numpy().astype(np.float64)


class Question:
    """One user, many items: as a request, and as the tensors that the server makes of it."""

    def __init__(self, world: World, model: Path, rows: int) -> None:
        plan = Preprocessing.load(model / Files.PREPROCESSING).plan
        views = ViewIndex.read(world.folder / "fitted" / "views")
        day = views.last_day + timedelta(days=1)
        log = pl.concat(frame for _, frame in DayTable.open(world.folder / "log", Files.LOG).frames({views.last_day}))
        items = log.unique("item_id", maintain_order=True).sample(rows, seed=1, with_replacement=True)
        moment = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        logged_row = log.row(0, named=True)
        same = {name: logged_row[name] for name in ("user_id", "surface", "device", "duration")}
        candidate_rows = items.with_columns(
            *(pl.lit(value).cast(log.schema[name]).alias(name) for name, value in same.items()),
            pl.lit(moment).cast(log.schema[Columns.TIME]).alias(Columns.TIME),
            pl.lit(day).alias(Columns.DAY),
        )
        self.tensors = DayAssembler(plan, Signature.read(model / FOLDER), views).tensors(candidate_rows, day)
        self.inputs: dict[str, Any] = {
            **{name: np.array([value], object if isinstance(value, str) else None) for name, value in same.items()},
            "item_id": candidate_rows["item_id"].to_numpy(),
            "position": candidate_rows["position"].to_numpy(),
            Columns.TIME: np.array([int(moment.timestamp() * 1_000_000)]),
        }


def _table(spec: Spec, source: Path, folder: Path) -> tuple[Path, Path, Path]:
    ingest(spec.data, source, folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, datetime.now(UTC))
    fit(spec.data, spec.features, spec.gates, spec.runtime, folder / "log", folder / "fitted")
    paths = folder / "log", folder / "fitted", folder / "table"
    build_table(spec.data, spec.features, spec.gates, spec.runtime, *paths)
    return paths


def _model(spec: Spec, kind: str, folder: Path) -> Path:
    section: Any = spec.models[kind]
    section = section.model_copy(update=_KAGGLE if kind == "dlrm" else {"rounds": _TREES})
    table = DayTable.open(folder / "table", Files.TABLE)
    train(kind, section, table, spec.runtime, folder / kind, folder / f"{kind}_scores")
    pack(folder / kind, folder / "fitted")
    export(folder / kind, spec.name)
    return folder / kind
