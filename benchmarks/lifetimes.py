"""What finer tiles bring where items live for hours: the demo's features and trees on a generated log.

Items live for six hours, and nothing but their clicks tells which are good. The best possible scores are the planted
click probabilities. The same rows and settings for each tile, an outcome known after a minute; the test day, in the
mean of several worlds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.bench import Line, console, record, show
from shortlist.contracts import Columns
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.measure import scores_file
from shortlist.evaluation.metrics import Floats, auc, log_loss
from shortlist.evaluation.ranking import gauc
from shortlist.evaluation.scores import ScoredRows, read_scores
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.training.train import train

WORK: Final = "lifetimes"
TILES: Final = ("1d", "1h", "10m")
SEEDS: Final = (7, 8, 9)
BEST, POPULARITY, COARSE = "best possible", "popularity", "xgboost, tile 1d"
_LEFT_OUT: Final = {"retrieval", "filters", "ordering", "gates", "serving"}


def spec_of(seed: int, tile: str) -> Spec:
    """Return the demo's declaration of a smaller world of short-lived items, without slates, counted by such tiles."""
    demo = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml")
    spec = demo.model_dump(mode="json", exclude_unset=True, exclude=_LEFT_OUT)
    spec["data"]["source"] = {
        "kind": "generated", "rows": 60_000, "users": 2_000, "items": 1_000, "days": 8, "seed": seed,
        "lifetime": {"hours": 6},
    }  # fmt: skip
    spec["data"]["outcome_delay"] = "1m"
    spec["features"]["tile"] = tile
    spec["models"] = {name: spec["models"][name] for name in ("xgboost",)}
    return Spec.model_validate(spec)


def qualities(rows: ScoredRows, scores: Floats) -> dict[str, float]:
    """Return how good scores of rows are."""
    assert rows.users is not None
    return {
        "AUC": auc(rows.labels, scores), "log loss": log_loss(rows.labels, scores),
        "GAUC": gauc(rows.labels, scores, rows.users) or 0.0,
    }  # fmt: skip


def of_world(seed: int, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each way of scoring the test day of one world, and how good it is."""
    spec = spec_of(seed, TILES[0])
    ingest(spec.data, folder, folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "log", folder / "bad", spec.runtime, datetime.now(UTC), None)
    for tile in TILES:
        spec, own = spec_of(seed, tile), folder / tile
        sections = spec.data, spec.features, spec.gates, spec.runtime, folder / "log"
        fit(*sections, own / "fitted")
        table = build_table(*sections, own / "fitted", own / "table")
        models = {"xgboost": f"xgboost, tile {tile}"} | ({"popularity": POPULARITY} if tile == TILES[0] else {})
        for kind, way in models.items():
            train(kind, spec.models[kind], table, spec.runtime, own / kind / "model", own / kind / "scores")
            rows = read_scores(scores_file(own / kind / "scores"), "test")
            yield way, qualities(rows, rows.scores)
    yield BEST, qualities(rows, rows.frame[Columns.BEST].to_numpy())


def main() -> int:
    """Measure all tiles in all worlds, print the means and write the results."""
    found: dict[str, dict[str, list[float]]] = {}
    with TemporaryDirectory() as scratch, console().status("measuring") as status:
        for seed in SEEDS:
            folder = Path(scratch) / str(seed)
            folder.mkdir()
            for way, values in of_world(seed, folder):
                status.update(f"world {seed}: {way}")
                for name, value in values.items():
                    found.setdefault(way, {}).setdefault(name, []).append(value)
    lines = [
        Line(WORK, f"{way}, {name}", round(mean(values), 5), name, COARSE,
             round(mean(values) / mean(found[COARSE][name]), 4))
        for way, of_way in found.items() for name, values in of_way.items()
    ]  # fmt: skip
    for way, of_way in found.items():
        spread = "; ".join(f"{name} {min(values):.4f} to {max(values):.4f}" for name, values in of_way.items())
        console().print(f"{way}, over {len(SEEDS)} worlds: {spread}")
    show("What finer tiles bring where items live for six hours", lines)
    record(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
