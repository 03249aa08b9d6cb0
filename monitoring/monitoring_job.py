"""One monitoring run of a spec: it evaluates new windows, decides, sends alerts and draws pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from monitoring.alerts.alerts import Delivery, send_alerts
from monitoring.alerts.destinations import open_destinations
from monitoring.checks import check_window, clock_warnings
from monitoring.drift.drift import find_drift
from monitoring.exposition import write_metrics
from monitoring.live_quality import early_warnings, measure_quality
from monitoring.pages.evidently_pages import write_pages
from monitoring.pages.status_page import PAGE, write_page
from monitoring.pages.status_page_data import StatusPageData
from monitoring.reference.distributions import compared_columns
from monitoring.reference.reference import ModelReference, Reference
from monitoring.retraining.retrain_policy import decide_retraining, same_log_reason
from monitoring.served_features.comparison import ServedModelFiles
from monitoring.served_features.record import ServedFeaturesReport
from monitoring.served_features.served_features import PublishedViews, compare_served_features
from monitoring.store.monitoring_store import open_monitoring_store
from monitoring.versions import WatchedVersion, WatchedVersions
from monitoring.windows.known_columns import log_columns
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import Finding, RetrainDecision, WindowReport
from monitoring.windows.slates import measure_slate_traffic, versions_of_slates
from monitoring.windows.spans import Span
from monitoring.windows.windows import Windows
from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.rollout.rollouts import open_rollouts
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.serving.log.stored_logs import maintain_stored_logs, serving_log_paths
from shortlist.serving.paths import ServingPaths
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.ordering import Ordering
from shortlist.spec.serving import Serving
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.objects import local_copy, open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.progress import progress
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import tracking_location


def page_address(stores: StorageConfig, name: str, page: str) -> str:
    """Return the address of a spec's page in the object store; empty where pages are on this disk."""
    return "" if stores.folder is not None else open_object_store(stores).url(f"monitoring/{name}/{page}")


def report_ended_training(name: str, stores: str, monitoring: Monitoring) -> None:
    """Send the alert that the end of the newest training fires or resolves, and write the status page again.

    What cannot be written or is not accepted is only reported.

    Args:
        name: Name of the spec.
        stores: The stores, as the graph's parameter.
        monitoring: The spec's section, with the destinations.
    """
    try:
        job, now = MonitoringJob(name, stores, monitoring, ()), datetime.now(UTC)
        problems = job.send_alerts(None, now).problems
        job.write_status_page(now)
    except ShortlistError as error:  # the training has ended, whoever hears of it
        problems = (str(error),)
    for problem in problems:
        note(f"Alerts: {problem}; the next monitoring run sends what was not accepted.")


def publish_pages(stores: StorageConfig, name: str, folder: Path) -> None:
    """Upload a spec's pages to the object store where no disk is shared; a failed upload is only reported.

    Args:
        stores: Locations of the stores.
        name: Name of the spec.
        folder: Folder of this monitoring run's pages on this machine; the next run may be on another one.
    """
    if stores.folder is not None:
        return
    try:
        objects = open_object_store(stores)
        for page in sorted(folder.rglob("*.html")):
            objects.put_file(page, f"monitoring/{name}/{page.relative_to(folder).as_posix()}")
    except ShortlistError as problem:  # the decision is recorded already; a missing page must not fail the run
        note(f"Pages stay on this machine: {problem}")


METRICS: Final = "metrics.prom"
PAGES: Final = "windows"
"""Folder of Evidently's pages, one per window."""


@dataclass(frozen=True)
class MonitoringRun:
    """The result of one monitoring run."""

    reports: tuple[WindowReport, ...]
    """Reports of the new windows."""
    decision: RetrainDecision | None
    """Decision about the newest window; None while there is no window."""
    claimed: bool
    """Whether this monitoring run, and no other, acts on the decision."""
    waiting: str
    """One line about windows that are not ready yet; may be empty."""
    problems: tuple[str, ...]
    """Alerts that could not be delivered, with the reasons."""
    page: str
    """Address or path of the status page."""
    served: ServedFeaturesReport | None = None
    """Comparison of served feature values with the feature table; None while there is none."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Sentences for the console."""
        sentences = [_report_sentence(report) for report in self.reports] or ["No window is new."]
        if self.served is not None:
            sentences += self.served.lines
        if self.waiting:
            sentences.append(self.waiting)
        if self.decision is not None:
            sentences += [f"{self.decision.action}: {self.decision.reasons[0]}", *self.decision.reasons[1:]]
        return (*sentences, *self.problems, f"Status page: {self.page}")


