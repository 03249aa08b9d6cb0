"""The status page of a spec: one HTML file without external resources or scripts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from monitoring.pages.drift_heatmap import make_heat_map
from monitoring.pages.loop_status import SIGNS, format_duration, format_moment, join_names, loop_status
from monitoring.pages.status_page_data import StatusPageData
from monitoring.pages.status_plots import kpi_plots
from monitoring.windows.records import Quality, Retraining
from shortlist.contracts import Files
from shortlist.report.templates import page_environment
from shortlist.rollout.page import PAGE as ROLLOUT_PAGE
from shortlist.rollout.page import (
    format_count,
    format_four_decimals,
    format_name,
    format_seconds,
    format_share,
    headline,
)
from shortlist.rollout.record import RolloutRecord
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["PAGE", "StatusPageData", "page_templates", "render", "write_page"]

PAGE: Final = "status.html"
TEMPLATE: Final = "status.html.j2"
_MEASURES: Final = ("hit_rate", "auc", "gauc", "ndcg_at_10", "log_loss", "rate_error", "label_rate", "mean_score")
_MAX_LINES: Final = 60


def write_page(page_data: StatusPageData, out: Path) -> None:
    """Write the status page atomically."""
    write_text(out, render(page_data, out.parent))


def render(page_data: StatusPageData, folder: Path) -> str:
    """Return the status page as HTML.

    Args:
        page_data: Content of the page.
        folder: Folder of the page; runs and rollouts are linked when their pages exist.
    """
    status, windows = loop_status(page_data), page_data.windows
    newest_quality = page_data.newest.quality if page_data.newest else ()
    decisions = page_data.newest_decisions
    return page_templates().get_template(TEMPLATE).render(
        page_data=page_data,
        status=status,
        sign=SIGNS[status.level],
        plots=kpi_plots(page_data),
        heat=make_heat_map(windows),
        windows=windows[: -_MAX_LINES - 1 : -1],
        older_windows=max(0, len(windows) - _MAX_LINES),
        decisions=decisions[:_MAX_LINES],
        older_decisions=max(0, len(decisions) - _MAX_LINES),
        quality_problems=dict.fromkeys(quality.problem for quality in newest_quality if quality.problem),
        measures=_MEASURES,
        slices=_sort_slices(page_data.judged.quality) if page_data.judged else (),
        retrainings=[(retraining, _run_link(retraining, folder)) for retraining in page_data.newest_retrainings],
        rollouts=[
            (rollout, _rollout_link(rollout, page_data, folder), headline(rollout))
            for rollout in page_data.newest_rollouts
        ],
    )  # fmt: skip


@cache
def page_templates(folder: Path = Path(__file__).parent) -> Environment:
    """Return the environment of the monitoring pages' templates, or of those in another folder."""
    filters: dict[str, Any] = {
        "clock": format_clock, "count": format_count, "day": _format_day, "format_duration": format_duration,
        "measured": format_measure, "moment": format_moment, "join_names": join_names, "path": quote_path,
        "seconds": format_seconds, "share": format_share, "stem": _path_stem, "strength": _format_strength,
        "words": format_name,
    }  # fmt: skip
    return page_environment(folder, filters)


def format_measure(value: float, name: str) -> str:
    """Return a measure's value as text: rates in percent, others with four decimals.

    >>> format_measure(0.0512, "hit_rate"), format_measure(0.7411, "auc")
    ('5.1 %', '0.7411')
    """
    return format_four_decimals(value) if name in {"auc", "gauc", "ndcg_at_10", "log_loss"} else format_share(value)


def format_clock(time: datetime) -> str:
    """Return a moment as text, to the minute, with its timezone."""
    return f"{time:%-d %B %Y, %H:%M %Z}".strip()


def _sort_slices(quality: Sequence[Quality]) -> list[Quality]:
    """Return the quality of all rows first, then the slices with measures, then those without."""
    return sorted(
        quality,
        key=lambda slice_quality: (
            slice_quality.slice != "all",
            not slice_quality.measures,
            slice_quality.slice,
            slice_quality.version,
        ),
    )


def _run_link(retraining: Retraining, folder: Path) -> str | None:
    """Return the path of a run's page relative to this page's folder; None when it does not exist."""
    page = Path(retraining.run) / Files.REPORT
    return os.path.relpath(page, folder) if retraining.run and page.is_file() else None


def _rollout_link(record: RolloutRecord, page_data: StatusPageData, folder: Path) -> str | None:
    page = Path(page_data.rollout_pages, record.id, ROLLOUT_PAGE)
    return page.as_posix() if (folder / page).is_file() else None


def _format_day(time: datetime) -> str:
    return f"{time.day}\u00a0{time:%b}"


def quote_path(path: str) -> str:
    """Return a relative path as a link; no name can make it a scheme, a script or another host."""
    return quote(path.lstrip("/"), safe="/")


def _path_stem(path: str) -> str:
    return PurePosixPath(path).stem


def _format_strength(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}" if number < 99.5 else "99+"
