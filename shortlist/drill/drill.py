"""The drill: faults are injected into a generated world; the loop must detect them, decide and recover by itself."""

from __future__ import annotations

import time
from contextlib import redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Final

from rich.console import Console

from monitoring.monitoring_job import MonitoringJob
from monitoring.windows.records import RetrainDecision, Retraining, WindowReport
from shortlist.contracts import Files, ShortlistError
from shortlist.deployment.local_deployer import LocalDeployer
from shortlist.drill.drill_page import Drill, drill_table, write_drill
from shortlist.drill.drill_report import EXPECTED_ACTIONS, DrillDay, summarize_drill
from shortlist.drill.users import SLATES_PER_DAY, DrillUsers
from shortlist.drill.world import DrillWorld
from shortlist.loop.policy_rewards import LoopEvent, PolicyRewards
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.states.phases import Phase
from shortlist.runs.local_training import run_locally
from shortlist.runs.monitoring_runs import collect_locally, run_monitoring_locally
from shortlist.runs.refresh_runs import run_refresh_locally
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.data import GeneratedSource
from shortlist.spec.spec import Spec
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.artefacts import read_json
from shortlist.tracking.run_context import RunContext

TRAIN_DAYS = 10
"""Days that the first model is trained on; the next day is the first live one."""
_REFRESH_LOG: Final = "refreshes.log"
"""File with what refreshes print."""


def run_drill(spec: Spec, runs: Path, slates_per_day: int = SLATES_PER_DAY) -> Drill:
    """Run a spec's generated world day by day, unattended; write `drill.json` and `drill.html` into `<runs>/latest`.

    Args:
        spec: A spec with a generated log and drifts.
        runs: Folder for runs, models and stores; it must be new, so that no existing files are touched.
        slates_per_day: Expected slates of a day.

    Raises:
        ShortlistError: The folder is in use, the world has no drift, or training, refreshing or serving fail.
    """
    if (runs / "stores").exists():
        raise ShortlistError(f"{runs}: a drill needs a new folder; delete this one, or choose another with RUNS=")
    start = time.monotonic()
    source = spec.data.source
    if isinstance(source, GeneratedSource) and source.days <= TRAIN_DAYS:
        raise ShortlistError(
            f"spec '{spec.name}': data.source.days: got {source.days}; wanted more than {TRAIN_DAYS}, on which the"
            " first model is trained"
        )
    loop = _DrillLoop(spec, runs, slates_per_day)
    try:
        loop.begin()
        while TRAIN_DAYS + len(loop.days) < loop.world.source.days:
            loop.run_day()
    finally:
        stop_stack(loop.deployer.paths)
    summary = summarize_drill(loop.world, loop.days, time.monotonic() - start, loop.rewards())
    run = loop.state.new_run(f"{spec.name}-result")
    write_drill(summary, run)
    loop.state.point_latest_at(run)
    loop.console.print(drill_table(summary))
    loop.console.print(f"\nPage: {runs / 'latest' / 'drill.html'}\nStatus: {loop.monitoring_job.page}", soft_wrap=True)
    return summary


class _DrillLoop:
    """The loop of a drill: the spec is trained, served, replayed and monitored."""

    def __init__(self, spec: Spec, runs: Path, slates_per_day: int) -> None:
        self.console = Console(highlight=False)
        self.world = DrillWorld(spec)
        self.state = RunsFolder.open(runs)
        self.days: list[DrillDay] = []
        self._promotions: list[LoopEvent] = []
        self._context = RunContext(name=spec.name, stores=str(self.state.stores))
        self.deployer = LocalDeployer(self._context, spec.serving, spec.gates, spec.runtime, spec.data.labels)
        self.users = DrillUsers(self.deployer, self._context, self.world, spec, TRAIN_DAYS, slates_per_day)
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
        self.console.print(f"\nServing at {stack.url}. From now on users ask there, and every day is monitored.\n")

    def run_day(self) -> None:
        """Let users live through the next day, monitor it, act on the decision, and refresh for the day after.

        While a version is rolled out, the following days are played too, and monitored together.

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
        if day.new_version is not None:
            begin = self.world.date_of(self.users.next_day)
            self._promotions.append(LoopEvent(day=begin, kind="promoted", version=day.new_version))
        self.days.append(day)
        if self.users.next_day < self.world.source.days:
            self._refresh()

    def _refresh(self) -> None:
        """Publish the statistics of the days so far, and candidates with the items of the next one."""
        self._wait_for_outcomes()
        with (self._runs / _REFRESH_LOG).open("a", encoding="utf-8") as log, redirect_stdout(log):
            code = run_refresh_locally(self._spec, None, self._runs)
        if code:
            raise ShortlistError(f"{self._runs / _REFRESH_LOG}: a refresh failed; its message is at the end")

    def rewards(self) -> PolicyRewards:
        """Return what all policies earned, with the faults and promotions."""
        drifts = [LoopEvent(day=self.world.date_of(drift.from_day), kind=drift.kind) for drift in self.world.drifts]
        return PolicyRewards(days=tuple(self.users.rewards), events=(*drifts, *self._promotions))

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
        retraining = self._retraining_of(decision)
        is_promoted = retraining.state == "promoted"
        new_version = retraining.version if is_promoted else None
        return DrillDay(number, report, decision, True, is_promoted, new_version=new_version)

    def _monitor_by_graph(self, number: int) -> DrillDay:
        """Run the monitoring graph once."""
        self._wait_for_outcomes()
        store = self.monitoring_job.monitoring_store
        retrainings_before = {retraining.key for retraining in store.retrainings()}
        run_monitoring_locally(self._spec, None, self._runs)
        decision = self.monitoring_job.newest_decision()
        assert decision is not None
        report = next(report for report in store.reports() if report.start == decision.window)
        self._print_day(number, decision, report)
        if decision.key not in {retraining.key for retraining in store.retrainings()} - retrainings_before:
            return DrillDay(number, report, decision)
        retraining = self._retraining_of(decision)
        summary = self._runs / "latest" / Files.SUMMARY
        collected = read_json(summary)["rows"]["collected"] if summary.exists() else None
        version = retraining.version if retraining.state == "promoted" else None
        return DrillDay(number, report, decision, True, retraining.state == "promoted", collected, version)

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
