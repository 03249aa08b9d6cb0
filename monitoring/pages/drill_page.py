"""What a drill showed: a world is broken on purpose, and the loop has to close by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, computed_field
from rich.table import Table
from rich.text import Text

from monitoring.pages.drift_heatmap import slots
from monitoring.pages.loop_status import format_duration, join_names, moment
from monitoring.pages.plot_annotations import Slots, draw_ticks, draw_versions, draw_window_states
from monitoring.pages.status_page import environment
from monitoring.pages.status_plots import draw_measure
from monitoring.windows.records import RetrainAction, WindowReport
from shortlist.report.figures import DASHES, INK, Plot, drawn, plot
from shortlist.rollout.page import NOTHING, words
from shortlist.storage.artefacts import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA: Final = "drill.json"
PAGE: Final = "drill.html"
TEMPLATE: Final = "drill.html.j2"

ScenarioName = Literal["new_items", "changed_tastes", "broken_column", "volume_collapse"]


class _Record(BaseModel):
    # NaN and infinity are no JSON: what is not known is None.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Kpi(_Record):
    """The hit rate around an injection; None where no window has one."""

    before: float | None
    during: float | None
    after: float | None


class Scenario(_Record):
    """One thing that was broken, and what the loop did about it."""

    name: ScenarioName
    injected_at: datetime
    alarm_at: datetime | None
    """End of the first window that was not held after it; None when nobody noticed."""
    columns_named: tuple[str, ...]
    decision: RetrainAction
    retrained: bool
    promoted: bool
    kpi: Kpi
    wanted: str
    """What should happen."""
    passed: bool
    collected_rows_trained_on: int | None = None
    """Rows of live traffic that the promoted model, or else the first one trained, learnt from; None: none trained."""
    auc_promoted: float | None = None
    """Of the promoted model on the days after its promotion, until the next injection; None without such days. It and
    the next one are each with the statistics that servers looked up while the model was the champion."""
    auc_frozen: float | None = None
    """Of the model that it replaced, on the same rows."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hours_to_alarm(self) -> float | None:
        """Time to the alarm, in the time of the world."""
        return None if self.alarm_at is None else (self.alarm_at - self.injected_at) / timedelta(hours=1)


class Drill(_Record):
    """All scenarios on one time line."""

    scenarios: tuple[Scenario, ...]
    false_alarms: int
    """Quiet windows with an alarm."""
    quiet_windows: int
    seconds: float
    """That it took, by the clock on the wall."""
    days: tuple[WindowReport, ...]
    """Reports of all windows."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether every scenario went as wanted, and nothing was raised without a cause."""
        return bool(self.scenarios) and all(one.passed for one in self.scenarios) and self.false_alarms == 0


def write_drill(drill: Drill, folder: Path) -> None:
    """Write `drill.json` and `drill.html` into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / DATA, drill_facts(drill))
    write_text(folder / PAGE, render_drill(drill))


def drill_facts(drill: Drill) -> dict[str, object]:
    """Return what a program wants to know of a drill; of the windows, what the picture shows."""
    facts: dict[str, object] = drill.model_dump(mode="json", exclude={"days"})
    facts["days"] = [
        {"start": one.start.isoformat(), "champion": one.champion, "verdict": one.verdict, "columns": one.columns}
        | {"kpi": kpi_of(one)}
        for one in drill.days
    ]
    return facts


def kpi_of(report: WindowReport) -> float | None:
    """Return the champion's hit rate in a window, None when it has none."""
    own = (one for one in report.quality if (one.version, one.slice) == (report.champion, "all"))
    return next((each.value for one in own for each in one.measures if each.name == "hit_rate"), None)


def render_drill(drill: Drill) -> str:
    """Return the page of a drill as HTML."""
    return environment().get_template(TEMPLATE).render(
        drill=drill,
        headline=headline(drill),
        plot=drill_plot(drill.days, drill.scenarios),
        after=time_to_alarm,
    )  # fmt: skip


def headline(drill: Drill) -> str:
    """Return in one sentence how a drill went."""
    good, every = sum(one.passed for one in drill.scenarios), len(drill.scenarios)
    went = f"{good} of {every} scenarios went as wanted"
    alarms = f"{drill.false_alarms} false alarm{'' if drill.false_alarms == 1 else 's'}"
    return f"{went}; {alarms} in {drill.quiet_windows} quiet windows"


def time_to_alarm(scenario: Scenario) -> str:
    """Return how long it took to notice; a dash when nobody did."""
    return NOTHING if scenario.alarm_at is None else format_duration(scenario.alarm_at - scenario.injected_at)


