"""Features of a Criteo-layout log, from text to frequency-capped ids and log counts in Parquet: `make bench-features`.

Ours is every step of a run: read and type, check and quarantine, count, table. The bound is parsing the text alone,
with Polars, into memory. Peers: NVTabular on the CPU, when `requirements/peers.txt` is installed, and the preprocessing
of facebookresearch/dlrm, written again after its design; both are slow, so they get fewer rows, and fewer rounds.

`--large` compares memory and time of 20 M rows with 2 M instead (5 GB of text; a quarter of an hour).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import yaml

from benchmarks.bench import Line, cost, hardware, in_turn, peak_mib, record, show
from benchmarks.criteo import CARDINALITIES, COUNTS, write_tsv
from shortlist.config.load import parse_spec
from shortlist.config.spec import Spec
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.tables import DayTable

ROOT = Path(__file__).parents[1]
ROWS, PEER_ROWS, CHECKED_ROWS = 2_000_000, 500_000, 100_000
PEER_ROUNDS = 3
MIN_ROWS = 15
MOST_OF_PARSING = 2.0
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


def spec() -> Spec:
    """Return the Criteo spec with what a DLRM reads; exact copies of rows, which a small log can have, may stay few."""
    raw = yaml.safe_load((ROOT / "pipelines/specs/criteo.yaml").read_text())
    raw["features"]["columns"] = [one for one in raw["features"]["columns"] if one["kind"] in ("numeric", "vocabulary")]
    raw["models"] = {"dlrm": raw["models"]["dlrm"]}
    return parse_spec(yaml.safe_dump(raw))


def ours(log: Path, out: Path) -> Path:
    """Make the features of a log; return the table's folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    own = spec()
    ingest(own.data, log, out / "raw", own.runtime)
    validate(own.data, out / "raw", out / "log", out / "quarantine", own.runtime, datetime.now(UTC))
    fit(own.data, own.features, own.gates, own.runtime, out / "log", out / "fitted")
    build_table(own.data, own.features, own.gates, own.runtime, out / "log", out / "fitted", out / "table")
    return out / "table"


def parse_only(log: Path) -> int:
    """Parse a log's text into columns; return its rows."""
    return pl.read_csv(log, separator="\t", has_header=False, schema=schema()).height


def schema() -> dict[str, pl.DataType]:
    """Return the columns of the text."""
    counts = {f"I{number + 1}": pl.Int64() for number in range(COUNTS)}
    categories = {f"C{number + 1}": pl.String() for number in range(len(CARDINALITIES))}
    return {"label": pl.Int8(), **counts, **categories}


def check(log: Path, table: Path) -> None:
    """See that ids and logs are those of a plain computation: nothing lost, nothing joined, nothing rare kept."""
    made = DayTable.open(table, Files.TABLE)
    got = made.scan().collect().sort("impression_id")
    text = pl.read_csv(log, separator="\t", has_header=False, schema=schema())
    assert got.height == text.height, (got.height, text.height)
    assert (got["label"] == text["label"]).all()
    split = made.notes["split"]
    fitted = got["day"].cast(pl.String).is_in([*split["warmup"], *split["train"]])
    for number in range(COUNTS):
        wanted = text[f"I{number + 1}"].fill_null(0).clip(0, 1e9).cast(pl.Float64).log1p()
        assert np.allclose(got[f"I{number + 1}_log"], wanted, atol=1e-6), f"I{number + 1}"
    for number in range(len(CARDINALITIES)):
        pairs = pl.DataFrame({"value": text[f"C{number + 1}"], "id": got[f"C{number + 1}_id"], "fitted": fitted})
        counts = pairs.filter("fitted").drop_nulls("value").group_by("value").len()
        known = pairs.join(counts, on="value", how="left", maintain_order="left")["len"].fill_null(0) >= MIN_ROWS
        assert ((pairs["id"] > 0) == known).all(), f"C{number + 1}: other values have ids"
        one_to_one = pairs.filter(known).unique(["value", "id"])
        assert one_to_one["value"].n_unique() == one_to_one.height == one_to_one["id"].n_unique(), f"C{number + 1}"


