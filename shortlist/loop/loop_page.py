"""The page of a loop: reward per slate and day of every policy, and cumulated regret."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

from shortlist.loop.loop_record import Loop
from shortlist.loop.policies import POLICIES, Policy
from shortlist.loop.policy_rewards import PolicyRewards
from shortlist.report.figures import DASHES, INK, MARKERS, SERIES, Plot, figure_panels, plot
from shortlist.report.templates import page_environment
from shortlist.storage.artefacts import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOP_FILE: Final = "loop.json"
PAGE: Final = "loop.html"
TITLES: Final[dict[Policy, str]] = {
    "best_possible": "best possible", "loop": "the loop", "frozen": "first release, frozen", "popularity": "popularity",
    "chance": "chance",
}  # fmt: skip
_EVENT_TITLES: Final = {"changed_tastes": "changed tastes", "new_items": "new items", "promoted": "promoted"}
_MOST_TICKS: Final = 8
_CAPTION: Final = (
    "Expected clicks per slate by the planted probabilities, on the same requests for every policy. Upright lines:"
    " drifts of the world (solid, named) and promotions (dashed, with the version)."
)


def write_loop(loop: Loop, folder: Path) -> None:
    """Write `loop.json` and `loop.html` into a folder, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LOOP_FILE, loop.model_dump(mode="json"))
    write_text(folder / PAGE, render_loop(loop))


def render_loop(loop: Loop) -> str:
    """Return the page of a loop as HTML."""
    environment = page_environment(Path(__file__).parent, {})
    return environment.get_template("loop.html.j2").render(
        lived=loop, headline=loop_headline(loop), titles=TITLES, plots=(reward_plot(loop), regret_plot(loop))
    )


def loop_headline(loop: Loop) -> str:
    """Return the result of a loop as a sentence."""
    days = len({day.day for day in loop.days})
    return (
        f"After {days} days the loop earns {loop.last_days['loop']:.2f} clicks per slate,"
        f" {loop.share_of_possible:.0%} of the way from chance to the best possible"
    )


def loop_table(loop: Loop) -> Table:
    """Return a loop as a table for the terminal."""
    table = Table(title=f"{loop_headline(loop)}; exploration cost {loop.exploration_cost:.1%}", title_justify="left")
    table.add_column("policy")
    table.add_column("clicks per slate,\nlast seven days", justify="right")
    table.add_column("clicks missed,\nall days", justify="right")
    for policy in POLICIES:
        table.add_row(TITLES[policy], f"{loop.last_days[policy]:.3f}", f"{loop.regret[policy]:,.0f}")
    return table


def reward_plot(loop: PolicyRewards) -> Plot:
    """Return the plot of the rewards per slate, day by day."""
    with figure_panels(10.0, 4.4) as (figure, (axes,)):
        for number, policy in enumerate(POLICIES):
            _draw_series(axes, number, TITLES[policy], loop.rewards(policy))
        _draw_events(axes, loop)
        axes.set(ylabel="clicks per slate", ylim=(0, None))
        _draw_days(axes, loop)
        return plot(figure, "reward", "Reward per slate, day by day", _CAPTION)


def regret_plot(loop: PolicyRewards) -> Plot:
    """Return the plot of the cumulated regret."""
    with figure_panels(10.0, 3.6) as (figure, (axes,)):
        for number, policy in enumerate(POLICIES):
            _draw_series(axes, number, TITLES[policy], loop.cumulated_regret(policy))
        axes.set(ylabel="clicks missed")
        _draw_days(axes, loop)
        return plot(
            figure, "regret", "Cumulated regret", "Clicks missed against the best possible since the first day."
        )


def _draw_series(axes: Axes, number: int, title: str, values: list[float]) -> None:
    axes.plot(
        values, color=SERIES[number], linestyle=DASHES[number], marker=MARKERS[number], markersize=3.5, label=title
    )


def _draw_events(axes: Axes, loop: PolicyRewards) -> None:
    days = sorted({day.day for day in loop.days})
    transform = axes.get_xaxis_transform()
    for event in loop.events:
        if event.kind not in _EVENT_TITLES or event.day not in days:
            continue
        is_promotion = event.kind == "promoted"
        position, height = days.index(event.day) - 0.5, 0.05 if is_promotion else 0.98
        axes.axvline(position, color=INK, linewidth=0.8, linestyle=DASHES[1] if is_promotion else DASHES[0])
        text = str(event.version) if is_promotion else _EVENT_TITLES[event.kind]
        axes.annotate(
            text, (position, height), (3, 0), xycoords=transform, textcoords="offset points", va="top", fontsize=9.5
        )


def _draw_days(axes: Axes, loop: PolicyRewards) -> None:
    days = sorted({day.day for day in loop.days})
    step = -(-len(days) // _MOST_TICKS)
    axes.set_xticks(range(0, len(days), step), [f"{day:%d %b}" for day in days[::step]])
    axes.set_xlim(-0.7, len(days) - 0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
