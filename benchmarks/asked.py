"""What the product must reach, row of work by row of work, and whether the last results do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final, Literal, NamedTuple

from benchmarks.bench import Line, figure

Entry = Mapping[str, Any]
"""An entry of the results, as `benchmarks.bench.record` writes it."""

_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
}


class Asked(NamedTuple):
    """One figure that must be reached."""

    row: str
    """What was done, for a reader."""
    program: str
    """Which module of `benchmarks` measures it."""
    work: str
    """Of the results' entry."""
    name: str
    """Likewise; `*` stands for anything."""
    figure: Literal["value", "ratio"]
    comparison: Literal["<=", "<", ">="]
    limit: float

    def found(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that it is about."""
        return [one for one in entries if one["work"] == self.work and fnmatchcase(str(one["name"]), self.name)]

    def reached_by(self, entry: Entry) -> bool:
        """Whether an entry is as good as asked; one without the figure is not."""
        got = entry.get(self.figure)
        return got is not None and _HOLDS[self.comparison](got, self.limit)

    def worst(self, found: Sequence[Entry]) -> Entry:
        """Return the entry that is farthest from what is asked; one without the figure is farther than any."""
        sign = 1 if self.comparison == ">=" else -1
        return min(found, key=lambda one: -inf if one.get(self.figure) is None else sign * one[self.figure])

    def text(self, unit: str) -> str:
        """Return what is asked, such as `ratio <= 2` or `>= 9 M rows/s`."""
        subject, after = ("", f" {unit}") if self.figure == "value" else ("ratio ", "")
        return f"{subject}{self.comparison} {self.limit:g}{after}"


ASKED: Final = (
    Asked("text to features, times text to Parquet", "features", "features", "all steps, 2 M rows", "ratio", "<=", 2.0),
    Asked("text to features, NVTabular's time", "features", "features", "*against NVTabular*", "ratio", ">=", 15.0),
    Asked("text to features, fb/dlrm's time", "features", "features", "*against facebookres*", "ratio", ">=", 25.0),
    Asked("features of 20 M rows, memory", "features", "features", "20 M rows, peak memory", "ratio", "<=", 1.2),
    Asked("features of 20 M rows, time", "features", "features", "20 M rows, time", "ratio", "<=", 10.5),
    Asked("loader from disk", "loader", "loader", "disk, [0-9]*", "value", ">=", 9.0),
    Asked("loader from Parquet", "loader", "loader", "Parquet, [0-9]*", "value", ">=", 4.0),
    Asked(
        "XGBoost's matrix and first tree, time",
        "xgboost_matrices",
        "xgboost",
        "ours, matrix and 1 tree, time",
        "ratio",
        "<=",
        0.7,
    ),
    Asked("XGBoost's matrix, memory", "xgboost_matrices", "xgboost", "ours, peak memory", "ratio", "<=", 0.7),
    Asked("DLRM training, Kaggle dims", "train", "train", "Kaggle dims, ours", "ratio", ">=", 2.3),
    Asked("DLRM training, MLPerf dims", "train", "train", "MLPerf dims, ours", "ratio", ">=", 1.85),
    Asked(
        "DLRM, Kaggle dims, scoring, fp32",
        "serve",
        "score",
        "DLRM*, 1,024*, OpenVINO fp32, features given",
        "value",
        "<=",
        6.0,
    ),
    Asked(
        "DLRM, Kaggle dims, scoring, bf16",
        "serve",
        "score",
        "DLRM*, 1,024*, OpenVINO bf16, features given",
        "value",
        "<=",
        3.5,
    ),
    Asked(
        "XGBoost, 300 trees, scoring",
        "serve",
        "score",
        "* trees, 1,024*, compiled walk, features given",
        "value",
        "<=",
        0.7,
    ),
    Asked("DLRM through the servers, p50", "serve", "rank", "dlrm, HTTP binary, 1 client, p50", "ratio", "<=", 1.2),
    Asked("DLRM through the servers, rate", "serve", "rank", "dlrm, HTTP binary, 4 clients, rate", "ratio", ">=", 0.95),
    Asked("steps at ten times the rows, memory", "memory", "memory", "*", "ratio", "<=", 1.5),
    Asked("a task's overhead", "overhead", "overhead", "a task that does nothing", "value", "<=", 0.2),
    Asked("the second, unchanged run", "overhead", "overhead", "an unchanged run", "value", "<", 10.0),
    Asked("drift tests, false alarms", "drift", "drift", "*, quiet days, *: false alarms", "value", "<", 0.01),
    Asked("good canaries called faulty", "judge", "judge", "equally good*: called faulty", "value", "<=", 0.02),
    Asked("seconds from new weight to effect", "soak", "soak", "new weight to effect, median", "value", "<=", 1.0),
    Asked("seconds from verdict to 0 %", "soak", "soak", "verdict to 0 %, median", "value", "<=", 2.0),
    Asked("features fitted onto earlier ones", "retrain", "retrain", "features", "ratio", "<=", 0.9),
    Asked("refit with the earlier number of trees", "retrain", "retrain", "refit", "ratio", "<=", 0.9),
    Asked("trees added to earlier ones", "retrain", "retrain", "continue", "ratio", "<=", 0.5),
    Asked("DLRM from earlier weights", "retrain", "retrain", "warm", "ratio", "<=", 0.5),
)


def below(lines: Iterable[Line], asked: Iterable[Asked] = ASKED) -> list[str]:
    """Return the names of lines that are not as good as asked."""
    entries = [line._asdict() for line in lines]
    return [str(one["name"]) for each in asked for one in each.found(entries) if not each.reached_by(one)]


class Row(NamedTuple):
    """A row of the summary."""

    row: str
    ours: str
    peer: str
    ratio: str
    asked: str
    reached: Literal["yes", "no", "not measured"]


def summary(
    entries: Sequence[Entry], asked: Iterable[Asked] = ASKED, silent: frozenset[str] = frozenset()
) -> list[Row]:
    """Return one row per work: ours, the peer, the ratio, what is asked, whether it is reached.

    Where several entries are meant, such as two sizes of a batch, the worst stands for all.

    Args:
        entries: The results.
        asked: What must be reached.
        silent: Programs that measured nothing this time: their entries are those of another day.
    """
    rows = []
    for each in asked:
        found = [] if each.program in silent else each.found(entries)
        rows.append(_row(each, each.worst(found)) if found else _unmeasured(each))
    return rows


def _row(asked: Asked, entry: Entry) -> Row:
    ratio = entry.get("ratio")
    return Row(
        asked.row,
        f"{figure(entry['value'])} {entry['unit']}",
        str(entry.get("peer") or ""),
        "" if ratio is None else f"{ratio:.2f}",
        asked.text(str(entry["unit"])),
        "yes" if asked.reached_by(entry) else "no",
    )


def _unmeasured(asked: Asked) -> Row:
    return Row(asked.row, "", "", "", asked.text(""), "not measured")
