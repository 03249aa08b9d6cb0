"""What a drill showed: a world is broken on purpose, and the loop has to close by itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, computed_field
from rich.table import Table
from rich.text import Text

from monitoring.pages.drill_plot import drill_plot
from monitoring.pages.loop_status import format_duration, join_names, moment
from monitoring.pages.status_page import environment
from monitoring.records import RetrainAction, WindowReport
from shortlist.rollout.page import NOTHING, words
from shortlist.storage.artefacts import write_json, write_text

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
    table.add_column("join_names", overflow="fold")
    table.add_column("decision", no_wrap=True)
    table.add_column("hit rate, %:\nbefore,\nduring, after", justify="right", no_wrap=True)
    table.add_column("as\nwanted", no_wrap=True)
    for one in drill.scenarios:
        table.add_row(*_cells(one))
    return table


def _cells(scenario: Scenario) -> list[str | Text]:
    trained = "promoted" if scenario.promoted else "not promoted"
    numbers = (scenario.kpi.before, scenario.kpi.during, scenario.kpi.after)
    return [
        # Names come from a log: as text they are shown, never read as markup.
        Text(f"{words(scenario.name)}\n{moment(scenario.injected_at)}"),
        time_to_alarm(scenario),
        Text(join_names(scenario.columns_named) or NOTHING),
        Text(f"{scenario.decision},\n{trained}" if scenario.retrained else scenario.decision),
        " ".join(NOTHING if number is None else f"{100 * number:.1f}" for number in numbers),
        Text("yes", "green") if scenario.passed else Text("no", "bold red"),
    ]
