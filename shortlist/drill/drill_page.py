"""The page of a drill, in which faults are injected into a generated world and the loop has to recover."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pydantic import computed_field
from rich.table import Table
from rich.text import Text

from monitoring.pages.drift_heatmap import fill_gaps
from monitoring.pages.loop_status import format_duration, format_moment, join_names
from monitoring.pages.plot_annotations import WindowSlots, draw_ticks, draw_versions, draw_window_states
from monitoring.pages.status_page import page_templates
from monitoring.pages.status_plots import draw_measure
from monitoring.windows.records import RetrainAction, WindowReport
from shortlist.loop.loop_page import regret_plot, reward_plot
from shortlist.loop.policy_rewards import LoopRecord, PolicyRewards
from shortlist.report.figures import DASHES, INK, Plot, figure_panels, plot
from shortlist.rollout.page import NO_NUMBER, format_name
from shortlist.storage.artefacts import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRILL_FILE: Final = "drill.json"
PAGE: Final = "drill.html"
TEMPLATE: Final = "drill.html.j2"

ScenarioName = Literal["new_items", "changed_tastes", "broken_column", "volume_collapse"]


class Kpi(LoopRecord):
    """The champion's mean hit rate before, during and after a fault; None where no window has one."""

    before: float | None
    during: float | None
    after: float | None


class Scenario(LoopRecord):
    """One injected fault, and the loop's response to it."""

    name: ScenarioName
    injected_at: datetime
    alarm_at: datetime | None
    """End of the first window after it whose decision was not to hold; None when there was none."""
    columns_named: tuple[str, ...]
    decision: RetrainAction
    retrained: bool
    promoted: bool
    kpi: Kpi
    wanted: str
    """The expected decision."""
    passed: bool
    collected_rows_trained_on: int | None = None
    """Rows of live traffic that the promoted, or else the first trained, model was trained on; None without any."""
    reward_after: float | None = None
    """Expected clicks per slate on the days after the training, until the next fault; None without such days."""
    reward_frozen: float | None = None
    """What the first release, with the statistics of its first day, would have earned on the same requests."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hours_to_alarm(self) -> float | None:
        """Hours from the fault to the alarm, in the world's time; None without an alarm."""
        return None if self.alarm_at is None else (self.alarm_at - self.injected_at) / timedelta(hours=1)


class Drill(LoopRecord):
    """The result of a drill: its scenarios and windows."""

    scenarios: tuple[Scenario, ...]
    false_alarms: int
    """Number of quiet windows with an alarm."""
    quiet_windows: int
    """Number of windows before the first fault, without the first ones."""
    seconds: float
    """Duration of the drill in real time."""
    days: tuple[WindowReport, ...]
    """Reports of all windows."""
    rewards: PolicyRewards
    """What the served releases and other policies earned, day by day."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether every scenario passed, and there was no false alarm."""
        return bool(self.scenarios) and all(scenario.passed for scenario in self.scenarios) and self.false_alarms == 0


def write_drill(drill: Drill, folder: Path) -> None:
    """Write `drill.json` and `drill.html` into a folder, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / DRILL_FILE, drill_json(drill))
    write_text(folder / PAGE, render_drill(drill))


def drill_json(drill: Drill) -> dict[str, object]:
    """Return the content of `drill.json`: the scenarios, and the plotted values of the windows."""
    content: dict[str, object] = drill.model_dump(mode="json", exclude={"days"})
    content["days"] = [
        {
            "start": report.start.isoformat(),
            "champion": report.champion,
            "verdict": report.verdict,
            "columns": report.columns,
            "kpi": champion_hit_rate(report),
        }
        for report in drill.days
    ]
    return content


def champion_hit_rate(report: WindowReport) -> float | None:
    """Return the champion's hit rate in a window; None when it was not measured."""
    champion_qualities = (
        quality for quality in report.quality if (quality.version, quality.slice) == (report.champion, "all")
    )
    return next(
        (measure.value for quality in champion_qualities for measure in quality.measures if measure.name == "hit_rate"),
        None,
    )


def render_drill(drill: Drill) -> str:
    """Return the page of a drill as HTML."""
    return page_templates(Path(__file__).parent).get_template(TEMPLATE).render(
        drill=drill,
        headline=drill_headline(drill),
        plots=[drawn for drawn in (drill_plot(drill.days, drill.scenarios), *reward_plots(drill.rewards)) if drawn],
        after=time_to_alarm,
    )  # fmt: skip


def reward_plots(rewards: PolicyRewards) -> list[Plot]:
    """Return the plots of the rewards; none without days."""
    return [reward_plot(rewards), regret_plot(rewards)] if rewards.days else []


def drill_headline(drill: Drill) -> str:
    """Return the result of a drill as a sentence."""
    passed_count, scenario_count = sum(scenario.passed for scenario in drill.scenarios), len(drill.scenarios)
    scenarios = f"{passed_count} of {scenario_count} scenarios went as wanted"
    alarms = f"{drill.false_alarms} false alarm{'' if drill.false_alarms == 1 else 's'}"
    return f"{scenarios}; {alarms} in {drill.quiet_windows} quiet windows"