def peers(scratch: Path) -> dict[str, Callable[[], object]]:
    """Return the peers that are installed, as works on `PEER_ROWS` rows, ours first; all in processes of their own."""
    log, out = scratch / "peers.tsv", scratch / "peers"
    write_tsv(log, PEER_ROWS, seed=3)
    programs = {
        "ours": [
            sys.executable,
            "-c",
            f"from benchmarks.features import *; ours(Path({str(log)!r}), Path({str(out)!r}))",
        ],
        "facebookresearch/dlrm's design": [sys.executable, _peer("fb_dlrm_features"), log, out],
        "NVTabular 23.8 on the CPU": [PEERS_PYTHON, _peer("nvtabular_features"), log, out, MIN_ROWS],
    }
    return {
        name: _program(list(map(str, command)), out) for name, command in programs.items() if Path(command[0]).exists()
    }


def _peer(name: str) -> Path:
    return ROOT / "benchmarks" / "peers" / f"{name}.py"


def _program(command: list[str], out: Path) -> Callable[[], object]:
    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True)  # noqa: S603 - our own programs

    return work


def against_parsing(scratch: Path) -> list[Line]:
    """Measure every step against parsing alone, in one process."""
    log = scratch / "log.tsv"
    write_tsv(log, ROWS)
    costs = in_turn({"ours": lambda: ours(log, scratch / "out"), "parsing": lambda: parse_only(log)})
    mine, bound = costs["ours"].wall_s, costs["parsing"].wall_s
    memory = peak_mib(ours, log, scratch / "out")
    said = "Polars parsing the text alone"
    return [
        Line("features", "all steps, 2 M rows", mine, "s", said, mine / bound, bound / mine),
        Line("features", "all steps, 2 M rows, rate", ROWS / mine, "rows/s", said, bound / mine, bound / mine),
        Line(
            "features",
            "all steps, 2 M rows, peak memory",
            memory,
            "MiB",
            "the text",
            memory * 2**20 / log.stat().st_size,
        ),
    ]


def against_peers(scratch: Path) -> list[Line]:
    """Measure ours against whole programs."""
    works = peers(scratch)
    costs: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(PEER_ROUNDS):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            costs[name].append(time.perf_counter() - started)
    middle = {name: float(np.median(each)) for name, each in costs.items()}
    mine = middle.pop("ours")
    return [
        Line("features", f"500 k rows against {name}", mine, "s", f"{name}: {theirs:.1f} s", theirs / mine)
        for name, theirs in middle.items()
    ]


def growth(scratch: Path) -> list[Line]:
    """Measure memory and time at ten times the rows."""
    figures = []
    for rows in (ROWS, 10 * ROWS):
        log = scratch / f"{rows}.tsv"
        write_tsv(log, rows)
        spent = cost(lambda log=log: ours(log, scratch / "out"))
        figures.append((spent.wall_s, peak_mib(ours, log, scratch / "out")))
        log.unlink()
    (short, small), (long, large) = figures
    return [
        Line("features", "20 M rows, time", long, "s", "2 M rows", long / short),
        Line("features", "20 M rows, peak memory", large, "MiB", "2 M rows", large / small),
    ]


def main() -> int:
    """Print the table and write the results; exit code 1 when all steps take more than twice the parsing."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_tsv(scratch / "checked.tsv", CHECKED_ROWS, seed=2)
        check(scratch / "checked.tsv", ours(scratch / "checked.tsv", scratch / "out"))
        lines = growth(scratch) if "--large" in sys.argv else [*against_parsing(scratch), *against_peers(scratch)]
    if not PEERS_PYTHON.exists():
        sys.stderr.write("NVTabular: not installed; make peers installs it\n")
    show(f"Features, {hardware()}", lines)
    record(lines)
    return int("--large" not in sys.argv and lines[0].ratio > MOST_OF_PARSING)


if __name__ == "__main__":
    raise SystemExit(main())
