"""Logs in the layout of Criteo's against the logistic baseline: `criteo_layout.py [DATA]`.

The generated world of `demo`, and KuaiRand's files where they are given, are written as a label, 13 counts and 26
hashed categories, in time order; users, items and side tables become categories like any others. The shipped spec
`criteo` trains its models on both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import polars as pl
from rich.table import Table

from benchmarks.bench import Line, console, record
from monitoring.windows.known_columns import with_side_columns
from shortlist.contracts import Columns
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.comparison import ModelComparison, TrainedFiles, compare_models
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.ranking.ranker import MemberFiles
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.load import load_spec
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.train import train

SPECS: Final = Path(__file__).parents[1] / "pipelines" / "specs"
COUNTS, CATEGORIES = 13, 26
_HASHES: Final = 10**8
"""Codes have eight digits, which are hexadecimal ones too."""


class Source(NamedTuple):
    """A log, and which of its columns become counts and categories."""

    spec: str
    counts: tuple[str, ...]
    categories: tuple[str, ...]


SOURCES: Final = (
    Source(
        "demo",
        ("position", "duration"),
        ("user_id", "item_id", "surface", "device", "country", "age_group", "creator_id", "tags", "position"),
    ),
    Source(
        "kuairand",
        ("duration_ms", "follow_user_num", "fans_user_num", "friend_user_num", "register_days", "video_duration"),
        ("user_id", "video_id", "author_id", "music_id", "tag", "tab", "video_type", "upload_type",
         "user_active_degree", "follow_user_num_range", "fans_user_num_range", "friend_user_num_range",
         "register_days_range", "is_live_streamer", "is_video_author", "is_lowactive_period",
         *(f"onehot_feat{number}" for number in range(10))),
    ),
)  # fmt: skip
"""A column of tags gives its first tag."""


def in_layout(rows: pl.DataFrame, source: Source) -> pl.DataFrame:
    """Return rows as 40 columns of text: the label, the counts, the categories; what a log lacks is null.

    Args:
        rows: With the label and the source's columns, in time order.
        source: Names them.
    """
    counts = {f"I{place + 1}": _count(name) for place, name in enumerate(source.counts)}
    categories = {f"C{place + 1}": _hashed(rows, name) for place, name in enumerate(source.categories)}
    absent = {f"I{place + 1}": pl.lit(None, pl.String) for place in range(len(counts), COUNTS)}
    absent |= {f"C{place + 1}": pl.lit(None, pl.String) for place in range(len(categories), CATEGORIES)}
    named = {"clicked": pl.col(Columns.LABEL), **counts, **categories, **absent}
    order = [
        "clicked",
        *(f"I{number + 1}" for number in range(COUNTS)),
        *(f"C{number + 1}" for number in range(CATEGORIES)),
    ]
    return rows.select(named[name].alias(name) for name in order)


def _count(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64).round().cast(pl.Int64)


def _hashed(rows: pl.DataFrame, name: str) -> pl.Expr:
    value = pl.col(name).list.first() if rows.schema[name].base_type() is pl.List else pl.col(name)
    codes = (value.cast(pl.String).hash(seed=len(name)) % _HASHES).cast(pl.String).str.zfill(8)
    return pl.when(value.is_not_null()).then(codes)


def write_layout(source: Source, log_folder: Path, folder: Path) -> Path:
    """Read a source's log by its own spec, and write it in the layout; return the file."""
    spec = load_spec(SPECS / f"{source.spec}.yaml")
    log = _validated(spec.data, spec.runtime, log_folder, folder)
    rows = pl.concat([with_side_columns(frame, spec.data, log.folder) for _, frame in log.frames()])
    path = folder / "train.txt"
    in_layout(rows.sort(Columns.TIME, maintain_order=True), source).write_csv(
        path, separator="\t", include_header=False
    )
    return path


def compared(log: Path, folder: Path, note: Callable[[str], None]) -> ModelComparison:
    """Train every model of the shipped spec `criteo` on a file in the layout, and compare them.

    Args:
        log: The file.
        folder: Where everything is written.
        note: Told what is being done.
    """
    spec = load_spec(SPECS / "criteo.yaml")
    declared = DeclaredSections(spec.data, spec.features, spec.gates)
    note(f"{log.parent.name}: features")
    valid = _validated(spec.data, spec.runtime, log, folder)
    fit(*declared, spec.runtime, valid.folder, folder / "fitted", None)
    table = build_table(*declared, spec.runtime, valid.folder, folder / "fitted", folder / "table")
    files = {}
    for name, section in sorted(
        spec.models.items(), key=lambda named_section: bool(named_section[1].members)
    ):  # members come first
        note(f"{log.parent.name}: {name}")
        model, scores = folder / name, folder / f"{name}-scores"
        members = {member: MemberFiles(files[member].folder, files[member].scores) for member in section.members}
        train(section.kind, section, table, spec.runtime, model, scores, name=name, members=members)
        files[name] = TrainedFiles(section.role, model, scores)
    return compare_models(log.parent.name, files, spec.gates, spec.runtime.seed)


def _validated(data_section: Data, runtime: Runtime, files: Path, folder: Path) -> DayTable:
    ingest(data_section, files, folder / "raw", runtime)
    return validate(data_section, folder / "raw", folder / "log", folder / "refused", runtime, datetime.now(UTC), None)


def comparison_table(comparisons: Mapping[str, ModelComparison]) -> Table:
    """Return a line per log and model."""
    table = Table("log", "model", "AUC", "log loss", "against the best", title_justify="left")
    for log, comparison in comparisons.items():
        for name, line in comparison.models.items():
            gap = line.against_best.get(comparison.metric)
            gaps = "" if gap is None else f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            table.add_row(log, name, f"{line.auc or 0:.4f}", f"{line.log_loss or 0:.4f}", gaps)
    return table


def lines_of(log: str, comparison: ModelComparison) -> list[Line]:
    """Return a log's entries of the results: AUC and log loss of every model."""
    lines = []
    for name, metrics in comparison.models.items():
        if metrics.auc is None or metrics.log_loss is None:
            continue
        lines.append(Line("criteo layout", f"{log}, {name}, AUC", metrics.auc, ""))
        lines.append(Line("criteo layout", f"{log}, {name}, log loss", metrics.log_loss, ""))
    return lines


def main() -> int:
    """Print and record the table, and print the notice that each log's page would begin with."""
    comparisons = {}
    with TemporaryDirectory() as scratch, console().status("") as status:
        for source in SOURCES[: len(sys.argv)]:
            folder, original = Path(scratch) / f"{source.spec}-as-criteo", Path(scratch) / source.spec
            for log_folder in (folder, original):
                log_folder.mkdir()
            path = write_layout(source, Path(*sys.argv[1:]), original)
            comparisons[source.spec] = compared(path, folder, status.update)
    printing = console()
    printing.print(comparison_table(comparisons))
    record([line for log, comparison in comparisons.items() for line in lines_of(log, comparison)])
    for log, comparison in comparisons.items():
        printing.print(
            f"{log}: {comparison.notice or 'every candidate beats every baseline and the logistic regression.'}",
            soft_wrap=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
