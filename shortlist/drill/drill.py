"""The drill: a generated world is broken on purpose; the loop must notice, decide and recover by itself."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from monitoring.monitoring_job import MonitoringJob, MonitoringRun
from monitoring.pages.drill_page import Drill, drill_table, write_drill
from monitoring.records import RetrainDecision, WindowReport
from shortlist.contracts import ShortlistError
from shortlist.deployment.deployment import Deployer
from shortlist.drill.drill_report import Day, told
from shortlist.drill.world import DrillWorld
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.runs.runs_folder import RunsFolder
from shortlist.runs.submit import run_locally
from shortlist.spec.spec import Spec
from shortlist.training.training import RunContext

TRAIN_DAYS = 10
"""Days that the first model learns from; the next one is the first that is live."""


def drill(spec: Spec, runs: Path, quiet_days: int | None = None) -> Drill:
    """Live through a spec's world, day by day, unattended; write `drill.json` and `drill.html` into `<runs>/latest`.

    Args:
        spec: Declares a generated log with drifts.
        runs: Folder for runs, models and stores; a new one, so that nothing that was there before is touched.
        quiet_days: Days before the first drift that are played; all of them by default.

    Raises:
        ShortlistError: The folder was used before, the world has no drift, or training, serving or replay fail.
    """
    if (runs / "stores").exists():
        raise ShortlistError(f"{runs}: a drill starts from nothing; delete this folder, or choose another with RUNS=")
    began = time.monotonic()
    loop = _Loop(spec, runs)
    try:
        loop.begin()
        for number in loop.live_days(quiet_days):
            loop.live(number)
    finally:
        stop_stack(loop.deployer.places)
    done = told(loop.world, loop.days, time.monotonic() - began)
    run = loop.state.new_run(f"{spec.name}-result")
    write_drill(done, run)
    loop.state.point_latest_at(run)
    loop.console.print(drill_table(done))
    loop.console.print(f"\nPage: {runs / 'latest' / 'drill.html'}\nStatus: {loop.watch.page}", soft_wrap=True)
    return done


class _Loop:
    """A spec that is trained, served, replayed and watched."""

    def __init__(self, spec: Spec, runs: Path) -> None:
        self.console = Console(highlight=False)
        self.world = DrillWorld(spec, runs / "world")
        self.state = RunsFolder.open(runs)
        self.days: list[Day] = []
        origin = RunContext(name=spec.name, stores=str(self.state.stores))
        self.deployer = Deployer(origin, spec.serving, spec.gates, spec.runtime)
        sections = spec.monitoring, spec.gates.slices, spec.serving.log.sampling
        self.watch = MonitoringJob(spec.name, str(self.state.stores), *sections)
        self._spec = spec
        self._runs = runs

    def begin(self) -> None:
        """Train on the first days, and serve."""
        until = self.world.begin(TRAIN_DAYS)
        self.console.print(f"A world of {self.world.source.days} days. Training on those before {until:%Y-%m-%d}.\n")
        if run_locally(self._spec, None, self._runs, until=until):
            raise ShortlistError(
                f"{self._runs / 'latest'}: the first model could not be trained; see pipeline.log there"
            )
        stack, _ = self.deployer.serve()
        self.console.print(f"\nServing at {stack.url}. From now on every day is replayed, and looked at.\n")

    def live_days(self, quiet_days: int | None) -> range:
        """Return the numbers of the days to live through."""
        first = TRAIN_DAYS if quiet_days is None else self.world.drifts[0].from_day - quiet_days
        return range(max(first, TRAIN_DAYS), self.world.source.days)

    def live(self, number: int) -> None:
        """Let users ask for a day, look at it, and do what the look decides."""
        asked = self.deployer.play(self.world.log_of(number))
        monitoring_run = self.watch.check()
        (report,) = monitoring_run.reports
        assert monitoring_run.decision is not None
        self._say(number, monitoring_run, report, asked)
        trained = self.watch.begin(monitoring_run, str(self._runs / "latest"))
        promoted = trained and self._retrain(monitoring_run.decision)
        self.days.append(Day(number, report, monitoring_run.decision, trained, promoted))

    def _retrain(self, decision: RetrainDecision) -> bool:
        """Train as decided; return whether a new champion came of it."""
        run_locally(self._spec, None, self._runs, decision=decision)
        self.console.print()
        ended = next(one for one in self.watch.book.retrainings() if one.key == decision.key)
        return ended.state == "promoted"

    def _say(self, number: int, monitoring_run: MonitoringRun, report: WindowReport, asked: dict[str, object]) -> None:
        drift = self.world.drift_on(number)
        assert monitoring_run.decision is not None
        words = [f"{report.start:%Y-%m-%d}", f"{report.verdict:<9}", f"{monitoring_run.decision.action:<7}"]
        named = ", ".join(report.columns[:6]) or "-"
        planted = f"  (planted: {drift.kind})" if drift else ""
        self.console.print(f"{'  '.join(words)} {report.requests:>5} requests  {named}{planted}", soft_wrap=True)
