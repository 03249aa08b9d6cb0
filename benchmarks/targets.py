"""What the product must reach, row of work by row of work, and whether the last results do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final, Literal, NamedTuple

from benchmarks.bench import Line, console, figure

Measurement = Mapping[str, Any]
"""An entry of the results, as `benchmarks.bench.record` writes it."""

_HOLDS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
}


class Target(NamedTuple):
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
    processor_features: frozenset[str] = frozenset()
    """Features of a processor of which one is needed; empty: none."""

    def select(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return the entries that it is about."""
        return [
            measurement
            for measurement in measurements
            if measurement["work"] == self.work and fnmatchcase(str(measurement["name"]), self.name)
        ]

    def reached_by(self, measurement: Measurement) -> bool:
        """Whether an entry is as good as asked; one without the figure is not."""
        measured_figure = measurement.get(self.figure)
        return measured_figure is not None and _HOLDS[self.comparison](measured_figure, self.limit)

    def worst(self, measurements: Sequence[Measurement]) -> Measurement:
        """Return the entry that is farthest from what is asked; one without the figure is farther than any."""
        sign = 1 if self.comparison == ">=" else -1
        return min(
            measurements,
            key=lambda measurement: -inf if measurement.get(self.figure) is None else sign * measurement[self.figure],
        )

    def text(self, unit: str) -> str:
        """Return what is asked, such as `ratio <= 2` or `>= 9 M rows/s`."""
        subject, suffix = ("", f" {unit}") if self.figure == "value" else ("ratio ", "")
        return f"{subject}{self.comparison} {self.limit:g}{suffix}"


