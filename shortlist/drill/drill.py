"""The drill: faults are injected into a generated world; the loop must detect them, decide and recover by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from rich.console import Console

from monitoring.monitoring_job import MonitoringJob
from monitoring.pages.drill_page import Drill, drill_table, write_drill
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.contracts import Columns, Files, ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.drill_report import EXPECTED_ACTIONS, ChampionChange, DrillDay, summarize_drill
from shortlist.drill.users import DrillUsers
from shortlist.drill.world import DrillWorld
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.features.declared.plan import Plan
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.rows.table_rows import read_day
from shortlist.features.rows.transform import Transformer
from shortlist.ranking.saved_models import load_ranker
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.states.phases import Phase
from shortlist.runs.local_training import run_locally
from shortlist.runs.monitoring_runs import collect_locally, run_monitoring_locally
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.runtime import Runtime
from shortlist.spec.spec import Spec
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.artefacts import read_json
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.tracking.run_context import RunContext

TRAIN_DAYS = 10
"""Days that the first model is trained on; the next day is the first live one."""


def run_drill(spec: Spec, runs: Path) -> Drill:
    """Run a spec's generated world day by day, unattended; write `drill.json` and `drill.html` into `<runs>/latest`.

    Args:
        spec: A spec with a generated log and drifts.
        runs: Folder for runs, models and stores; it must be new, so that no existing files are touched.

    Raises:
        ShortlistError: The folder is in use, the world has no drift, or training, serving or replay fail.
    """
    if (runs / "stores").exists():
        raise ShortlistError(f"{runs}: a drill needs a new folder; delete this one, or choose another with RUNS=")
    start = time.monotonic()
    loop = _DrillLoop(spec, runs)
    try:
        loop.begin()
        while TRAIN_DAYS + len(loop.days) < loop.world.source.days:
            loop.run_day()
    finally:
        stop_stack(loop.deployer.paths)
    summary = summarize_drill(loop.world, loop.days, time.monotonic() - start, loop.compare)
    run = loop.state.new_run(f"{spec.name}-result")
    write_drill(summary, run)
    loop.state.point_latest_at(run)
    loop.console.print(drill_table(summary))
    loop.console.print(f"\nPage: {runs / 'latest' / 'drill.html'}\nStatus: {loop.monitoring_job.page}", soft_wrap=True)
    return summary


class _DrillLoop:
    """The loop of a drill: the spec is trained, served, replayed and monitored."""

    def __init__(self, spec: Spec, runs: Path) -> None:
        self.console = Console(highlight=False)
        self.world = DrillWorld(spec, runs / "world")
        self.state = RunsFolder.open(runs)
        self.days: list[DrillDay] = []
        self._context = RunContext(name=spec.name, stores=str(self.state.stores))
        self.deployer = LocalDeployer(self._context, spec.serving, spec.gates, spec.runtime, spec.data.labels)
        self.users = DrillUsers(self.deployer, self.world, TRAIN_DAYS)
        sections = spec.monitoring, spec.gates.slice_columns, spec.serving, spec.ordering
        self.monitoring_job = MonitoringJob(spec.name, str(self.state.stores), *sections)
        self._spec = spec
        self._runs = runs

    def begin(self) -> None:
        """Train on the first days, and start serving."""
        until = self.world.start_of(TRAIN_DAYS)
        self.console.print(f"A world of {self.world.source.days} days. Training on those before {until:%Y-%m-%d}.\n")
        if run_locally(self._spec, None, self._runs, until=until):
            raise ShortlistError(
                f"{self._runs / 'latest'}: the first model could not be trained; see pipeline.log there"
            )
        stack, first = self.deployer.serve()
        if first is not None and first.state.phase is not Phase.PROMOTED:
            raise ShortlistError(f"version {first.state.candidate} does not serve: {first.state.reason}")
        self.console.print(f"\nServing at {stack.url}. From now on every day is replayed and monitored.\n")

    def run_day(self) -> None:
        """Replay the next day, monitor it, and act on the decision.

        While a version is rolled out, the following days are replayed too, and monitored together.

        From the first drift that should lead to a training, the compiled monitoring graph does all of this by itself:
        it collects, decides, trains and rolls out.
        """
        first_day = TRAIN_DAYS + len(self.days)
        if self.users.next_day == first_day:
            self.users.play_day(first_day)
        last_day = self.users.next_day - 1
        retrain_days = [drift.from_day for drift in self.world.drifts if EXPECTED_ACTIONS[drift.kind] == "retrain"]
        monitor = self._monitor_by_graph if retrain_days and last_day >= retrain_days[0] else self._monitor_step_by_step
        with self.users.during_rollouts():
            day = monitor(last_day)
        *earlier_reports, _ = self.monitoring_job.monitoring_store.reports(newest=last_day - first_day + 1)
        self.days += [DrillDay(number, report, None) for number, report in enumerate(earlier_reports, first_day)]
        self.days.append(day)

    def _monitor_step_by_step(self, number: int) -> DrillDay:
        """Monitor, and train and roll out when the decision is to retrain."""
        monitoring_run = self.monitoring_job.check()
        report, decision = monitoring_run.reports[-1], monitoring_run.decision
        assert decision is not None
        self._print_day(number, decision, report)
        if not self.monitoring_job.begin_training(monitoring_run, str(self._runs / "latest")):
            return DrillDay(number, report, decision)
        self._wait_for_outcomes()
        collect_locally(self._spec, self._runs)
        run_locally(self._spec, None, self._runs, decision=decision)
        self.console.print()
        return DrillDay(
            number, report, decision, trained=True, promoted=self._retraining_of(decision).state == "promoted"
        )

    def _monitor_by_graph(self, number: int) -> DrillDay:
        """Run the monitoring graph once."""
        self._wait_for_outcomes()
        store = self.monitoring_job.monitoring_store
        retrainings_before = {retraining.key for retraining in store.retrainings()}
        champion_fit, champion = self._published_fit(), self._context.tracker.registry.version_of("champion")
        run_monitoring_locally(self._spec, None, self._runs)
        decision = self.monitoring_job.newest_decision()
        assert decision is not None and champion is not None
        report = next(report for report in store.reports() if report.start == decision.window)
        self._print_day(number, decision, report)
        if decision.key not in {retraining.key for retraining in store.retrainings()} - retrainings_before:
            return DrillDay(number, report, decision)
        retraining = self._retraining_of(decision)
        summary = self._runs / "latest" / Files.SUMMARY
        collected = read_json(summary)["rows"]["collected"] if summary.exists() else None
        promoted = retraining.state == "promoted"
        change = None
        if promoted and retraining.version is not None:
            change = ChampionChange(retraining.version, self._published_fit(), champion, champion_fit)
        return DrillDay(number, report, decision, True, promoted, collected, change)

    def _published_fit(self) -> Path:
        """Return the fit whose statistics servers look up at present."""
        stores = StorageConfig.parse(str(self.state.stores))
        return Path(spec_feast_store_location(stores, self._spec.name).require_announcement()["views"]).parent

    def compare(self, change: ChampionChange, days: frozenset[date]) -> tuple[float, float]:
        """Return the AUC of a promoted and of the replaced model on some days, each with the statistics it served."""
        with TemporaryDirectory(prefix="shortlist-drill-") as scratch:
            registry = self._context.tracker.registry
            fits = {change.promoted: change.promoted_fit, change.frozen: change.frozen_fit}
            models = {
                version: ServedModel(registry.fetch(version, Path(scratch) / str(version)).folder, fitted)
                for version, fitted in fits.items()
            }
            auc_by_version = measure_served_auc(self.world.log, days, models, self._spec.runtime)
        return auc_by_version[change.promoted], auc_by_version[change.frozen]

    def _retraining_of(self, decision: RetrainDecision) -> Retraining:
        return next(
            retraining
            for retraining in self.monitoring_job.monitoring_store.retrainings()
            if retraining.key == decision.key
        )

    def _wait_for_outcomes(self) -> None:
        """Wait until the outcomes of the replayed day are due."""
        data = self._spec.data
        if data.live.collect and data.live_outcome_delay is not None:
            flushed = timedelta(seconds=self._spec.serving.log.flush_seconds)
            wait = parse_duration(data.live_outcome_delay) + parse_duration(data.live.settle) + 2 * flushed
            time.sleep(wait / timedelta(seconds=1))

    def _print_day(self, number: int, decision: RetrainDecision, report: WindowReport) -> None:
        drift = self.world.drift_on(number)
        columns = [f"{report.start:%Y-%m-%d}", f"{report.verdict:<9}", f"{decision.action:<7}"]
        names = ", ".join(report.columns[:6]) or "-"
        planted = f"  (planted: {drift.kind})" if drift else ""
        self.console.print(f"{'  '.join(columns)} {report.requests:>5} requests  {names}{planted}", soft_wrap=True)


@dataclass(frozen=True)
class ServedModel:
    """A model, and the statistics that servers looked up while it was the champion."""

    model: Path
    """Model folder."""
    fitted: Path
    """Folder of the fit whose views were published; later events are in no feature."""


def measure_served_auc(
    log: Path, days: frozenset[date], models: Mapping[int, ServedModel], runtime: Runtime
) -> dict[int, float]:
    """Return the AUC of versions on the rows of some days, each with the statistics that it served.

    The views of a fit hold no later values. Rows of later days therefore get what the server had: the newest published
    value of each key.

    Args:
        log: Folder of a valid log with these days.
        days: Days to score.
        models: Models by version.
        runtime: Section with the engine of the look-ups.

    Raises:
        UnmeasurableError: All rows have one label.
    """
    table = DayTable.open(log, Files.LOG)
    auc_by_version = {}
    for version, served in models.items():
        transformer = Transformer.load(served.fitted, runtime.engine, served.model / Files.PREPROCESSING)
        ranker, labels, scores = load_ranker(served.model), [], []
        for day, rows in _iter_rows(table, days, transformer.plan):
            labels.append(rows[Columns.LABEL].to_numpy())
            scores.append(ranker.predict(transformer.compute(transformer.look_up(rows, day))))
        auc_by_version[version] = auc(np.concatenate(labels), np.concatenate(scores))
    return auc_by_version


def _iter_rows(table: DayTable, days: frozenset[date], plan: Plan) -> Iterator[tuple[date, pl.DataFrame]]:
    for part in table.days:
        if part.day in days:
            yield from ((part.day, rows) for rows in read_day(table, part, plan))
