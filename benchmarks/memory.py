"""Peak memory of ingest, features and loader at one and at ten times the rows: `make bench-memory`.

Every step runs in a process of its own, on the generated log, over the same days, users and items; the figure is what
the operating system says was resident at most. The tables of the large run are ten times those of the small one: a step
that held them whole would show it.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import resource
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from shortlist.config.load import load_spec
from shortlist.config.spec import Spec
from shortlist.contracts import Files
from shortlist.tables import DayTable

ROWS = 200_000
TIMES = 10
LIMIT = 1.5
"""Most that a step at ten times the rows may need, as a multiple of its memory at one time."""
RESULTS = Path(__file__).parent / "results"


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
    from shortlist.features.fit import fit

    fit(spec.data, spec.features, spec.gates, spec.runtime, folder / "valid", folder / "fitted")


def build_table(spec: Spec, folder: Path) -> None:
    """Write the feature table."""
    from shortlist.features.table import build_table as build

    paths = folder / "valid", folder / "fitted", folder / "table"
    build(spec.data, spec.features, spec.gates, spec.runtime, *paths)


def load_batches(spec: Spec, folder: Path) -> None:
    """Hand every training row to torch once, shuffled, as DLRM's training does."""
    from models.dlrm.batches import BatchLoader, ChunkStore
    from models.dlrm.layout import Layout
    from models.inputs import LearningTable, chosen

    assert spec.models.dlrm is not None
    table = DayTable.open(folder / "table", Files.TABLE)
    features = chosen(table, spec.models.dlrm.features)
    learning = LearningTable(table, features)
    store = ChunkStore(learning, Layout.of(features), spec.runtime.memory_budget_mib * 2**20)
    batch_size, pool_rows = spec.models.dlrm.batch_size, spec.runtime.chunk_rows
    loader = BatchLoader(store, learning.paths("train"), batch_size, pool_rows, spec.runtime.seed)
    assert sum(batch.rows for batch in loader.shuffled(1)) == learning.rows("train")


STEPS: tuple[Callable[[Spec, Path], None], ...] = (ingest, validate, fit_features, build_table, load_batches)


def peak_mib(step: Callable[[Spec, Path], None], spec: Spec, folder: Path) -> float:
    """Return the peak resident memory, in MiB, of a fresh process that runs a step."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (step, spec, folder))


def _measured(step: Callable[[Spec, Path], None], spec: Spec, folder: Path) -> float:
    step(spec, folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Print the table and write the results; exit code 1 when a step is over the limit."""
    console = Console()
    table = Table(title=f"Peak memory, {ROWS:,} and {TIMES * ROWS:,} rows", title_justify="left")
    for heading in ("step", "MiB", f"MiB at {TIMES}x", "ratio", f"limit {LIMIT}"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    results = []
    with TemporaryDirectory() as scratch:
        sizes = {rows: Path(scratch) / str(rows) for rows in (ROWS, TIMES * ROWS)}
        for folder in sizes.values():
            folder.mkdir()
        for step in STEPS:
            with console.status(step.__name__):
                small, large = (peak_mib(step, spec_of(rows), folder) for rows, folder in sizes.items())
            table.add_row(step.__name__, f"{small:.0f}", f"{large:.0f}", f"{large / small:.2f}", verdict(large / small))
            results.append(
                {
                    "work": "memory",
                    "name": step.__name__,
                    "value": round(large, 1),
                    "unit": "MiB",
                    "peer": f"the same step at {ROWS:,} rows",
                    "ratio": round(large / small, 3),
                    "bound_ratio": LIMIT,
                    "hardware": f"{platform.machine()}, {multiprocessing.cpu_count()} cores",
                    "date": datetime.now(UTC).date().isoformat(),
                }
            )
    console.print(table)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory.json").write_text(json.dumps(results, indent=2) + "\n")
    return int(any(result["ratio"] > LIMIT for result in results))


def verdict(ratio: float) -> str:
    """Return the word for a ratio."""
    return "ok" if ratio <= LIMIT else "over"


if __name__ == "__main__":
    sys.exit(main())
