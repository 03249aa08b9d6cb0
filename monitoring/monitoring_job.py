"""One monitoring run of a spec: new windows are evaluated, a decision is made, alerts are sent, pages are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from monitoring.alerts.alerts import send_alerts
from monitoring.alerts.webhook import token_of
from monitoring.checks import check_window
from monitoring.drift.drift import find_drift
from monitoring.exposition import write_metrics
from monitoring.live_quality import measure_quality, warnings
from monitoring.pages.evidently_pages import write_pages
from monitoring.pages.status_page import PAGE, write_page
from monitoring.pages.status_page_data import StatusPageData
from monitoring.reference.distributions import compared_columns
from monitoring.retraining.retrain_policy import decide
from monitoring.served_features.comparison import ServedModelFiles
from monitoring.served_features.record import ServedFeatures
from monitoring.served_features.served_features import PublishedViews, compare_served
from monitoring.store.monitoring_store import open_monitoring_store
from monitoring.versions import Versions, WatchedVersion
from monitoring.windows.known_columns import log_columns
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import Finding, RetrainDecision, WindowReport
from monitoring.windows.slates import slate_traffic
from monitoring.windows.spans import Span
from monitoring.windows.windows import Windows
from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast_store_location import spec_feast_store_location
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.log.log_keys import log_key
from shortlist.serving.log.log_mirror import mirror
from shortlist.serving.paths import ServingPaths
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.objects import local_copy, open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.progress import progress
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import tracking_location


def address_of(stores: StorageConfig, name: str, page: str) -> str:
    """Return the address of a spec's page among the objects; empty where it is found on this disk."""
    return "" if stores.folder is not None else open_object_store(stores).url(f"monitoring/{name}/{page}")


def publish(stores: StorageConfig, name: str, folder: Path) -> None:
    """Put a spec's pages among the objects where no disk is shared; what cannot be put is only said.

    Args:
        stores: Where everything is.
        name: Of the spec.
        folder: Of its pages on this machine: those of this monitoring run; the next one may be on another.
    """
    if stores.folder is not None:
        return
    try:
        objects = open_object_store(stores)
        for page in sorted(folder.rglob("*.html")):
            objects.put_file(page, f"monitoring/{name}/{page.relative_to(folder).as_posix()}")
    except ShortlistError as problem:  # the decision stands; a page less is no reason to fail
        note(f"Pages stay on this machine: {problem}")


METRICS: Final = "metrics.prom"
PAGES: Final = "windows"
"""Folder of Evidently's pages, one per window."""


@dataclass(frozen=True)
class MonitoringRun:
    """What one monitoring run found."""

    reports: tuple[WindowReport, ...]
    """Of the windows that are new."""
    decision: RetrainDecision | None
    """About the newest window of all; None while there has been none."""
    claimed: bool
    """Whether this monitoring run, and no other, acts on the decision."""
    waiting: str
    """What is not ready yet; may be empty."""
    problems: tuple[str, ...]
    """Alerts that could not be delivered, and why."""
    page: str
    """Where the status page is."""
    served: ServedFeatures | None = None
    """What scored, compared with the feature table."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the console."""
        said = [_sentence(report) for report in self.reports] or ["No window is new."]
        if self.served is not None:
            said += self.served.lines
        if self.waiting:
            said.append(self.waiting)
        if self.decision is not None:
            said += [f"{self.decision.action}: {self.decision.reasons[0]}", *self.decision.reasons[1:]]
        return (*said, *self.problems, f"Status page: {self.page}")