def time_to_alarm(scenario: Scenario) -> str:
    """Return the time from the fault to the alarm as text; a dash without an alarm."""
    return NO_NUMBER if scenario.alarm_at is None else format_duration(scenario.alarm_at - scenario.injected_at)


def drill_table(drill: Drill) -> Table:
    """Return a drill as a table for the terminal; it fits 80 characters."""
    table = Table(
        title=f"Drill: {drill_headline(drill)}; {format_duration(timedelta(seconds=drill.seconds))}",
        title_justify="left",
    )
    table.add_column("injected", no_wrap=True)
    table.add_column("alarm\nafter", no_wrap=True)
    table.add_column("named", overflow="fold")
    table.add_column("decision,\nlearnt from", no_wrap=True)
    numbers = "hit rate, %:\nbefore,\nduring, after;\nclicks a slate:\nfirst, now"
    table.add_column(numbers, justify="right", no_wrap=True)
    table.add_column("as\nwanted", no_wrap=True)
    for scenario in drill.scenarios:
        table.add_row(*_cells(scenario))
    return table


def _cells(scenario: Scenario) -> list[str | Text]:
    training_state = "promoted" if scenario.promoted else "not promoted"
    numbers = (scenario.kpi.before, scenario.kpi.during, scenario.kpi.after)
    rates = " ".join(NO_NUMBER if number is None else f"{100 * number:.1f}" for number in numbers)
    live_rows, first, now = scenario.collected_rows_trained_on, scenario.reward_frozen, scenario.reward_after
    live_rows_text = "" if live_rows is None else f",\n{live_rows:,} live\nrows"
    rewards_text = "" if first is None or now is None else f"\n{first:.3f} {now:.3f}"
    return [
        # Names come from a log: `Text` shows them without interpreting markup.
        Text(f"{format_name(scenario.name)}\n{format_moment(scenario.injected_at)}"),
        time_to_alarm(scenario),
        Text(join_names(scenario.columns_named) or NO_NUMBER),
        Text(f"{scenario.decision},\n{training_state}{live_rows_text}" if scenario.retrained else scenario.decision),
        f"{rates}{rewards_text}",
        Text("yes", "green") if scenario.passed else Text("no", "bold red"),
    ]


_CAPTION = (
    "Hit rate of every version with its interval; the dotted line is the version's own test days. A solid line is an"
    " injection, with its name; ! is the window that raised the alarm, with the decision below it; a dashed upright"
    " line is a new champion with its number. Hatched: broken data, whose values are crosses; lines across: not judged;"
    " grey: windows without a report."
)


_NAME_HEIGHT: Final = 0.06
"""Height of a fault's name, as a share of the panel's height."""


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
    """Return the plot of the KPI over all windows; None without windows."""
    from matplotlib.ticker import PercentFormatter

    if not days:
        return None
    window_slots = fill_gaps(sorted(days, key=lambda report: report.start))
    top = 1 - _NAME_HEIGHT * (len(scenarios) + 1)
    with figure_panels(10.0, 4.4) as (figure, (axes,)):
        draw_measure(axes, window_slots, "hit_rate")
        low, high = axes.get_ylim()
        low -= 0.17 * (high - low)  # room below for the decisions, above for the names of the faults
        axes.set_ylim(low, low + (high - low) / top)
        draw_window_states(axes, window_slots, top)
        draw_versions(axes, window_slots, top, labels=24)
        for number, injection in enumerate(sorted(scenarios, key=lambda injection: injection.injected_at)):
            _draw_injection(axes, window_slots, injection, top + _NAME_HEIGHT * (number + 1.8))
        draw_ticks(axes, window_slots)
        axes.set(ylabel="hit rate")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return plot(figure, "drill", "Hit rate, day by day", _CAPTION)


def _draw_injection(axes: Axes, window_slots: WindowSlots, injection: _Injection, height: float) -> None:
    transform = axes.get_xaxis_transform()
    position = _slot_index(window_slots, injection.injected_at) - 0.5
    # Every line is longer than those before it, and its name is left of it, so that no line crosses a name.
    axes.axvline(position, 0, height, color=INK, linewidth=1.2, linestyle=DASHES[0])
    axes.annotate(
        format_name(injection.name), (position, height), (-4, 0), xycoords=transform, textcoords="offset points",
        ha="right", va="top", fontweight="bold", fontsize=10,
    )  # fmt: skip
    if injection.alarm_at is None:
        return
    alarm_position = _slot_index(window_slots, injection.alarm_at) - 1  # the window that ended then
    axes.text(alarm_position, 0.075, "!", transform=transform, ha="center", va="bottom", fontweight="bold", fontsize=13)
    axes.text(alarm_position, 0.015, injection.decision, transform=transform, ha="center", va="bottom", fontsize=9.5)


def _slot_index(window_slots: WindowSlots, moment: datetime) -> int:
    """Return the index of the first window that starts at a moment or later; the number of slots when there is none."""
    return next(
        (index for index, window in enumerate(window_slots) if window and window.start >= moment), len(window_slots)
    )
