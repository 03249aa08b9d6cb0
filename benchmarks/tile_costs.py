"""What statistics by tile cost, and what a refresh and a backfill save.

On the generated log, with as many rows a day however many days: a fit by tiles of a day and of ten minutes, of one
number of days and of twice as many. Memory and time may grow with the days and not with the tiles, of which there are
144 times as many. Then one more day is counted onto an earlier fit, as a refresh does, and one day in the middle is
corrected, as a backfill does; both must give the very files that a fit of the whole log gives.

Every work runs in a process of its own. Times are of its processor, the least of the rounds: on a machine that others
use, too, these are what can be compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.bench import Line, console, record, show
from benchmarks.targets import exit_code
from shortlist.contracts import Files
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.tables import DayTable

ROWS_A_DAY: Final = 5_000
DAYS: Final = 7
ROUNDS: Final = 2
WORK: Final = "freshness"
SHORT: Final = "10m"


class Cost(NamedTuple):
    """What a work takes."""

    cpu_s: float
    peak_mib: float


def spec_of(tile: str, days: int, rows_a_day: int) -> Spec:
    """Return the demo's statistics by key, by such tiles, over so many days."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "demo.yaml")
    data_section, features = spec.data.model_dump(mode="json"), spec.features.model_dump(mode="json")
    data_section["source"] |= {"rows": rows_a_day * days, "days": days}
    # Features of a slate are compared within a request, and need statistics by whole days.
    columns = [column for column in features["columns"] if column["kind"] != "slate"]
    sections = (
        Data.model_validate(data_section),
        Features.model_validate({**features, "columns": columns, "tile": tile}),
    )
    return spec.model_copy(update={"data": sections[0], "features": sections[1]})


def make_log(spec: Spec, folder: Path) -> None:
    """Write the valid log of a spec to `valid`."""
    from shortlist.data.ingest import ingest
    from shortlist.data.validate import validate

    ingest(spec.data, Path(), folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "valid", folder / "quarantine", spec.runtime, datetime.now(UTC))


def part_of_log(folder: Path, name: str, day: date, *, share: float) -> None:
    """Write a valid log that has so large a share of a day's rows, and of later days none where the share is 0."""
    from shortlist.storage.tables import DayTableWriter

    whole = DayTable.open(folder / "valid", Files.LOG)
    (folder / name).mkdir()
    (folder / name / "side").symlink_to(folder / "valid" / "side")
    writer = DayTableWriter(folder / name, Files.LOG, 1_000_000)
    for part, rows in whole.frames():
        rows_of_part = rows.head(round(share * rows.height)) if part == day else rows
        if rows_of_part.height:
            writer.append(rows_of_part)
    writer.close()


def count(spec: Spec, folder: Path, log: str, out: str, previous: str = "", corrected: str = "") -> None:
    """Fit a log, onto an earlier fit where one is named."""
    from shortlist.features.fit import fit
    from shortlist.features.previous_fit import DayRange

    previous_folder = folder / previous if previous else None
    day = DayRange(date.fromisoformat(corrected), date.fromisoformat(corrected)) if corrected else None
    fit(spec.data, spec.features, spec.gates, spec.runtime, folder / log, folder / out, previous_folder, day)


def cost_of(work: Callable[..., None], *arguments: Any, rounds: int = ROUNDS) -> Cost:
    """Return what a work takes in fresh processes: least processor time, least peak memory."""
    costs = []
    for _ in range(rounds):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            costs.append(pool.apply(_alone, (work, arguments)))
    return Cost(min(cost.cpu_s for cost in costs), min(cost.peak_mib for cost in costs))


def _alone(work: Callable[..., None], arguments: tuple[Any, ...]) -> Cost:
    from shortlist.features.fit import fit  # noqa: F401 - what takes seconds to import is no part of the work

    began = time.process_time()
    work(*arguments)
    seconds = time.process_time() - began
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return Cost(seconds, int(peak.split()[1]) / 1024)


