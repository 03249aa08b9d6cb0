"""The page to begin at, `index.html` of a runs folder: runs, champion, rollout, windows and alerts of every spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from monitoring.alerts.alert_records import AlertRecords
from monitoring.pages.status_page import PAGE as STATUS_PAGE
from monitoring.pages.status_page import format_clock, quote_path
from monitoring.store.monitoring_store import MonitoringStore, open_monitoring_store
from shortlist.contracts import Files, ShortlistError
from shortlist.report.templates import page_environment
from shortlist.rollout.page import NO_NUMBER, headline
from shortlist.rollout.page import PAGE as ROLLOUT_PAGE
from shortlist.rollout.rollouts import Rollouts
from shortlist.runs.runs_folder import RunsFolder
from shortlist.storage.artefacts import IntegrityError, read_json, write_text
from shortlist.storage.storage_config import StorageConfig

PAGE: Final = "index.html"
_TEMPLATE: Final = "runs_page.html.j2"
_MAX_RUNS: Final = 100
"""Most runs on the page, the newest ones."""
_STAMP: Final = "%Y%m%d-%H%M%S"
_LOOKS: Final = {"healthy": "good", "drifted": "warn", "degraded": "bad", "broken": "bad", "unjudged": "plain"}
"""Look of a window's verdict."""


@dataclass(frozen=True)
class Cell:
    """A cell of the table."""

    text: str
    look: str = "plain"
    """good, warn, bad or plain."""
    link: str = ""
    """Path of a page, relative to the runs folder; empty: there is none."""


@dataclass(frozen=True)
class RunLine:
    """One finished training run."""

    started: datetime
    spec: str
    outcome: Cell
    metric: str
    """Quality of the blessed model, or of the best candidate; may be empty."""


@dataclass(frozen=True)
class SpecLine:
    """What serves of a spec, and what is wrong."""

    spec: str
    champion: Cell
    run: Cell
    rollout: Cell
    window: Cell
    alerts: Cell


def write_runs_page(state: RunsFolder, champions: Mapping[str, int] = MappingProxyType({})) -> Path:
    """Write the page of a runs folder, and return its path; a record that cannot be read is named on it.

    Args:
        state: The runs folder.
        champions: Versions of champions that may have changed, by spec; they are remembered.
    """
    for spec, version in champions.items():
        state.remember_champion(spec, version)
    runs = list(_iter_runs(state.root))
    specs = sorted({run.spec for run in runs} | state.champions.keys())
    template = page_environment(Path(__file__).parent, {"clock": format_clock, "path": quote_path})
    text = template.get_template(_TEMPLATE).render(
        specs=[_read_spec(spec, state, next((run for run in runs if run.spec == spec), None)) for spec in specs],
        runs=runs[:_MAX_RUNS],
        older_runs=max(0, len(runs) - _MAX_RUNS),
        written=datetime.now(UTC),
    )
    write_text(state.root / PAGE, text)
    return state.root / PAGE


def _iter_runs(root: Path) -> Iterator[RunLine]:
    """Yield the runs that have a page and a summary, the newest first."""
    for summary_file in sorted(root.glob(f"*/{Files.SUMMARY}"), reverse=True):
        folder = summary_file.parent
        if folder.is_symlink() or not (folder / Files.REPORT).is_file():
            continue
        try:
            summary = read_json(summary_file)
            started = datetime.strptime(folder.name[:15], _STAMP).replace(tzinfo=UTC)
        except (IntegrityError, ValueError):  # no run of ours
            continue
        outcome = _describe_outcome(summary, f"{folder.name}/{Files.REPORT}")
        yield RunLine(started, str(summary["spec"]), outcome, _describe_metric(summary))


def _describe_outcome(summary: dict[str, Any], link: str) -> Cell:
    if failed := summary.get("failed"):
        return Cell(f"stopped at {failed['step']}", "bad", link)
    if blessed := summary.get("blessed"):
        return Cell(f"{blessed['model']} is blessed as version {blessed['version']}", "good", link)
    return Cell("every candidate is held", "warn", link)


def _describe_metric(summary: dict[str, Any]) -> str:
    metric = summary.get("metric") or "auc"
    blessed = (summary.get("blessed") or {}).get("model")
    values = {name: model.get(metric) for name, model in summary["models"].items() if model.get("role") == "candidate"}
    value = values.get(blessed) or max(filter(None, values.values()), default=None)
    return "" if value is None else f"{metric.upper()} {value:.4f}"


def _read_spec(spec: str, state: RunsFolder, run: RunLine | None) -> SpecLine:
    monitoring_store = open_monitoring_store(str(StorageConfig(folder=state.stores)), spec)
    champion, status_page = state.champions.get(spec), f"monitoring/{spec}/{STATUS_PAGE}"
    link = status_page if (state.root / status_page).is_file() else ""
    return SpecLine(
        spec=spec,
        champion=Cell(NO_NUMBER if champion is None else f"version {champion}"),
        run=run.outcome if run else Cell("none here"),
        rollout=_read(lambda: _newest_rollout(state.root, spec)),
        window=_read(lambda: _newest_window(monitoring_store, link)),
        alerts=_read(lambda: _firing_alerts(monitoring_store, link)),
    )


def _read(read_cell: Callable[[], Cell]) -> Cell:
    """Return a cell; a record that cannot be read is its text."""
    try:
        return read_cell()
    except (ShortlistError, OSError) as error:
        return Cell(str(error), "bad")


def _newest_rollout(root: Path, spec: str) -> Cell:
    record = Rollouts(root / "rollouts", spec).latest()
    if record is None:
        return Cell("none yet")
    page = f"rollouts/{record.id}/{ROLLOUT_PAGE}"
    look = "plain" if not record.state.final else "bad" if record.is_rolled_back else "good"
    return Cell(headline(record), look, page if (root / page).is_file() else "")


def _newest_window(monitoring_store: MonitoringStore, link: str) -> Cell:
    for report in monitoring_store.reports(newest=1):
        return Cell(f"{report.verdict}, {format_clock(report.start)}", _LOOKS[report.verdict], link)
    return Cell("none yet")


def _firing_alerts(monitoring_store: MonitoringStore, link: str) -> Cell:
    alerts = [record.alert for record in AlertRecords(monitoring_store.records).read().values()]
    firing = [alert.annotations.get("summary", alert.name) for alert in alerts if alert.status == "firing"]
    return Cell("; ".join(firing), "bad", link) if firing else Cell("none", "good" if alerts else "plain")
