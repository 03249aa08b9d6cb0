"""The plots of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from shortlist.evaluation.gates.retrieval import RetrievalMeasures, StageNumbers
from shortlist.evaluation.metrics.records import Curves, Measures, Role, Scores
from shortlist.report.figures import DASHES, GRID, INK, MARKERS, MUTED, SERIES, Plot, figure_panels, plot
from shortlist.report.value_lines import RunValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_FEATURES = 20
_MOST_TICKS = 6
_PART_COLOURS = {"warmup": SERIES[4], "train": SERIES[0], "validation": SERIES[1], "test": SERIES[2]}


def roc_plot(models: Sequence[Measures]) -> Plot | None:
    """Return the ROC curves of all measured models; None when there are none."""
    model_curves = _curves(models)
    if not model_curves:
        return None
    with figure_panels(5.0, 4.2) as (figure, (axes,)):
        for number, name, curves in model_curves:
            axes.plot(*zip(*curves.roc, strict=True), **_line_style(number), label=name)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8)
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
        axes.legend(loc="lower right")
        caption = "Share of clicks found against share of other rows taken for clicks. The thin line is guessing."
        return plot(figure, "roc", "ROC", caption)


def calibration_plot(models: Sequence[Measures]) -> Plot | None:
    """Return label rate against mean score per bin, with intervals, baselines left out; None without bins."""
    model_curves = _curves(models, ("candidate", "champion"))
    if not model_curves:
        return None
    with figure_panels(5.0, 4.2) as (figure, (axes,)):
        for number, name, curves in model_curves:
            bins = curves.calibration
            bounds = [
                (score_bin.label_rate - score_bin.low, score_bin.high - score_bin.label_rate) for score_bin in bins
            ]
            axes.errorbar(
                [score_bin.mean_score for score_bin in bins], [score_bin.label_rate for score_bin in bins],
                yerr=list(zip(*bounds, strict=True)), color=SERIES[number], marker=MARKERS[number], markersize=4,
                linewidth=1, elinewidth=0.9, linestyle=DASHES[number], label=name,
            )  # fmt: skip
        highest = max(
            max(score_bin.mean_score, score_bin.high)
            for _, _, curves in model_curves
            for score_bin in curves.calibration
        )
        axes.plot([0, highest], [0, highest], color=MUTED, linewidth=0.8)
        axes.set(xlabel="mean score", ylabel="label rate", xlim=(0, None), ylim=(0, None))
        axes.legend(loc="upper left")
        caption = (
            "Label rate in bins of equally many rows, by score. On the thin line, a score of 0.2 means one in five."
        )
        return plot(figure, "calibration", "Calibration", caption)


def auc_plot(models: Sequence[Measures], best: Scores | None) -> Plot | None:
    """Return every model's AUC with its interval, beside the best possible; None when nothing was measured."""
    measured = [(measures.model, measures.auc) for measures in models if measures.auc]
    if not measured:
        return None
    with figure_panels(5.0, 1.2 + 0.5 * len(measured)) as (figure, (axes,)):
        for number, (_, auc) in enumerate(measured):
            colour = SERIES[number % len(SERIES)]
            axes.plot([auc.low, auc.high], [number, number], color=colour, linewidth=3, solid_capstyle="round")
            axes.plot(auc.value, number, marker=MARKERS[number % len(MARKERS)], color=colour, markersize=8)
            _write_right(axes, f"{auc.value:.4f}", number)
        if best:
            axes.axvline(best.auc, color=INK, linestyle=DASHES[2], linewidth=1.3)
            _write_top(axes, f"possible {best.auc:.4f}", best.auc)
        axes.set_yticks(range(len(measured)), [name for name, _ in measured], color=INK)
        axes.set(xlabel="AUC", ylim=(len(measured) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        axes.locator_params(axis="x", nbins=5)
        caption = "AUC on the test rows with its confidence interval; users were resampled."
        return plot(figure, "auc", "AUC", caption)


def funnel_plot(measures: RetrievalMeasures, later_stages: Sequence[StageNumbers] = ()) -> Plot | None:
    """Return the recall of every source, of all together and of later stages; None with too few users.

    Args:
        measures: Measures of the retrieval.
        later_stages: Numbers of filtering, scoring and ordering; empty where no slates were made.
    """
    stages = [*measures.stages, *later_stages]
    recalls = [(_list_name(stage), stage.recall, stage.items) for stage in stages if stage.recall]
    if not recalls:
        return None
    size = measures.evaluation.catalogue
    with figure_panels(5.0, 1.2 + 0.5 * len(recalls)) as (figure, (axes,)):
        for number, (_, recall, items) in enumerate(recalls):
            axes.barh(number, recall.value, color=SERIES[number % len(SERIES)], height=0.55)
            axes.plot([recall.low, recall.high], [number, number], color=INK, linewidth=1.3)
            _write_right(axes, f"{recall.value:.3f} in {items:.0f}", number)
        axes.set_yticks(range(len(recalls)), [name for name, *_ in recalls], color=INK)
        axes.set(xlabel="recall", xlim=(0, 1), ylim=(len(recalls) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        caption = (
            f"From {size:,} items to the candidates of a user{' and to the slate' if later_stages else ''}: which share"
            " of the items that users took on the test days is among them. The line is the confidence interval."
        )
        return plot(figure, "funnel", "Candidates", caption)


def value_plot(value: RunValue) -> Plot | None:
    """Return the value of every list with its interval, beside the planted one; None where none is known."""
    lists = [line for line in value.lists if line.low is not None or line.truth is not None]
    if not lists:
        return None
    with figure_panels(5.0, 1.2 + 0.42 * len(lists)) as (figure, (axes,)):
        for number, line in enumerate(lists):
            colour = SERIES[0] if line.model else MUTED
            if line.estimate is not None and line.low is not None and line.high is not None:
                axes.plot([line.low, line.high], [number, number], color=colour, linewidth=3, solid_capstyle="round")
                axes.plot(line.estimate, number, marker="o", color=colour, markersize=7)
            if line.truth is not None:
                axes.plot(line.truth, number, marker="D", color=INK, markersize=5, markerfacecolor="none")
            _write_right(axes, "" if line.low is None else f"{line.estimate:.2f}", number)
        axes.set_yticks(range(len(lists)), [line.title for line in lists], color=INK)
        axes.set(xlabel=f"{value.reward} per request", xlim=(0, None), ylim=(len(lists) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        planted = " Diamonds are the planted values." if any(line.truth is not None for line in lists) else ""
        caption = (
            "What each list would earn, estimated from rows with known propensities, with its interval by"
            f" user.{planted}"
        )
        return plot(figure, "value", "Value of the slates", caption)


def _list_name(stage: StageNumbers) -> str:
    if stage.stage != "retrieval":
        return stage.stage
    return stage.source or "all sources"


def scores_plot(models: Sequence[Measures]) -> Plot | None:
    """Return the distributions of the models' scores, baselines left out; None when nothing was measured."""
    model_curves = _curves(models, ("candidate", "champion"))
    if not model_curves:
        return None
    with figure_panels(5.0, 3.4) as (figure, (axes,)):
        for number, name, curves in model_curves:
            widths = [b - a for a, b in zip(curves.histogram_edges, curves.histogram_edges[1:], strict=False)]
            densities = [share / width for share, width in zip(curves.histogram_shares, widths, strict=True)]
            axes.stairs(densities, curves.histogram_edges, color=SERIES[number], linestyle=DASHES[number], label=name)
        axes.set(xlabel="score", ylabel="density", ylim=(0, None), yticks=[])
        axes.legend(loc="upper right")
        caption = (
            "How often each score is given; the highest 0.5 % share the last bin. A lone spike is a constant score."
        )
        return plot(figure, "scores", "Score distribution", caption)


def importance_plot(importance: Mapping[str, float], model: str) -> Plot | None:
    """Return the most important features' shares of the gain; None when the model has none."""
    top = sorted(importance.items(), key=lambda item: item[1])[-_MOST_FEATURES:]
    if not top:
        return None
    with figure_panels(5.0, 0.8 + 0.235 * len(top)) as (figure, (axes,)):
        axes.barh([name for name, _ in top], [share for _, share in top], color=SERIES[0], height=0.66)
        axes.tick_params(axis="y", labelcolor=INK, labelsize=9)
        axes.set(xlabel="share of the total gain", ylim=(-0.6, len(top) - 0.4))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x")
        caption = f"Share of the total gain of {model}: the {len(top)} features that took most of the loss away."
        return plot(figure, f"importance_{model}", f"What {model} looks at", caption)


def loss_plot(history: Sequence[Mapping[str, Any]], model: str, kept_epoch: int | None) -> Plot | None:
    """Return the losses per epoch (or tree) of a training; None when it recorded none.

    Args:
        history: One record per epoch: `epoch` or `round`, and numbers; those named `*loss` are drawn.
        model: Name of the model.
        kept_epoch: The epoch (or tree) whose weights were kept.
    """
    from matplotlib.ticker import MaxNLocator

    step = "epoch" if history and "epoch" in history[0] else "round"
    names = list(dict.fromkeys(name for line in history for name in line if name.endswith("loss")))
    if not names:
        return None
    with figure_panels(5.0, 3.4) as (figure, (axes,)):
        for number, name in enumerate(names[: len(SERIES)]):
            points = [
                (line.get(step, n), line[name]) for n, line in enumerate(history, 1) if line.get(name) is not None
            ]
            marker = MARKERS[number] if len(points) <= 40 else None
            label = name.removesuffix("_log_loss").removesuffix("_loss").replace("_", " ")
            axes.plot(*zip(*points, strict=True), **_line_style(number), marker=marker, markersize=5, label=label)
        if kept_epoch is not None:
            axes.axvline(kept_epoch, color=MUTED, linewidth=0.8)
            _write_top(axes, f"kept {kept_epoch}", kept_epoch)
        axes.set(xlabel=step if step == "epoch" else "trees", ylabel="log loss")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.legend()
        caption = f"Log loss of {model} while it learned; the weights with the lowest validation loss were kept."
        return plot(figure, f"loss_{model}", f"Learning: {model}", caption)


def days_plot(days: Sequence[tuple[date, int, int]], split: Mapping[str, Sequence[date]]) -> Plot | None:
    """Return rows and label rate per day, coloured by the part of the split; None without days.

    Args:
        days: Tuples (day, rows, positives).
        split: Days by part, such as `test`; days of no part are drawn pale.
    """
    if not days:
        return None
    with figure_panels(5.0, 3.9, rows=2) as (figure, (volume, rate)):
        part_of = {day: part for part, part_days in split.items() for day in part_days}
        for part in split:
            positions = [n for n, (day, _, _) in enumerate(days) if part_of.get(day) == part]
            volume.bar(positions, [days[n][1] for n in positions], color=_PART_COLOURS.get(part, MUTED), label=part)
        unassigned = [n for n, (day, _, _) in enumerate(days) if day not in part_of]
        volume.bar(unassigned, [days[n][1] for n in unassigned], color=GRID, edgecolor=MUTED, linewidth=0.5)
        if part_of:
            figure.legend(loc="outside upper right", ncols=len(split))
        rates = [positives / rows if rows else float("nan") for _, rows, positives in days]
        rate.plot(rates, color=INK, marker="o" if len(days) <= 60 else None, markersize=4, linewidth=1.2)
        volume.set(ylabel="rows", ylim=(0, None))
        volume.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
        rate.set(
            ylabel="label rate", ylim=(0, 1.2 * max((label_rate for label_rate in rates if label_rate > 0), default=1))
        )
        _day_ticks(rate, [day for day, _, _ in days])
        caption = "Valid rows and label rate per day. Models learn from the train days and are judged on the test days."
        return plot(figure, "days", "Day by day", caption)


def _curves(models: Sequence[Measures], roles: Sequence[Role] | None = None) -> list[tuple[int, str, Curves]]:
    """Return (colour number, name, curves); a model keeps its colour in every plot."""
    measured = [(measures.model, measures.role, measures.curves) for measures in models if measures.curves][
        : len(SERIES)
    ]
    return [(n, name, curves) for n, (name, role, curves) in enumerate(measured) if roles is None or role in roles]


def _line_style(number: int) -> dict[str, Any]:
    return {"color": SERIES[number], "linestyle": DASHES[number]}


def _write_top(axes: Axes, text: str, x: float) -> None:
    """Write a text above the panel, at an x value."""
    at: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (x, 1), (0, 3), **at, ha="center", va="bottom", fontsize=9.5)


def _write_right(axes: Axes, text: str, y: float) -> None:
    """Write a text to the right of the panel, at a y value."""
    at: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(text, (1, y), (6, 0), **at, va="center")


def _day_ticks(axes: Axes, days: Sequence[date]) -> None:
    step = max(1, -(-len(days) // _MOST_TICKS))
    places = range(0, len(days), step)
    axes.set_xticks(places, [f"{days[n].day} {days[n]:%b}" for n in places])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
