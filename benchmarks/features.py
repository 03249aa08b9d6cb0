"""Features of a Criteo-layout log, from text to frequency-capped ids and log counts in Parquet.

Ours is every step of a run: read and type, check and quarantine, count, table; a line per step says what it takes and
how well it keeps the cores busy. The bound is Polars turning the text into Parquet and doing nothing else; a line says
what parsing into memory takes, which leaves nothing behind. The peers, whole programs on the same rows, are those of
`benchmarks.feature_peers`.

`--all-peers` also runs fb/dlrm's preprocessing with a process per day, 100 s more.
`--large` compares memory and time of 20 M rows with 2 M instead, step by step (5 GB of text; five minutes).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import polars as pl

from benchmarks.bench import Cost, Line, alone, cost, hardware, in_turn, peak_mib, record, show
from benchmarks.criteo import CARDINALITIES, COUNTS, write_tsv
from benchmarks.feature_peers import PEERS_PYTHON, times
from benchmarks.feature_steps import STEPS, empty, one_step, run_steps, steps
from benchmarks.targets import exit_code
from shortlist.contracts import Files
from shortlist.storage.tables import DayTable

ROWS, CHECKED_ROWS = 2_000_000, 100_000
MIN_ROWS = 15
BOUND: Final = "Polars, the text to Parquet"


def measured(log: Path, out: Path) -> dict[str, Cost]:
    """Make the features of a log; return what each step cost."""
    empty(out)
    return {name: cost(step) for name, step in steps(log, out).items()}


def parse_log(log: Path) -> int:
    """Parse a log's text into columns; return its rows."""
    return pl.read_csv(log, separator="\t", has_header=False, schema=schema()).height


def convert_log(log: Path, out: Path) -> None:
    """Write a log's columns as Parquet."""
    pl.scan_csv(log, separator="\t", has_header=False, schema=schema()).sink_parquet(out)


def schema() -> dict[str, pl.DataType]:
    """Return the columns of the text."""
    counts = {f"I{number + 1}": pl.Int64() for number in range(COUNTS)}
    categories = {f"C{number + 1}": pl.String() for number in range(len(CARDINALITIES))}
    return {"label": pl.Int8(), **counts, **categories}


def check(log: Path, table: Path) -> None:
    """See that ids and logs are those of a plain computation: nothing lost, nothing joined, nothing rare kept."""
    table_on_disk = DayTable.open(table, Files.TABLE)
    rows = table_on_disk.scan().collect().sort("impression_id")
    text = pl.read_csv(log, separator="\t", has_header=False, schema=schema())
    assert rows.height == text.height, (rows.height, text.height)
    assert (rows["label"] == text["label"]).all()
    split = table_on_disk.notes["split"]
    fitted = rows["day"].cast(pl.String).is_in([*split["warmup"], *split["train"]])
    for number in range(COUNTS):
        expected = text[f"I{number + 1}"].fill_null(0).clip(0, 1e9).cast(pl.Float64).log1p()
        assert np.allclose(rows[f"I{number + 1}_log"], expected, atol=1e-6), f"I{number + 1}"
    for number in range(len(CARDINALITIES)):
        pairs = pl.DataFrame({"value": text[f"C{number + 1}"], "id": rows[f"C{number + 1}_id"], "fitted": fitted})
        counts = pairs.filter("fitted").drop_nulls("value").group_by("value").len()
        is_frequent = pairs.join(counts, on="value", how="left", maintain_order="left")["len"].fill_null(0) >= MIN_ROWS
        assert ((pairs["id"] > 0) == is_frequent).all(), f"C{number + 1}: other values have ids"
        one_to_one = pairs.filter(is_frequent).unique(["value", "id"])
        assert one_to_one["value"].n_unique() == one_to_one.height == one_to_one["id"].n_unique(), f"C{number + 1}"