def compared(name: str, cost: Cost, peer: str, peer_cost: Cost) -> list[Line]:
    """Return the lines of a work and of what it is compared with."""
    return [
        Line(WORK, f"{name}, time", round(cost.cpu_s, 3), "s of a processor", f"{peer}: {peer_cost.cpu_s:.2f} s",
             round(cost.cpu_s / peer_cost.cpu_s, 3)),
        Line(WORK, f"{name}, memory", round(cost.peak_mib, 1), "MiB", f"{peer}: {peer_cost.peak_mib:.0f} MiB",
             round(cost.peak_mib / peer_cost.peak_mib, 3)),
    ]  # fmt: skip


def tiles_and_days(folder: Path, rows_a_day: int, rounds: int) -> list[Line]:
    """Return what more tiles cost, and what more days do."""
    costs: dict[tuple[int, str], Cost] = {}
    for days in (DAYS, 2 * DAYS):
        days_folder = folder / str(days)
        days_folder.mkdir()
        make_log(spec_of("1d", days, rows_a_day), days_folder)
        for tile in ("1d", SHORT):
            spec = spec_of(tile, days, rows_a_day)
            costs[days, tile] = cost_of(count, spec, days_folder, "valid", f"fit-{tile}", rounds=rounds)
    more_tiles = compared(
        f"fit by tiles of {SHORT}, {2 * DAYS} days", costs[2 * DAYS, SHORT], "tiles of 1d", costs[2 * DAYS, "1d"]
    )
    more_days = compared(
        f"fit of {2 * DAYS} days, tiles of {SHORT}", costs[2 * DAYS, SHORT], f"{DAYS} days", costs[DAYS, SHORT]
    )
    return more_tiles + more_days


def counted_onto(folder: Path, rows_a_day: int, rounds: int) -> list[Line]:
    """Return what a refresh and a backfill cost beside a count of every day.

    Raises:
        AssertionError: One gives other files than a count of every day.
    """
    days_folder, spec = folder / str(2 * DAYS), spec_of(SHORT, 2 * DAYS, rows_a_day)
    days = [part.day for part in DayTable.open(days_folder / "valid", Files.LOG).days]
    newest, middle = days[-1], days[len(days) // 2]
    for name, day, share in (("shorter", newest, 0.0), ("corrected", middle, 0.9), ("plain", middle, 1.0)):
        part_of_log(days_folder, name, day, share=share)
    for name in ("shorter", "plain", "corrected"):
        count(spec, days_folder, name, f"of-{name}")
    refresh = cost_of(count, spec, days_folder, "plain", "refreshed", "of-shorter", rounds=rounds)
    backfill = cost_of(
        count, spec, days_folder, "corrected", "backfilled", "of-plain", middle.isoformat(), rounds=rounds
    )
    whole = cost_of(count, spec, days_folder, "plain", "of-plain-again", rounds=rounds)
    assert folder_digest(days_folder / "refreshed") == folder_digest(days_folder / "of-plain")
    assert folder_digest(days_folder / "backfilled") == folder_digest(days_folder / "of-corrected")
    peer = "every day counted"
    return compared("refresh of 1 day", refresh, peer, whole) + compared("backfill of 1 day", backfill, peer, whole)


def main(arguments: list[str]) -> int:
    """Print the table and write the results; exit code 1 when a figure is worse than it may be."""
    parser = argparse.ArgumentParser(prog="benchmarks.tile_costs", description=__doc__)
    parser.add_argument("--rows-a-day", type=int, default=ROWS_A_DAY)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as scratch, console().status("counting"):
        lines = tiles_and_days(Path(scratch), options.rows_a_day, options.rounds)
        lines += counted_onto(Path(scratch), options.rows_a_day, options.rounds)
    show(f"Statistics of {2 * DAYS} days with {options.rows_a_day:,} rows each", lines)
    record(lines)
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
