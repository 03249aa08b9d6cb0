"""The page and the summary of a run that stopped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from shortlist.contracts import Files
from shortlist.report.assembly import page_steps, summary_of
from shortlist.report.page import RunPage
from shortlist.report.report import write_report
from shortlist.report.summary import Failure, write_summary
from shortlist.runs.display import Display


def write_failure(spec: str, run: Path, display: Display, started: datetime) -> None:
    """Write `report.html` and `summary.json` of a stopped run: what stopped it, and what was found until then."""
    step, message = next(iter(display.failed.items()), (display.current, display.fault(run)))
    quarantine = Path(display.paths.get("quarantine", ""))
    began = started.isoformat(timespec="milliseconds")
    records = [record for record in display.finished.values() if not record.get("cached")]
    page = RunPage(
        spec=spec,
        started=began,
        seconds=(datetime.now(UTC) - started).total_seconds(),
        steps=page_steps(records, began),
        failure=Failure(step=step, message=message),
        quarantine=quarantine if (quarantine / Files.QUARANTINE).is_file() else None,
    )
    write_report(page, run / Files.REPORT)
    write_summary(run / Files.SUMMARY, summary_of(page))