VALUE_TARGETS: Final[tuple[tuple[str, str, Literal["<=", "<", ">="], float], ...]] = (
    ("value, intervals hold the truth", "all corners: interval holds the truth", ">=", 0.93),
    ("value, worst corner", "*%, *: interval holds the truth", ">=", 0.87),
    ("value is given, 5 % explored", "5%, *, 20000: value is given", ">=", 0.9),
    ("value is given, 20 % explored", "20%, *, 20000: value is given", ">=", 0.9),
    ("value is given, 20 % of 2 000 slates", "20%, *, 2000: value is given", ">=", 0.8),
    ("12 % worse is held, 5 % explored", "5%, *, 20000: 12 % worse is held", ">=", 0.6),
    ("12 % worse is held, 20 % explored", "20%, *, 20000: 12 % worse is held", ">=", 0.9),
    ("equal is held", "*%, *, 20000: equal is held", "<=", 0.04),
)
"""Row, name in the results, comparison and limit of the estimates of value; a group of worlds is a `Corner`."""
TARGETS: Final = (
    Target(
        "text to features, times text to Parquet", "features", "features", "all steps, 2 M rows", "ratio", "<=", 2.0
    ),
    Target("text to features, NVTabular's time", "features", "features", "*against NVTabular*", "ratio", ">=", 15.0),
    Target("text to features, fb/dlrm's time", "features", "features", "*against facebookres*", "ratio", ">=", 25.0),
    Target("features of 20 M rows, memory", "features", "features", "20 M rows, peak memory", "ratio", "<=", 1.2),
    Target("features of 20 M rows, time", "features", "features", "20 M rows, time", "ratio", "<=", 10.5),
    Target("loader from disk", "loader", "loader", "disk, [0-9]*", "value", ">=", 9.0),
    Target("loader from Parquet", "loader", "loader", "Parquet, [0-9]*", "value", ">=", 4.0),
    Target(
        "XGBoost's matrix and first tree, time",
        "xgboost_matrices",
        "xgboost",
        "ours, matrix and 1 tree, time",
        "ratio",
        "<=",
        0.7,
    ),
    Target("XGBoost's matrix, memory", "xgboost_matrices", "xgboost", "ours, peak memory", "ratio", "<=", 0.7),
    Target("networks of equal widths, times DLRM", "train", "train kinds", "[!d]*", "ratio", ">=", 0.8),
    Target("DCN-v2 of full and of low rank, times DLRM", "train", "train kinds", "dcn*", "ratio", ">=", 0.8),
    Target("DIN, times DLRM with the sequence's mean", "train", "train kinds", "din*", "ratio", ">=", 0.8),
    Target("DLRM training, Kaggle dims", "train", "train", "Kaggle dims, ours", "ratio", ">=", 2.3),
    Target("DLRM training, MLPerf dims", "train", "train", "MLPerf dims, ours", "ratio", ">=", 1.85),
    Target(
        "DLRM, Kaggle dims, scoring, fp32",
        "serve",
        "score",
        "DLRM*, 1,024*, OpenVINO fp32, features given",
        "value",
        "<=",
        6.0,
    ),
    Target(
        "DLRM, Kaggle dims, scoring, bf16",
        "serve",
        "score",
        "DLRM*, 1,024*, OpenVINO bf16, features given",
        "value",
        "<=",
        3.5,
        frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    ),
    Target(
        "XGBoost, 300 trees, scoring",
        "serve",
        "score",
        "* trees, 1,024*, compiled walk, features given",
        "value",
        "<=",
        0.7,
    ),
    Target("DLRM through the servers, p50", "serve", "rank", "dlrm, HTTP binary, 1 client, p50", "ratio", "<=", 1.2),
    Target(
        "DLRM through the servers, rate", "serve", "rank", "dlrm, HTTP binary, 4 clients, rate", "ratio", ">=", 0.95
    ),
    Target("steps at ten times the rows, memory", "memory", "memory", "*", "ratio", "<=", 1.5),
    Target("a run's steps at ten times the rows, time", "growth", "growth", "*, seconds", "ratio", "<=", 10.5),
    Target("a run's steps at ten times the rows, memory", "growth", "growth", "*, memory", "ratio", "<=", 1.3),
    Target("a task's overhead", "overhead", "overhead", "a task that does nothing", "value", "<=", 0.2),
    Target("the second, unchanged run", "overhead", "overhead", "an unchanged run", "value", "<", 10.0),
    Target("drift tests, false alarms", "drift", "drift", "*, quiet days, *: false alarms", "value", "<", 0.01),
    Target("good canaries called faulty", "judge", "judge", "equally good*: called faulty", "value", "<=", 0.02),
    Target("seconds from new weight to effect", "soak", "soak", "new weight to effect, median", "value", "<=", 1.0),
    Target("seconds from verdict to 0 %", "soak", "soak", "verdict to 0 %, median", "value", "<=", 2.0),
    Target("events kept and counted on one core", "freshness", "freshness", "events kept*", "value", ">=", 20_000),
    Target("seconds from event to score, p99", "freshness", "freshness", "* to score, p99", "value", "<", 1.0),
    Target("a server's 30th day against its first", "month", "month", "*", "ratio", "<=", 1.1),
    Target("events kept by /v1/events on one core", "events", "events", "events kept*", "value", ">=", 20_000),
    Target("servers killed while events come, nothing lost", "events", "events", "kills survived", "value", ">=", 200),
    Target("KuaiRand, AUC of the blend", "kuairand", "kuairand", "blend, auc", "value", ">=", 0.756),
    *(
        Target(f"KuaiRand, AUC of {name}", "kuairand", "kuairand", f"{name}, auc", "value", ">=", 0.75)
        for name in ("xgboost", "dlrm", "wide_deep")
    ),
    Target("KuaiRand, log loss of the blend", "kuairand", "kuairand", "blend, log_loss", "value", "<=", 0.579),
    Target("KuaiRand, GAUC over popularity", "kuairand", "kuairand", "blend, lead in gauc", "value", ">=", 0.025),
    Target("processes of runs killed, other results", "kills", "kills", "other results", "value", "<=", 0),
    Target("rollouts sent back by a hostile client", "hostile", "hostile", "rollouts*sent back", "value", "<=", 0),
    Target("trainings stopped by a hostile client", "hostile", "hostile", "trainings stopped", "value", "<=", 0),
    Target("AUC moved by a hostile client", "hostile", "hostile", "*, distance", "value", "<=", 0.002),
    Target("p99 of others beside a hostile client", "hostile", "hostile", "others, p99", "ratio", "<=", 1.5),
    Target("servers killed, nothing lost", "freshness", "freshness", "kills survived", "value", ">=", 200),
    Target("index, recall@500", "index", "index", "*recall@500", "value", ">=", 0.98),
    Target("a scan of a million vectors", "index", "index", "1 000 000 items, scan, proc*", "ratio", "<=", 0.5),
    Target(
        "a slate of ten of a million items, p50", "recommend", "recommend", "10 of 1,000,000, p50", "value", "<=", 10.0
    ),
    Target(
        "a slate of ten of a million items, p99", "recommend", "recommend", "10 of 1,000,000, p99", "value", "<=", 25.0
    ),
    Target("stages added to scoring, p50", "recommend", "recommend", "added stages, p50", "ratio", "<=", 1.5),
    Target("MMR of 500 to 10", "recommend", "recommend", "MMR, 500 to 10", "value", "<=", 1.0),
    Target(
        "broken slates of 100 000 simulated requests", "simulate_slates", "simulation", "*, broken", "value", "<=", 0.0
    ),
    Target("simulated rollouts a minute", "simulate", "simulate", "rate of one processor", "value", ">=", 10_000.0),
    Target(
        "simulated rollouts that break a rule",
        "simulate",
        "simulate",
        "histories that break a rule",
        "value",
        "<=",
        0.0,
    ),
    Target(
        "sources, times popularity's recall",
        "candidates",
        "candidates",
        "kuairand, all three*, recall",
        "ratio",
        ">=",
        1.0,
    ),
    Target("sequences, RecTools' nDCG@10", "sequences", "sequences", "*, unseen_ndcg_at_10", "ratio", ">=", 0.95),
    Target("two towers, plain torch's rate", "two_tower", "two_tower", "ours", "ratio", ">=", 1.5),
    *(
        Target(row, "value", "value", name, "value", comparison, limit)
        for row, name, comparison, limit in VALUE_TARGETS
    ),
    Target("error of the default estimator", "value", "value", "error of doubly_robust *", "ratio", "<=", 1.05),
)