def against_bound(log: Path, scratch: Path) -> list[Line]:
    """Measure every step against text to Parquet alone, in one process."""
    rounds: list[dict[str, Cost]] = []
    works = {
        "ours": lambda: rounds.append(measured(log, scratch / "out")),
        "parquet": lambda: convert_log(log, scratch / "log.parquet"),
        "parsing": lambda: parse_log(log),
    }
    costs = in_turn(works)
    own_seconds, bound, parsing = (costs[name].wall_s for name in works)
    memory = peak_mib(run_steps, log, scratch / "out")
    text = memory * 2**20 / log.stat().st_size
    return [
        Line("features", "all steps, 2 M rows", own_seconds, "s", BOUND, own_seconds / bound, bound / own_seconds),
        *(_step(name, _median_cost([costs_by_step[name] for costs_by_step in rounds])) for name in rounds[0]),
        Line("features", "text to Parquet alone, 2 M rows", bound, "s", _busy(costs["parquet"])),
        Line("features", "parsing into memory alone, 2 M rows", parsing, "s", "all steps", parsing / own_seconds),
        Line("features", "all steps, 2 M rows, rate", ROWS / own_seconds, "rows/s", BOUND, *[bound / own_seconds] * 2),
        Line("features", "all steps, 2 M rows, peak memory", memory, "MiB", "the text", text),
    ]  # fmt: skip


def _step(name: str, spent: Cost) -> Line:
    return Line("features", f"of these, {name}", spent.wall_s, "s", _busy(spent))


def _busy(spent: Cost) -> str:
    return f"{spent.cpu_s:.2f} s of processor time, {spent.cpu_s / spent.wall_s:.1f} of {os.cpu_count()} cores"


def _median_cost(costs: list[Cost]) -> Cost:
    return Cost(*(median(figures) for figures in zip(*costs, strict=True)))


def against_peers(log: Path, scratch: Path) -> list[Line]:
    """Measure ours against whole programs, on the same rows."""
    out = scratch / "peers"
    command = [sys.executable, "-m", "benchmarks.feature_steps", str(log), str(out)]
    own_seconds, peer_seconds = times(command, log, out, MIN_ROWS, all_peers="--all-peers" in sys.argv)
    return [
        Line(
            "features", f"2 M rows against {name}", own_seconds, "s", f"{name}: {seconds:.1f} s", seconds / own_seconds
        )
        for name, seconds in peer_seconds.items()
    ]


def growth(scratch: Path) -> list[Line]:
    """Measure memory and time at ten times the rows; every step is a process of its own, as in a run."""
    seconds: dict[str, list[float]] = {name: [] for name in STEPS}
    peaks: dict[str, list[float]] = {name: [] for name in STEPS}
    out = scratch / "out"
    for rows in (ROWS, 10 * ROWS):
        log = scratch / f"{rows}.tsv"
        write_tsv(log, rows)
        empty(out)
        for name in STEPS:
            spent, peak = alone(one_step, name, log, out)
            seconds[name].append(spent)
            peaks[name].append(peak)
        log.unlink()
    short, long = map(sum, zip(*seconds.values(), strict=True))
    small, large = map(max, zip(*peaks.values(), strict=True))
    return [
        Line("features", "20 M rows, time", long, "s", "2 M rows", long / short),
        Line("features", "20 M rows, peak memory", large, "MiB", "2 M rows", large / small),
        *(Line("features", f"20 M rows, {name}, time", two[1], "s", f"2 M rows: {two[0]:.1f} s", two[1] / two[0])
          for name, two in seconds.items()),
        *(Line("features", f"20 M rows, {name}, peak memory", two[1], "MiB", f"2 M rows: {two[0]:.0f} MiB",
               two[1] / two[0])
          for name, two in peaks.items()),
    ]  # fmt: skip


def main() -> int:
    """Print the table and write the results; exit code 1 when a figure is not what is asked."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_tsv(scratch / "checked.tsv", CHECKED_ROWS, seed=2)
        check(scratch / "checked.tsv", run_steps(scratch / "checked.tsv", scratch / "out"))
        lines = growth(scratch) if "--large" in sys.argv else at_two_million(scratch)
    if not PEERS_PYTHON.exists():
        sys.stderr.write("NVTabular: not installed; make bench NAME=peers OPTIONS=features installs it\n")
    show(f"Features, {hardware()}", lines)
    record(lines)
    return exit_code(lines)


def at_two_million(scratch: Path) -> list[Line]:
    """Measure ours against its bound and against the peers, all on the same rows."""
    log = scratch / "log.tsv"
    write_tsv(log, ROWS)
    return [*against_bound(log, scratch), *against_peers(log, scratch)]


if __name__ == "__main__":
    raise SystemExit(main())