class MonitoringJob:
    """Evaluates the live traffic of one spec.

    Args:
        name: Name of the spec.
        stores: The stores of MLflow and Feast, as the graph's `stores` parameter.
        monitoring: The spec's `monitoring` section.
        slices: Columns by whose values quality is shown.
        serving: The spec's `serving` section.
        ordering: The spec's `ordering` section, with the declared limit of the cost of exploration.

    Raises:
        ShortlistError: The declared token for alerts is not in the environment.
    """

    def __init__(
        self, name: str, stores: str, monitoring: Monitoring, slices: Sequence[str], serving: Serving | None = None,
        ordering: Ordering | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.monitoring_store = open_monitoring_store(stores, name)
        self.folder = self.monitoring_store.folder
        self.page = self.folder / PAGE
        self._destinations = open_destinations(monitoring.alerts)  # a missing secret fails here, not at the first alert
        self._settings = monitoring
        self._slices = tuple(slices)
        self._serving = serving or Serving()
        self._max_cost: float | None = ordering.explore.max_cost if ordering and ordering.explore else None
        self._stores = StorageConfig.parse(stores)
        self.address = page_address(self._stores, name, PAGE)

    @cached_property
    def _log_paths(self) -> ServingPaths:
        return serving_log_paths(self._stores, self.name)

    @cached_property
    def _tracker(self) -> Tracker:
        location = tracking_location(self._stores, self.name)
        return Tracker(location.uri, self.name, location.files)

    def check(self, now: datetime | None = None, digest: str = "") -> MonitoringRun:
        """Evaluate the new windows, decide, send alerts and draw pages.

        Args:
            now: The present moment; the clock's by default.
            digest: Digest of the log that a training reads; empty where it is unknown, or live rows are added.

        Raises:
            ShortlistError: Nothing is served or logged yet, or a store cannot be read; earlier reports stay.
        """
        now = now or datetime.now(UTC)
        with TemporaryDirectory(prefix="shortlist-") as scratch:
            versions = WatchedVersions(self._tracker.registry, Path(scratch))
            windows = self._windows(versions, now)
            available = windows.find()
            new_reports = self._judge(windows, available.mature, versions, now)
            self._compare_served(windows, available.mature, versions, now)
            decision = self._decide(now, digest)
            delivery = self.send_alerts(decision, now)
            claimed = decision is not None and self.monitoring_store.claim(decision)
            self.monitoring_store.record_run_time()
            write_metrics(self.monitoring_store, self.folder / METRICS)
            self.write_status_page(now, available.waiting)
            maintain_stored_logs(self._log_paths, parse_duration(self._serving.log.retention))
        return MonitoringRun(
            tuple(new_reports), decision, claimed, available.waiting, delivery.problems, self.address or str(self.page),
            self.served_features,
        )  # fmt: skip

    def send_alerts(self, decision: RetrainDecision | None, now: datetime) -> Delivery:
        """Send what a decision and the newest ended training fire or resolve, and what was not accepted before.

        Args:
            decision: The new decision; None when there is none.
            now: The present moment.
        """
        link = self.address or self.page.as_uri()
        return send_alerts(self.monitoring_store, decision, self._destinations, now, link)

    def begin_training(self, monitoring_run: MonitoringRun, run: str) -> bool:
        """Record the start of the training that a monitoring run decided; return whether the caller has to train.

        Args:
            monitoring_run: A run of this job.
            run: Folder or name of the run.
        """
        if not monitoring_run.claimed or monitoring_run.decision is None or monitoring_run.decision.action != "retrain":
            return False
        is_started = self.monitoring_store.start(monitoring_run.decision, run)
        if is_started:
            self.write_status_page(datetime.now(UTC), monitoring_run.waiting)  # it has said that a training will begin
        return is_started

    def write_status_page(self, now: datetime, waiting: str = "") -> None:
        """Write the status page, and publish it where pages are not on this disk.

        Args:
            now: The present moment.
            waiting: One line about windows that are not ready yet.
        """
        write_page(self._status_page_data(now, waiting), self.page)
        publish_pages(self._stores, self.name, self.folder)

    @property
    def served_features(self) -> ServedFeaturesReport | None:
        """The newest comparison of served feature values with the feature table; None when there is none."""
        return self.monitoring_store.served_features()

    def newest_decision(self) -> RetrainDecision | None:
        """Return the newest decision; None when there is none."""
        return next(reversed(self.monitoring_store.decisions()), None)

    def _windows(self, versions: WatchedVersions, now: datetime) -> Windows:
        declared = versions[self._champion()].preprocessing.plan.declared.data
        log = local_copy(
            spec_feast_store_location(self._stores, self.name).require_announcement()["log"]
        )  # the log whose side tables the champion was trained on
        return Windows(self._log_paths, declared, log, self._settings, now, self._serving)

    def _champion(self) -> int:
        champion = self._tracker.registry.version_of("champion")
        if champion is None:
            raise ShortlistError(f"spec '{self.name}' has no model that serves yet; make run SPEC={self.name} first")
        return champion

    def _judge(
        self, windows: Windows, mature: Sequence[Span], versions: WatchedVersions, now: datetime
    ) -> list[WindowReport]:  # fmt: skip
        champion, reported_starts = self._champion(), {report.start for report in self.monitoring_store.reports()}
        spans = [span for span in mature if span.start not in reported_starts]
        new_reports = []
        with progress("windows", total=len(spans), unit="windows") as advance:
            for span in spans:
                window = windows.read(span)
                report = self._report(window, windows.slate_requests(span), versions, now, champion)
                self.monitoring_store.add_report(report)
                new_reports.append(report)
                advance(1, f"{report.start:%Y-%m-%d %H:%M} {report.verdict}")
        return new_reports

    def _compare_served(
        self, windows: Windows, mature: Sequence[Span], versions: WatchedVersions, now: datetime
    ) -> None:
        """Compare served feature values with those of the published views, and store the comparison."""
        announcement = spec_feast_store_location(self._stores, self.name).require_announcement()
        views = PublishedViews(local_copy(announcement["views"]), datetime.fromisoformat(announcement["until"]))
        counted_spans = [span for span in reversed(mature) if span.start <= views.until]

        def files(number: int) -> ServedModelFiles:
            folder = versions[number].folder
            return ServedModelFiles(folder / Files.PREPROCESSING, Signature.read(folder / FOLDER), folder / FOLDER)

        sampled_windows = (windows.sampled_requests(span) for span in counted_spans)
        limits = self._settings.served_features
        self.monitoring_store.set_served_features(
            compare_served_features(self.name, sampled_windows, files, views, limits, now)
        )

    def _report(
        self, window: LiveWindow, slates: pl.DataFrame, versions: WatchedVersions, now: datetime, champion: int
    ) -> WindowReport:
        rows_by_version = {
            int(version): int(count) for version, count in window.rows["version"].value_counts().iter_rows()
        }
        main_version = max(rows_by_version, key=lambda version: rows_by_version[version], default=None)
        watched = versions[champion if main_version is None else main_version]
        sent_columns = log_columns(watched.preprocessing.plan.declared.data)
        of_slates, reports = versions_of_slates(slates), self.monitoring_store.reports()
        reference = watched.expected(of_slates=watched.version in of_slates)
        if watched.version != champion:  # it was replaced, or it is a canary: what the champion reads matters
            reference = reference.of_columns(versions[champion].columns_read)
        problems, ratio = check_window(window, reference, reports, self._settings, sent_columns)
        references = {
            number: quality
            for number in rows_by_version
            if (quality := versions[number].expected_quality(reports, of_slates=number in of_slates)) is not None
        }
        limits, min_rows = self._settings.quality, self._settings.window.min_rows
        report = WindowReport(
            spec=self.name, start=window.start, end=window.end, made=now, champion=main_version,
            versions=rows_by_version, requests=window.requests, rows=window.rows.height, min_rows=min_rows,
            coverage=window.coverage, late=window.late, duplicates=window.duplicates, orphans=window.orphans,
            future=window.future, volume_ratio=ratio, problems=problems,
            quality=measure_quality(window, references, self._slices, limits, min_rows),
            learnt_by=tuple(number for number in sorted(rows_by_version) if versions[number].has_learnt(window.start)),
            slates=measure_slate_traffic(slates, window.rows, main_version, self._max_cost, limits.confidence),
            warnings=clock_warnings(window, self._settings.checks) + early_warnings(window, references, limits),
            # Broken data are not compared: every dependent column would be reported as drift.
            findings=()
            if problems or window.rows.height < min_rows
            else self._findings(window, watched, reference, references),
        )  # fmt: skip
        self._draw(window, report, watched, reference)
        return report

    def _findings(
        self, window: LiveWindow, watched: WatchedVersion, reference: Reference,
        qualities: Mapping[int, ModelReference],
    ) -> tuple[Finding, ...]:  # fmt: skip
        rows = window.rows.filter(window.rows["version"] == watched.version)
        scores = qualities[watched.version].scores if watched.version in qualities else None
        return find_drift(rows, reference, scores, watched.preprocessing, self._settings.drift)

    def _draw(self, window: LiveWindow, report: WindowReport, watched: WatchedVersion, reference: Reference) -> None:
        """Draw Evidently's pages of a window, beside the status page and in MLflow with the version's run."""
        is_drawn = self._settings.pages == "all" or (self._settings.pages == "bad" and report.verdict != "healthy")
        if not is_drawn or not window.rows.height:
            return
        compared = compared_columns(watched.preprocessing.plan, self._settings.drift)
        out = self.folder / PAGES / _timestamp(window.start)
        try:
            write_pages(window, reference, watched.model, compared, out, findings=report.findings)
            self._tracker.log_files(watched.run_id, out, f"monitoring/{out.name}")
        except ShortlistError as problem:  # the report has the numbers; a missing page must not fail the window
            note(f"No pages for the window of {window.start:%Y-%m-%d %H:%M}: {problem}")

    def _decide(self, now: datetime, digest: str) -> RetrainDecision | None:
        self.monitoring_store.recover()
        reports = self.monitoring_store.reports()
        if not reports:
            return None
        comparison = self.monitoring_store.served_features()
        served_features_blocker = comparison.blocker if comparison else ""
        decision = decide_retraining(
            self.name,
            reports,
            self.monitoring_store.retrainings(),
            self._settings.retrain,
            now,
            served_features_blocker,
        )
        if decision.action != "retrain" or not digest:
            return decision
        champion = self._champion()
        reason = same_log_reason(decision.until, champion, self._tracker.registry.tags_of(champion), digest)
        return decision.model_copy(update={"reasons": (*decision.reasons, reason)}) if reason else decision

    def _status_page_data(self, now: datetime, waiting: str) -> StatusPageData:
        registry = self._tracker.registry
        champion = registry.version_of("champion")
        rollouts = open_rollouts(str(self._stores), self.name)
        pages = {page.parent.name: page.parent for page in sorted((self.folder / PAGES).glob("*/*.html"))}
        reports = self.monitoring_store.reports()
        return StatusPageData(
            spec=self.name,
            created_at=now,
            champion=champion,
            champion_since=None,
            reports=reports,
            decisions=self.monitoring_store.decisions(),
            retrainings=self.monitoring_store.retrainings(),
            rollouts=[rollouts.read(rollout_id) for rollout_id in rollouts.ids()],
            links={
                report.start: [
                    f"{PAGES}/{_timestamp(report.start)}/{page.name}" for page in sorted(folder.glob("*.html"))
                ]
                for report in reports
                if (folder := pages.get(_timestamp(report.start))) is not None
            },
            waiting=waiting,
            policy=self._settings.retrain,
            counted_until=self._statistics_end(),
            served_features=self.monitoring_store.served_features(),
        )

    def _statistics_end(self) -> datetime | None:
        announcement = spec_feast_store_location(self._stores, self.name).read_announcement() or {}
        counted_until = announcement.get("counted_until", announcement.get("until"))
        return None if counted_until is None else datetime.fromisoformat(counted_until)


def _timestamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _report_sentence(report: WindowReport) -> str:
    columns = f": {', '.join(report.columns)}" if report.columns else ""
    learnt_text = f". {report.learnt_notice}" if report.learnt_by else ""
    return (
        f"{report.start:%Y-%m-%d %H:%M} {report.verdict}{columns} ({report.requests:,} requests, {report.rows:,} rows,"
        f" {report.coverage:.0%} with outcomes){learnt_text}"
    )