def missed_names(lines: Iterable[Line], targets: Iterable[Target] = TARGETS) -> list[str]:
    """Return the names of lines that are not as good as asked."""
    measurements = [line._asdict() for line in lines]
    return [
        str(measurement["name"])
        for target in targets
        for measurement in target.select(measurements)
        if not target.reached_by(measurement)
    ]


def exit_code(lines: Iterable[Line], targets: Sequence[Target] = TARGETS) -> int:
    """Print what was asked of every line that is not as good, and return 1 where there is one."""
    printing, lines = console(), list(lines)
    names = missed_names(lines, targets)
    for line in lines:
        for target in targets if line.name in names else ():
            measurement = line._asdict()
            if target.select([measurement]) and not target.reached_by(measurement):
                measured_text = (
                    f"{figure(line.value)} {line.unit}" if target.figure == "value" else f"ratio {line.ratio}"
                )
                printing.print(
                    f"Below what is asked: '{line.name}': {measured_text}; {target.text(line.unit)}", soft_wrap=True
                )
    return int(bool(names))


class Row(NamedTuple):
    """A row of the summary."""

    row: str
    own_figure: str
    peer: str
    ratio: str
    target_text: str
    reached: Literal["yes", "no", "not measured", "cannot run"]


def summary(
    measurements: Sequence[Measurement], targets: Iterable[Target] = TARGETS, features: Sequence[str] | None = None
) -> list[Row]:
    """Return one row per work: ours, the peer, the ratio, what is asked, whether it is reached.

    Where several entries are meant, such as two sizes of a batch, the worst stands for all.

    Args:
        measurements: The results, of one processor; what it did not measure is not in them.
        targets: What must be reached.
        features: Of the processor; None: nothing is known of it.
    """
    rows = []
    for target in targets:
        selected = target.select(measurements)
        able = features is None or not target.processor_features or bool(target.processor_features & set(features))
        rows.append(_row(target, target.worst(selected)) if selected else _unmeasured(target, able=able))
    return rows


def _row(target: Target, measurement: Measurement) -> Row:
    ratio = measurement.get("ratio")
    return Row(
        target.row,
        f"{figure(measurement['value'])} {measurement['unit']}",
        str(measurement.get("peer") or ""),
        "" if ratio is None else f"{ratio:.2f}",
        target.text(str(measurement["unit"])),
        "yes" if target.reached_by(measurement) else "no",
    )


def _unmeasured(target: Target, *, able: bool) -> Row:
    return Row(target.row, "", "", "", target.text(""), "not measured" if able else "cannot run")
