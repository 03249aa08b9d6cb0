"""Days of a real log as they come: a frozen model against continuously retrained ones; `kuairand_days.py DATA`.

The first days of KuaiRand train a model. Every later day is then scored by

- stale: that model, the store left as it was when it was trained;
- frozen: that model, the store refreshed every night;
- continue, refit, warm: the model of the night before, trained again as declared, from the log up to midnight;
- scratch: a model trained from nothing every night on the same log.

Every day is also watched as a window of live traffic that the stale XGBoost served: the verdict, what is named, and the
decision are printed beside. Nothing is done about them here: the retrained models are trained every night anyway.

No model and no statistic has a row of the day that it scores, or of a later one: everything is made of a log that was
validated with `until` at the day's start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from models.dlrm.section import DLRMModel
from models.ranker import IncompatibleModelError
from models.record import read_record
from models.xgboost.section import XGBoostModel
from monitoring.checks import check_window
from monitoring.drift.drift import find_drift
from monitoring.live_quality import measure_quality
from monitoring.reference.reference import build_reference
from monitoring.retraining.retrain_policy import decide_retraining
from monitoring.windows.known_columns import with_side_columns
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import WindowReport
from shortlist.contracts import Columns, Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.metrics import auc, log_loss
from shortlist.features.fit import fit
from shortlist.features.preprocessing import Preprocessing
from shortlist.features.table import build_table
from shortlist.features.tiles import start_of
from shortlist.features.transform import Transformer
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.continued_training import PreviousModel
from shortlist.training.export import pack
from shortlist.training.train import load_ranker, ranker_class, train

LIST = 20
"""Rows of what a user is shown at once, as a replay has it."""
FIRST_DAYS = 6
"""Days before the first that is live: one warms up, three train, one validates, one tests."""
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "xgboost": {
        "continue": {"retrain": "continue", "retrain_rounds": 60, "retrain_days": 1},
        "refit": {"retrain": "refit"},
        "scratch": {},
    },
    "dlrm": {"warm": {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 1, "refit": False}, "scratch": {}},
}
RESULTS = Path(__file__).parent / "results"
Note = Callable[[str], None]


class LiveDay(NamedTuple):
    """A day that was live: its rows, and what every model said of them."""

    day: date
    rows: pl.DataFrame
    """Of the valid log."""
    scores: dict[str, np.ndarray]
    """By `<kind> <way>`, in the order of the rows."""

    def line(self) -> dict[str, Any]:
        """Return the numbers of the day."""
        labels = self.rows[Columns.LABEL].to_numpy().astype(float)
        return {
            "day": self.day.isoformat(),
            "rows": self.rows.height,
            "label_rate": round(float(labels.mean()), 5),
            "auc": {name: round(auc(labels, scores), 5) for name, scores in self.scores.items()},
            "log_loss": {name: round(log_loss(labels, scores), 5) for name, scores in self.scores.items()},
        }


class Watched:
    """What monitoring says of the days that a model of the first days serves.

    Args:
        study: With its first day's models.
    """

    def __init__(self, study: Study) -> None:
        spec, first = study.spec, study.days[FIRST_DAYS]
        self._study, self._settings = study, spec.monitoring
        scores = {"xgboost": study.scores("xgboost", "scratch", first)}
        inputs = study.folder / f"log-{first}", study.fitted(first)
        sections = spec.data, spec.features, spec.monitoring
        self._reference = build_reference(spec.name, *sections, *inputs, scores, study.folder / "reference")
        self._preprocessing = Preprocessing.load(study.fitted(first))
        self._reports: list[WindowReport] = []

    def line(self, live: LiveDay) -> dict[str, Any]:
        """Return the verdict on a day, what it names, and the decision."""
        window, settings = self._window(live), self._settings
        usual = self._reference.models["xgboost"]
        problems, ratio = check_window(window, self._reference, self._reports, settings)
        findings = find_drift(window.rows, self._reference, usual.scores, self._preprocessing, settings.drift)
        report = WindowReport(
            spec=self._reference.spec, start=window.start, end=window.end, made=window.end, champion=1,
            versions={1: window.rows.height}, requests=window.requests, rows=window.rows.height, coverage=1.0,
            volume_ratio=ratio, problems=problems, findings=() if problems else findings,
            quality=measure_quality(window, {1: usual}, (), settings.quality, settings.window.min_rows),
        )  # fmt: skip
        self._reports.append(report)
        decision = decide_retraining(report.spec, self._reports, (), settings.retrain, report.end)
        nearest = max(findings, key=lambda one: one.effect / one.critical)
        return {
            "verdict": report.verdict,
            "named": list(report.columns),
            "nearest": f"{nearest.column} {nearest.effect:.3f} of {nearest.critical:.3f}",
            "decision": decision.action,
            "reason": decision.reasons[0],
        }

    def _window(self, live: LiveDay) -> LiveWindow:
        data = self._study.spec.data
        assert data.user is not None
        scored = live.rows.with_columns(score=pl.Series(live.scores["xgboost stale"]).cast(pl.Float32))
        listed = pl.int_range(pl.len(), dtype=pl.Int32).over(data.user)
        named = scored.sort(data.user, Columns.TIME).with_columns(
            pl.format("{}-{}", data.user, listed // LIST).alias("request_id"), (listed % LIST).alias("row"),
            pl.col(data.user).cast(pl.String).alias(Columns.USER), pl.lit(1, pl.Int64).alias("version"),
        )  # fmt: skip
        rows = with_side_columns(named, data, self._study.log.folder)
        start = start_of(live.day, self._study.timezone)
        requests = rows["request_id"].n_unique()
        scores = rows.select("version", "score")
        return LiveWindow(start, start + timedelta(days=1), requests, rows, 1.0, 0, 0, 0, 0, scores)


class Study:
    """The log, and everything that is made of it day by day.

    Args:
        spec: The declaration.
        data: The user's files.
        folder: Where everything is written.
        note: Told what is being done.
    """

    def __init__(self, spec: Spec, data: Path, folder: Path, note: Note) -> None:
        self.spec = spec
        self.folder = folder
        self.note = note
        self.declared = DeclaredSections(spec.data, spec.features, spec.gates)
        note("reading the log")
        ingest(spec.data, data, folder / "raw", spec.runtime)
        self.log = self._validated("log", None)
        """All days: what happened, as it became known in the end."""
        self.days = [part.day for part in self.log.days]

    def live_days(self) -> Iterator[LiveDay]:
        """Give every day after the first ones, once its models have been trained and have scored it."""
        first = self.days[FIRST_DAYS]
        for number, day in enumerate(self.days[FIRST_DAYS:], FIRST_DAYS):
            before = self.days[number - 1] if day != first else None
            self._make_features(day, before)
            for kind, ways in WAYS.items():
                for way, changes in ways.items():
                    self._train(kind, way, changes, day, before)
            yield self._scored(day, first)

    def fitted(self, day: date) -> Path:
        """Return what features were fitted to at the start of a day."""
        return self.folder / f"fitted-{day}"

    def model(self, kind: str, way: str, day: date) -> Path:
        """Return the model that was trained in the night before a day."""
        return self.folder / f"{kind}-{way}-{day}"

    def scores(self, kind: str, way: str, day: date) -> Path:
        """Return the scores of validation and test days of that model."""
        return self.folder / f"scores-{kind}-{way}-{day}"

    def _validated(self, name: str, day: date | None) -> DayTable:
        until = start_of(day, self.timezone) if day else None
        paths = self.folder / "raw", self.folder / name, self.folder / "quarantine"
        return validate(self.spec.data, *paths, self.spec.runtime, datetime.now(UTC), until)

    @property
    def timezone(self) -> str:
        """Where days begin at midnight."""
        clock = self.spec.data.clock
        return clock.timezone if clock.kind == "column" else "UTC"

    def _make_features(self, day: date, before: date | None) -> None:
        self.note(f"{day}: features")
        log = self._validated(f"log-{day}", day).folder
        previous = self.fitted(before) if before else None
        fit(*self.declared, self.spec.runtime, log, self.fitted(day), previous)
        build_table(*self.declared, self.spec.runtime, log, self.fitted(day), self.folder / f"table-{day}")

    def _train(self, kind: str, way: str, changes: dict[str, Any], day: date, before: date | None) -> None:
        self.note(f"{day}: {kind}, {way}")
        section = self._section(kind, changes)
        table, champion = DayTable.open(self.folder / f"table-{day}", Files.TABLE), None
        if before is not None and changes:
            champion = self.model(kind, way, before)
            try:
                table = PreviousModel("", "", champion, read_record(champion)).days_left_to_train(
                    section, ranker_class(kind), table, self.fitted(day)
                )
            except IncompatibleModelError as reason:
                champion = None
                print(f"{day}: {kind}, {way}, from scratch: {reason}")
        out = self.model(kind, way, day)
        train(kind, section, table, self.spec.runtime, out, self.scores(kind, way, day), champion=champion)
        pack(out, self.fitted(day))

    def _section(self, kind: str, changes: dict[str, Any]) -> XGBoostModel | DLRMModel:
        section: Any = self.spec.models[kind]
        return type(section).model_validate({**section.model_dump(), **changes})

    def _scored(self, day: date, first: date) -> LiveDay:
        self.note(f"{day}: scoring")
        rows = self.log.scan({day}).collect()
        scores = {}
        for kind, ways in WAYS.items():
            frozen = self.model(kind, "scratch", first)
            scores[f"{kind} stale"] = self._scores(frozen, self.fitted(first), rows, day)
            scores[f"{kind} frozen"] = self._scores(frozen, self.fitted(day), rows, day)
            for way in ways:
                scores[f"{kind} {way}"] = self._scores(self.model(kind, way, day), self.fitted(day), rows, day)
        return LiveDay(day, rows, scores)

    def _scores(self, model: Path, fitted: Path, rows: pl.DataFrame, day: date) -> np.ndarray:
        transformer = Transformer.load(fitted, self.spec.runtime.engine, model / Files.PREPROCESSING)
        features = transformer.compute(transformer.look_up(rows, day))
        return load_ranker(model).predict(features).astype(float)


def kuairand() -> Spec:
    """Return the shipped declaration, with one test day: the days that are live are tests enough."""
    spec = load_spec(Path(__file__).parents[1] / "pipelines" / "specs" / "kuairand.yaml")
    split = spec.data.split.model_copy(update={"test_days": 1})
    return spec.model_copy(update={"data": spec.data.model_copy(update={"split": split})})


def shown(lines: list[dict[str, Any]], measure: str) -> Table:
    """Return a measure per day and model, and its mean over all days."""
    names = list(lines[0][measure])
    table = Table(title=f"{measure.replace('_', ' ')} per day", title_justify="left")
    for heading in ("day", "rows", "label rate", *names):
        table.add_column(heading, justify="left" if heading == "day" else "right")
    for line in lines:
        values = (f"{line[measure][name]:.4f}" for name in names)
        table.add_row(line["day"], f"{line['rows']:,}", f"{line['label_rate']:.3f}", *values)
    means = (f"{np.mean([line[measure][name] for line in lines]):.4f}" for name in names)
    table.add_row("mean", "", "", *means, style="bold")
    return table


def looked(lines: list[dict[str, Any]]) -> Table:
    """Return what watching the stale XGBoost says of every day."""
    table = Table("day", "verdict", "named", "nearest to its limit", "decision", title="watched", title_justify="left")
    for line in lines:
        one = line["watched"]
        said = f"{one['decision']}: {one['reason']}"
        table.add_row(line["day"], one["verdict"], ", ".join(one["named"]) or "-", one["nearest"], said)
    return table


def main() -> int:
    """Print a table per measure, and write every day's numbers."""
    if len(sys.argv) != 2:
        print("Say where the KuaiRand files are: benchmarks/kuairand_days.py DATA")
        return 2
    console = Console(width=190)
    with TemporaryDirectory() as scratch, console.status("") as status:
        study = Study(kuairand(), Path(sys.argv[1]), Path(scratch), status.update)
        lines, watched = [], None
        for live in study.live_days():
            watched = watched or Watched(study)
            lines.append(live.line() | {"watched": watched.line(live)})
    for measure in ("auc", "log_loss"):
        console.print(shown(lines, measure))
    console.print(looked(lines))
    RESULTS.mkdir(exist_ok=True)
    result = {"first_days": FIRST_DAYS, "ways": WAYS, "date": datetime.now(UTC).date().isoformat(), "days": lines}
    (RESULTS / "kuairand_days.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