def drill_table(drill: Drill) -> Table:
    """Return a drill as a table for the terminal; it fits 80 characters."""
    table = Table(
        title=f"Drill: {headline(drill)}; {format_duration(timedelta(seconds=drill.seconds))}", title_justify="left"
    )
    table.add_column("injected", no_wrap=True)
    table.add_column("alarm\nafter", no_wrap=True)
    table.add_column("named", overflow="fold")
    table.add_column("decision,\nlearnt from", no_wrap=True)
    table.add_column("hit rate, %:\nbefore,\nduring, after;\nAUC after:\nold, new", justify="right", no_wrap=True)
    table.add_column("as\nwanted", no_wrap=True)
    for one in drill.scenarios:
        table.add_row(*_cells(one))
    return table


def _cells(scenario: Scenario) -> list[str | Text]:
    trained = "promoted" if scenario.promoted else "not promoted"
    numbers = (scenario.kpi.before, scenario.kpi.during, scenario.kpi.after)
    rates = " ".join(NOTHING if number is None else f"{100 * number:.1f}" for number in numbers)
    rows, old, new = scenario.collected_rows_trained_on, scenario.auc_frozen, scenario.auc_promoted
    learnt = "" if rows is None else f",\n{rows:,} live\nrows"
    aucs = "" if old is None or new is None else f"\n{old:.4f} {new:.4f}"
    return [
        # Names come from a log: as text they are shown, never read as markup.
        Text(f"{words(scenario.name)}\n{moment(scenario.injected_at)}"),
        time_to_alarm(scenario),
        Text(join_names(scenario.columns_named) or NOTHING),
        Text(f"{scenario.decision},\n{trained}{learnt}" if scenario.retrained else scenario.decision),
        f"{rates}{aucs}",
        Text("yes", "green") if scenario.passed else Text("no", "bold red"),
    ]


_CAPTION = (
    "Hit rate of every version with its interval; the dotted line is the version's own test days. A solid line is an"
    " injection, with its name; ! is the window that raised the alarm, with the decision below it; a dashed upright"
    " line is a new champion with its number. Hatched: broken data, whose values are crosses; lines across: not judged;"
    " grey: windows without a report."
)


_ROW: Final = 0.06
"""Height of a name, as a share of the panel's."""


class _Injection(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def injected_at(self) -> datetime: ...
    @property
    def alarm_at(self) -> datetime | None: ...
    @property
    def decision(self) -> RetrainAction: ...


def drill_plot(days: Sequence[WindowReport], scenarios: Sequence[_Injection]) -> Plot | None:
    """Return the KPI over all windows, None without windows."""
    from matplotlib.ticker import PercentFormatter

    if not days:
        return None
    shown = slots(sorted(days, key=lambda one: one.start))
    top = 1 - _ROW * (len(scenarios) + 1)
    with drawn(10.0, 4.4) as (figure, (axes,)):
        draw_measure(axes, shown, "hit_rate")
        low, high = axes.get_ylim()
        low -= 0.17 * (high - low)  # room below for what was decided, above for the names of what was broken
        axes.set_ylim(low, low + (high - low) / top)
        draw_window_states(axes, shown, top)
        draw_versions(axes, shown, top, labels=24)
        for number, one in enumerate(sorted(scenarios, key=lambda one: one.injected_at)):
            _draw(axes, shown, one, top + _ROW * (number + 1.8))
        draw_ticks(axes, shown)
        axes.set(ylabel="hit rate")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return plot(figure, "drill", "Hit rate, day by day", _CAPTION)


def _draw(axes: Axes, shown: Slots, injection: _Injection, height: float) -> None:
    across = axes.get_xaxis_transform()
    began = _place(shown, injection.injected_at) - 0.5
    # Every line is longer than those before it, and its name stands to its left: no line runs through a name.
    axes.axvline(began, 0, height, color=INK, linewidth=1.2, linestyle=DASHES[0])
    axes.annotate(
        words(injection.name), (began, height), (-4, 0), xycoords=across, textcoords="offset points", ha="right",
        va="top", fontweight="bold", fontsize=10,
    )  # fmt: skip
    if injection.alarm_at is None:
        return
    at = _place(shown, injection.alarm_at) - 1  # the window that ended then
    axes.text(at, 0.075, "!", transform=across, ha="center", va="bottom", fontweight="bold", fontsize=13)
    axes.text(at, 0.015, injection.decision, transform=across, ha="center", va="bottom", fontsize=9.5)


def _place(shown: Slots, moment: datetime) -> int:
    """Return the number of the first window that begins at a moment or later; one past the last when there is none."""
    return next((at for at, one in enumerate(shown) if one and one.start >= moment), len(shown))
