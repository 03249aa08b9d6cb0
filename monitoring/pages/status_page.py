"""The status page of a spec: the loop at a glance, in one file that loads nothing and runs nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from monitoring.pages.drift_heatmap import heat_map
from monitoring.pages.loop_status import SIGNS, format_duration, join_names, loop_state, moment
from monitoring.pages.status_page_data import StatusPageData
from monitoring.pages.status_plots import kpi_plots
from monitoring.windows.records import Quality, Retraining
from shortlist.contracts import Files
from shortlist.report.templates import page_environment
from shortlist.rollout.page import PAGE as ROLLOUT_PAGE
from shortlist.rollout.page import count, decimals, headline, seconds, share, words
from shortlist.rollout.record import RolloutRecord
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["PAGE", "StatusPageData", "environment", "render", "write_page"]

PAGE: Final = "status.html"
TEMPLATE: Final = "status.html.j2"
_MEASURES: Final = ("hit_rate", "auc", "gauc", "ndcg_at_10", "log_loss", "rate_error", "label_rate", "mean_score")
_MOST_LINES: Final = 60


def write_page(loop: StatusPageData, out: Path) -> None:
    """Write the status page, whole or not at all."""
    write_text(out, render(loop, out.parent))


def render(loop: StatusPageData, folder: Path) -> str:
    """Return the status page as HTML.

    Args:
        loop: What there is to show.
        folder: Where the page will lie; links to runs and rollouts appear when their pages are there.
    """
    state, windows, newest = loop_state(loop), loop.windows, loop.newest
    decisions = loop.newest_decisions
    return environment().get_template(TEMPLATE).render(
        loop_=loop,  # `loop` is Jinja's own
        state=state,
        sign=SIGNS[state.level],
        plots=kpi_plots(loop),
        heat=heat_map(windows),
        windows=windows[: -_MOST_LINES - 1 : -1],
        older=max(0, len(windows) - _MOST_LINES),
        decisions=decisions[:_MOST_LINES],
        older_decisions=max(0, len(decisions) - _MOST_LINES),
        unknown=dict.fromkeys(one.problem for one in newest.quality if one.problem) if newest else (),
        measures=_MEASURES,
        slices=_slices(loop.judged.quality) if loop.judged else (),
        retrainings=[(one, _run_link(one, folder)) for one in loop.newest_retrainings],
        rollouts=[(one, _rollout_link(one, loop, folder), headline(one)) for one in loop.newest_rollouts],
    )  # fmt: skip


@cache
def environment() -> Environment:
    """Return what renders the pages of monitoring."""
    filters: dict[str, Any] = {
        "clock": clock, "count": count, "day": _day, "format_duration": format_duration, "measured": measured,
        "moment": moment,
        "join_names": join_names, "path": _path, "seconds": seconds, "share": share, "stem": _stem,
        "strength": _strength, "words": words,
    }  # fmt: skip
    return page_environment(Path(__file__).parent, filters)


def measured(value: float, name: str) -> str:
    """Return a measure's number as it is read: rates as percent.

    >>> measured(0.0512, "hit_rate"), measured(0.7411, "auc")
    ('5.1 %', '0.7411')
    """
    return decimals(value) if name in {"auc", "gauc", "ndcg_at_10", "log_loss"} else share(value)


def clock(time: datetime) -> str:
    """Return a moment of the wall clock, to the minute."""
    return f"{time:%-d %B %Y, %H:%M %Z}".strip()


def _slices(quality: Sequence[Quality]) -> list[Quality]:
    """Return all rows first, then the slices that have measures, then those that have none."""
    return sorted(quality, key=lambda one: (one.slice != "all", not one.measures, one.slice, one.version))


def _run_link(retraining: Retraining, folder: Path) -> str | None:
    """Return the path of a run's page from the folder of this one, None when it is not there."""
    page = Path(retraining.run) / Files.REPORT
    return os.path.relpath(page, folder) if retraining.run and page.is_file() else None


def _rollout_link(record: RolloutRecord, loop: StatusPageData, folder: Path) -> str | None:
    page = Path(loop.rollout_pages, record.id, ROLLOUT_PAGE)
    return page.as_posix() if (folder / page).is_file() else None


def _day(time: datetime) -> str:
    return f"{time.day}\u00a0{time:%b}"


def _path(path: str) -> str:
    """Return a relative path as a link; no name can make it a scheme, a script or another host."""
    return quote(path.lstrip("/"), safe="/")


def _stem(path: str) -> str:
    return PurePosixPath(path).stem


def _strength(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}" if number < 99.5 else "99+"
