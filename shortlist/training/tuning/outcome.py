"""The output files of a search: the patch, the trials, the page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from shortlist.evaluation.metrics.records import LOWER_IS_BETTER, TITLES
from shortlist.report.figures import INK, MUTED, SERIES, Plot, figure_panels, plot
from shortlist.report.templates import page_environment
from shortlist.spec.tune import Metric
from shortlist.storage.artefacts import write_json, write_text
from shortlist.training.tuning.search import SearchOutcome, Trial

PATCH: Final = "patch.yaml"
TRIALS: Final = "trials.json"
PAGE: Final = "tuning.html"
_METRICS: Final = get_args(Metric)


def write_outcome(outcome: SearchOutcome, spec: str, folder: Path) -> list[str]:
    """Write `trials.json`, `tuning.html`, and `patch.yaml` where a trial is better; return lines for the user.

    The patch holds only the changed keys, in the form of the spec; it is not applied. The patch of an earlier search is
    removed where no trial is better.

    Args:
        outcome: The outcome of the search.
        spec: Name of the spec, as the user gave it.
        folder: Folder to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TRIALS, outcome.model_dump(mode="json"))
    write_text(folder / PAGE, _render_page(outcome, spec))
    lines = summary(outcome)
    (folder / PATCH).unlink(missing_ok=True)
    if outcome.best is not None and outcome.best.changes:
        write_text(folder / PATCH, "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(_make_patch(outcome)))
        lines += [
            f"Nothing is changed. To use it, copy {folder / PATCH} into the spec, or run",
            _make_command(outcome, spec),
        ]
    return [*lines, f"Page: {folder / PAGE}"]


def summary(outcome: SearchOutcome) -> list[str]:
    """Return a summary of the search, in a few lines."""
    states = [trial.state for trial in outcome.trials]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{outcome.model}: {len(states)} trials ({counted})" if states else f"{outcome.model}: no trial was made"]
    best, shipped = outcome.best, outcome.shipped
    if shipped is None:
        reasons = [trial.reason for trial in outcome.trials if trial.shipped]
        lines.append(f"The shipped section was not measured{': ' + reasons[-1] if reasons else ''}")
    if best is None:
        lines.append("No trial was measured, so there is nothing to compare")
    elif shipped is not None and not best.changes:
        lines.append(
            f"No trial is better than the shipped section ({_describe_metrics(shipped)} on the validation days)"
        )
    else:
        shipped_text = f"; as shipped {_describe_metrics(shipped)}" if shipped else ""
        lines.append(f"Best on the validation days: trial {best.number}, {_describe_metrics(best)}{shipped_text}")
    return lines


def _describe_metrics(trial: Trial) -> str:
    return ", ".join(trial.figures)


def _make_patch(outcome: SearchOutcome) -> dict[str, Any]:
    assert outcome.best is not None
    return {"models": {outcome.model: dict(outcome.best.changes)}}


def _make_command(outcome: SearchOutcome, spec: str) -> str:
    assert outcome.best is not None
    values = outcome.best.changes.items()
    texts = (f"models.{outcome.model}.{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in values)
    options = (f" --set {shlex.quote(text.removesuffix(chr(10)).removesuffix(chr(10) + '...'))}" for text in texts)
    return f"  shortlist run {shlex.quote(spec)}{''.join(options)}"


def _render_page(outcome: SearchOutcome, spec: str) -> str:
    keys = list(dict.fromkeys(key for trial in outcome.trials for key in trial.changes))
    page = page_environment(Path(__file__).parent, {}).get_template("tuning.html.j2")
    return page.render(
        spec=spec,
        result=outcome,
        found=summary(outcome),
        plots=[plot for plot in (history_plot(outcome), importance_plot(outcome)) if plot is not None],
        keys=keys,
        metrics={name: TITLES[name] for name in _METRICS},
    )


def history_plot(outcome: SearchOutcome) -> Plot | None:
    """Return every trial's metric and the best so far; None when nothing was measured."""
    measured = [(trial.number, trial.value) for trial in outcome.trials if trial.value is not None]
    if not measured:
        return None
    better_of = min if outcome.metric in LOWER_IS_BETTER else max
    best = [better_of(value for _, value in measured[: place + 1]) for place in range(len(measured))]
    numbers, values = zip(*measured, strict=True)
    name = TITLES[outcome.metric]
    with figure_panels(6.5, 3.4) as (figure, (axes,)):
        axes.plot(numbers, best, color=SERIES[0], drawstyle="steps-post", label="best so far")
        axes.scatter(numbers, values, color=MUTED, s=14, label="trial")
        if outcome.shipped is not None and outcome.shipped.value is not None:
            axes.axhline(outcome.shipped.value, color=INK, linewidth=0.8, linestyle=(0, (5, 1.5)), label="as shipped")
        axes.set(xlabel="trial", ylabel=f"{name} on the validation days")
        axes.legend(loc="best")
        return plot(figure, "history", "History", "Trials that were stopped early or failed have no point.")


def importance_plot(outcome: SearchOutcome) -> Plot | None:
    """Return a plot of each key's share of the metric's variation; None with too few trials."""
    if not outcome.importance:
        return None
    shares = list(outcome.importance.items())[::-1]
    with figure_panels(6.5, 0.6 + 0.35 * len(shares)) as (figure, (axes,)):
        axes.barh([key for key, _ in shares], [share for _, share in shares], color=SERIES[0], height=0.6)
        axes.set(xlabel="share of the variation", xlim=(0, 1))
        axes.grid(visible=False, axis="y")
        caption = "By functional ANOVA over the finished trials; with few of them, a rough estimate."
        return plot(figure, "importance", "Importance", caption)