class MonitoringJob:
    """Evaluates the live traffic of one spec.

    Args:
        name: Of the spec.
        stores: Where MLflow and Feast keep theirs, as the graph's parameters say it.
        monitoring: The spec's section.
        slices: Columns by whose values quality is shown.
        sampling: Share of the answers that the prediction log takes.

    Raises:
        ShortlistError: The declared token for alerts is not in the environment.
    """

    def __init__(
        self, name: str, stores: str, monitoring: Monitoring, slices: Sequence[str], sampling: float = 1.0
    ) -> None:
        self.name = name
        self.monitoring_store = open_monitoring_store(stores, name)
        self.folder = self.monitoring_store.folder
        self.page = self.folder / PAGE
        token_of(monitoring.alerts.token_env)  # said now, and not when the first alert is due
        self._settings = monitoring
        self._slices = tuple(slices)
        self._sampling = sampling
        self._stores = StorageConfig.parse(stores)
        self.address = address_of(self._stores, name, PAGE)

    @cached_property
    def _tracker(self) -> Tracker:
        place = tracking_location(self._stores, self.name)
        return Tracker(place.uri, self.name, place.files)

    def check(self, now: datetime | None = None) -> MonitoringRun:
        """Evaluate the windows that are new, decide, send alerts, draw pages.

        Args:
            now: The present moment; the clock's by default.

        Raises:
            ShortlistError: Nothing is served or logged yet, or a store cannot be read; what was judged before stays.
        """
        now = now or datetime.now(UTC)
        with TemporaryDirectory(prefix="shortlist-") as scratch:
            versions = Versions(self._tracker.registry, Path(scratch))
            windows = self._windows(versions, now)
            found = windows.find()
            new = self._judge(windows, found.mature, versions, now)
            self._compare_served(windows, found.mature, versions, now)
            decision = self._decide(now)
            delivery = send_alerts(
                self.monitoring_store, decision, self._settings.alerts, now, self.address or self.page.as_uri()
            )
            claimed = decision is not None and self.monitoring_store.claim(decision)
            self.monitoring_store.record_run_time()
            write_metrics(self.monitoring_store, self.folder / METRICS)
            write_page(self._loop(now, found.waiting), self.page)
            publish(self._stores, self.name, self.folder)
        return MonitoringRun(
            tuple(new), decision, claimed, found.waiting, delivery.problems, self.address or str(self.page),
            self.served_features,
        )  # fmt: skip

    def begin(self, monitoring_run: MonitoringRun, run: str) -> bool:
        """Record that the training of a monitoring run begins now; return whether the caller is the one to run it.

        Args:
            monitoring_run: Of this job.
            run: Folder or name of the run.
        """
        if not monitoring_run.claimed or monitoring_run.decision is None or monitoring_run.decision.action != "retrain":
            return False
        return self.monitoring_store.start(monitoring_run.decision, run)

    @property
    def served_features(self) -> ServedFeatures | None:
        """The newest comparison of what scored with the feature table; None when none was made."""
        return self.monitoring_store.served_features()

    def newest_decision(self) -> RetrainDecision | None:
        """Return what was decided last; None when there was no window yet."""
        return next(reversed(self.monitoring_store.decisions()), None)

    def _windows(self, versions: Versions, now: datetime) -> Windows:
        declared = versions[self._champion()].preprocessing.plan.declared.data
        reports = self.monitoring_store.reports()
        paths = live_logs(self._stores, self.name, reports[-1] if reports else None)
        log = local_copy(
            spec_feast_store_location(self._stores, self.name).expected()["log"]
        )  # its side tables belong to what serves
        return Windows(paths, declared, log, self._settings, now, self._sampling)

    def _champion(self) -> int:
        champion = self._tracker.registry.version_of("champion")
        if champion is None:
            raise ShortlistError(f"spec '{self.name}' has no model that serves yet; make run SPEC={self.name} first")
        return champion

    def _judge(
        self, windows: Windows, mature: Sequence[Span], versions: Versions, now: datetime
    ) -> list[WindowReport]:  # fmt: skip
        champion, known = self._champion(), {report.start for report in self.monitoring_store.reports()}
        spans = [span for span in mature if span.start not in known]
        new = []
        with progress("windows", total=len(spans), unit="windows") as advance:
            for span in spans:
                window = windows.read(span)
                report = self._report(window, windows.slates(span), versions, now, champion)
                self.monitoring_store.add_report(report)
                new.append(report)
                advance(1, f"{report.start:%Y-%m-%d %H:%M} {report.verdict}")
        return new

    def _compare_served(self, windows: Windows, mature: Sequence[Span], versions: Versions, now: datetime) -> None:
        """Compare the feature values that scored with those of the published views, and keep what was found."""
        announced = spec_feast_store_location(self._stores, self.name).expected()
        views = PublishedViews(local_copy(announced["views"]), datetime.fromisoformat(announced["until"]))
        counted = [span for span in reversed(mature) if span.start <= views.until]

        def files(number: int) -> ServedModelFiles:
            folder = versions[number].folder
            return ServedModelFiles(folder / Files.PREPROCESSING, Signature.read(folder / FOLDER), folder / FOLDER)

        sampled = (windows.sampled(span) for span in counted)
        limits = self._settings.served_features
        self.monitoring_store.set_served_features(compare_served(self.name, sampled, files, views, limits, now))

    def _report(
        self, window: LiveWindow, slates: pl.DataFrame, versions: Versions, now: datetime, champion: int
    ) -> WindowReport:
        rows = {int(version): int(count) for version, count in window.rows["version"].value_counts().iter_rows()}
        main = max(rows, key=lambda version: rows[version], default=None)
        served = versions[champion if main is None else main]
        sent = log_columns(served.preprocessing.plan.declared.data)
        problems, ratio = check_window(window, served.reference, self.monitoring_store.reports(), self._settings, sent)
        qualities = {number: quality for number in rows if (quality := versions[number].quality) is not None}
        limits, least = self._settings.quality, self._settings.window.min_rows
        report = WindowReport(
            spec=self.name, start=window.start, end=window.end, made=now, champion=main, versions=rows,
            requests=window.requests, rows=window.rows.height, coverage=window.coverage, late=window.late,
            duplicates=window.duplicates, orphans=window.orphans, volume_ratio=ratio, problems=problems,
            quality=measure_quality(window, qualities, self._slices, limits, least),
            slates=slate_traffic(slates, window.rows, main), warnings=warnings(window, qualities, limits),
            # Of broken data nothing else can be said: every column that hangs on them would be named.
            findings=() if problems or window.rows.height < least else self._findings(window, served),
        )  # fmt: skip
        self._draw(window, report, served)
        return report

    def _findings(self, window: LiveWindow, served: WatchedVersion) -> tuple[Finding, ...]:
        rows = window.rows.filter(window.rows["version"] == served.version)
        scores = served.quality.scores if served.quality else None
        return find_drift(rows, served.reference, scores, served.preprocessing, self._settings.drift)

    def _draw(self, window: LiveWindow, report: WindowReport, served: WatchedVersion) -> None:
        """Have Evidently draw a window; the pages lie beside the status page, and in MLflow with the version's run."""
        wanted = self._settings.pages == "all" or (self._settings.pages == "bad" and report.verdict != "healthy")
        if not wanted or not window.rows.height:
            return
        compared = compared_columns(served.preprocessing.plan, self._settings.drift)
        out = self.folder / PAGES / _stamp(window.start)
        try:
            write_pages(window, served.reference, served.model, compared, out, findings=report.findings)
            self._tracker.log_files(served.run_id, out, f"monitoring/{out.name}")
        except ShortlistError as problem:  # the numbers are there; a picture less is no reason to judge nothing
            note(f"No pages for the window of {window.start:%Y-%m-%d %H:%M}: {problem}")

    def _decide(self, now: datetime) -> RetrainDecision | None:
        self.monitoring_store.recover()
        reports = self.monitoring_store.reports()
        if not reports:
            return None
        served = self.monitoring_store.served_features()
        held = served.blocker if served else ""
        return decide(self.name, reports, self.monitoring_store.retrainings(), self._settings.retrain, now, held)

    def _loop(self, now: datetime, waiting: str) -> StatusPageData:
        registry = self._tracker.registry
        champion = registry.version_of("champion")
        rollouts = open_rollouts(str(self._stores), self.name)
        pages = {page.parent.name: page.parent for page in sorted((self.folder / PAGES).glob("*/*.html"))}
        reports = self.monitoring_store.reports()
        return StatusPageData(
            spec=self.name,
            made=now,
            champion=champion,
            champion_since=None,
            reports=reports,
            decisions=self.monitoring_store.decisions(),
            retrainings=self.monitoring_store.retrainings(),
            rollouts=[rollouts.read(each) for each in rollouts.ids()],
            links={
                report.start: [f"{PAGES}/{_stamp(report.start)}/{page.name}" for page in sorted(folder.glob("*.html"))]
                for report in reports
                if (folder := pages.get(_stamp(report.start))) is not None
            },
            waiting=waiting,
            policy=self._settings.retrain,
            counted_until=self._counted_until(),
            served_features=self.monitoring_store.served_features(),
        )

    def _counted_until(self) -> datetime | None:
        announced = spec_feast_store_location(self._stores, self.name).announced() or {}
        counted = announced.get("counted_until", announced.get("until"))
        return None if counted is None else datetime.fromisoformat(counted)


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _sentence(report: WindowReport) -> str:
    named = f": {', '.join(report.columns)}" if report.columns else ""
    return (
        f"{report.start:%Y-%m-%d %H:%M} {report.verdict}{named} ({report.requests:,} requests, {report.rows:,} rows,"
        f" {report.coverage:.0%} with outcomes)"
    )


_LATE: Final = timedelta(days=7)
"""What a server wrote is shipped within this time after it; what comes later finds its window judged."""


def live_logs(stores: StorageConfig, name: str, newest: WindowReport | None = None) -> ServingPaths:
    """Return where a spec's logs can be read, after fetching what is new.

    Args:
        stores: Where everything is.
        name: Of the spec.
        newest: Of the windows that were judged; what was written long before it is not fetched.

    Raises:
        ShortlistError: The object store is unavailable or refuses.
    """
    paths = ServingPaths.of(stores.runs, name)
    if not stores.has_remote_log:
        return paths
    objects, mirrored = open_object_store(stores), paths.mirror
    since = _first_day(newest)
    mirror(objects, log_key(name, "predictions"), mirrored.predictions, since)
    mirror(objects, log_key(name, "outcomes"), mirrored.outcomes, since)
    return mirrored


def _first_day(newest: WindowReport | None) -> date | None:
    # A request is about a moment before it was written: nothing of a later window was written before this one began.
    return None if newest is None else (newest.start - _LATE).date()
