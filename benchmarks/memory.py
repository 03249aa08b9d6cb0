"""Peak memory of ingest, features and loader at one and at ten times the rows.

Every step runs in a process of its own, on the generated log, over the same days, users and items; the figure is what
the operating system says was resident at most. The tables of the large run are ten times those of the small one: a step
that held them whole would show it. Before anything is printed, every step must have kept every row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.bench import Line, console, peak_mib, record, show
from benchmarks.targets import exit_code
from shortlist.contracts import Files
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable

ROWS: Final = 200_000
TIMES: Final = 10


def spec_of(rows: int) -> Spec:
    """The demo with so many rows; chunks are small enough that both sizes are cut into several."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml")
    source = spec.data.source.model_copy(update={"rows": rows})
    runtime = spec.runtime.model_copy(update={"chunk_rows": 10_000, "memory_budget_mib": 64})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": source}), "runtime": runtime})


def ingest(spec: Spec, folder: Path) -> None:
    """Generate and read the log."""
    from shortlist.data.ingest import ingest as read

    read(spec.data, Path(), folder / "raw", spec.runtime)


def validate(spec: Spec, folder: Path) -> None:
    """Check every row and day."""
    from shortlist.data.validate import validate as check

    check(spec.data, folder / "raw", folder / "valid", folder / "quarantine", spec.runtime, datetime.now(UTC))


def fit_features(spec: Spec, folder: Path) -> None:
    """Count statistics, write views."""
    from shortlist.features.fits.fit import fit

    fit(spec.data, spec.features, spec.gates, spec.runtime, folder / "valid", folder / "fitted")


def build_table(spec: Spec, folder: Path) -> None:
    """Write the feature table."""
    from shortlist.features.rows.table import build_table as build

    paths = folder / "valid", folder / "fitted", folder / "table"
    build(spec.data, spec.features, spec.gates, spec.runtime, *paths)


def load_batches(spec: Spec, folder: Path) -> None:
    """Hand every training row to torch once, shuffled, as DLRM's training does."""
    from models.dlrm.section import DLRMModel
    from models.embedding.reading.batches import BatchLoader, ChunkStore
    from models.embedding.reading.layout import Layout
    from shortlist.ranking.inputs import LearningTable, features_matching

    section = spec.models["dlrm"]
    assert isinstance(section, DLRMModel)
    table = DayTable.open(folder / "table", Files.TABLE)
    features = features_matching(table, section.features)
    learning = LearningTable(table, features)
    store = ChunkStore(learning, Layout.from_features(features), spec.runtime.memory_budget_mib * 2**20)
    batch_size, pool_rows = section.batch_size, spec.runtime.chunk_rows
    loader = BatchLoader(store, learning.paths("train"), batch_size, pool_rows, spec.runtime.seed)
    assert sum(batch.rows for batch in loader.shuffled(1)) == learning.rows("train")


STEPS: Final[tuple[Callable[[Spec, Path], None], ...]] = (ingest, validate, fit_features, build_table, load_batches)


def check(rows: int, folder: Path) -> None:
    """See that the rows are all there, in the log, valid or quarantined, and with their features."""
    valid, table = DayTable.open(folder / "valid", Files.LOG), DayTable.open(folder / "table", Files.TABLE)
    assert valid.notes["raw_rows"] == rows, (valid.notes["raw_rows"], rows)
    assert valid.rows + valid.notes["quarantined_rows"] == rows
    assert table.rows == valid.rows


def main() -> int:
    """Print the table and write the results; exit code 1 when a step's memory grows more than it may."""
    lines, printing = [], console()
    with TemporaryDirectory() as scratch:
        sizes = {rows: Path(scratch) / str(rows) for rows in (ROWS, TIMES * ROWS)}
        for folder in sizes.values():
            folder.mkdir()
        for step in STEPS:
            with printing.status(step.__name__):
                small, large = (peak_mib(step, spec_of(rows), folder) for rows, folder in sizes.items())
            peer = f"the same step at {ROWS:,} rows: {small:.0f} MiB"
            lines.append(Line("memory", step.__name__, round(large, 1), "MiB", peer, round(large / small, 3)))
        for rows, folder in sizes.items():
            check(rows, folder)
    show(f"Peak memory at {TIMES * ROWS:,} rows", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main())
