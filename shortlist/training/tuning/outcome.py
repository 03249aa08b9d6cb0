"""What a search leaves: the patch, the trials, the page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from shortlist.evaluation.records import LOWER_IS_BETTER, TITLES
from shortlist.report.figures import INK, MUTED, SERIES, Plot, drawn, plot
from shortlist.report.templates import page_environment
from shortlist.spec.tune import Metric
from shortlist.storage.artefacts import write_json, write_text
from shortlist.training.tuning.search import Result, Trial

PATCH: Final = "patch.yaml"
TRIALS: Final = "trials.json"
PAGE: Final = "tuning.html"
_METRICS: Final = get_args(Metric)


def write_outcome(result: Result, spec: str, folder: Path) -> list[str]:
    """Write `trials.json`, `tuning.html`, and `patch.yaml` where something is better; return what to tell the user.

    The patch holds the changed keys alone, as they would stand in the spec; nothing applies it. That of an earlier
    search is removed where this one found nothing.

    Args:
        result: The trials.
        spec: As the user named it.
        folder: Where to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TRIALS, result.model_dump(mode="json"))
    write_text(folder / PAGE, _page(result, spec))
    lines = summary(result)
    (folder / PATCH).unlink(missing_ok=True)
    if result.best is not None and result.best.changes:
        write_text(folder / PATCH, "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(_patch(result)))
        lines += [f"Nothing is changed. To use it, copy {folder / PATCH} into the spec, or run", _command(result, spec)]
    return [*lines, f"Page: {folder / PAGE}"]


def summary(result: Result) -> list[str]:
    """Return in a few lines what was found."""
    states = [trial.state for trial in result.trials]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{result.model}: {len(states)} trials ({counted})" if states else f"{result.model}: no trial was made"]
    best, shipped = result.best, result.shipped
    if shipped is None:
        reasons = [trial.reason for trial in result.trials if trial.shipped]
        lines.append(f"The shipped section was not measured{': ' + reasons[-1] if reasons else ''}")
    if best is None:
        lines.append("No trial was measured, so there is nothing to compare")
    elif shipped is not None and not best.changes:
        lines.append(f"No trial is better than the shipped section ({_measured(shipped)} on the validation days)")
    else:
        against = f"; as shipped {_measured(shipped)}" if shipped else ""
        lines.append(f"Best on the validation days: trial {best.number}, {_measured(best)}{against}")
    return lines


def _measured(trial: Trial) -> str:
    return ", ".join(trial.figures)


def _patch(result: Result) -> dict[str, Any]:
    assert result.best is not None
    return {"models": {result.model: dict(result.best.changes)}}


def _command(result: Result, spec: str) -> str:
    assert result.best is not None
    values = result.best.changes.items()
    texts = (f"models.{result.model}.{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in values)
    options = (f" --set {shlex.quote(text.removesuffix(chr(10)).removesuffix(chr(10) + '...'))}" for text in texts)
    return f"  shortlist run {shlex.quote(spec)}{''.join(options)}"


def _page(result: Result, spec: str) -> str:
    keys = list(dict.fromkeys(key for trial in result.trials for key in trial.changes))
    page = page_environment(Path(__file__).parent, {}).get_template("tuning.html.j2")
    return page.render(
        spec=spec,
        result=result,
        found=summary(result),
        plots=[one for one in (history_plot(result), importance_plot(result)) if one is not None],
        keys=keys,
        metrics={name: TITLES[name] for name in _METRICS},
    )


def history_plot(result: Result) -> Plot | None:
    """Return every trial's metric and the best so far; None when nothing was measured."""
    measured = [(trial.number, trial.value) for trial in result.trials if trial.value is not None]
    if not measured:
        return None
    better = min if result.metric in LOWER_IS_BETTER else max
    best = [better(value for _, value in measured[: place + 1]) for place in range(len(measured))]
    numbers, values = zip(*measured, strict=True)
    name = TITLES[result.metric]
    with drawn(6.5, 3.4) as (figure, (axes,)):
        axes.plot(numbers, best, color=SERIES[0], drawstyle="steps-post", label="best so far")
        axes.scatter(numbers, values, color=MUTED, s=14, label="trial")
        if result.shipped is not None and result.shipped.value is not None:
            axes.axhline(result.shipped.value, color=INK, linewidth=0.8, linestyle=(0, (5, 1.5)), label="as shipped")
        axes.set(xlabel="trial", ylabel=f"{name} on the validation days")
        axes.legend(loc="best")
        return plot(figure, "history", "History", "Trials that were stopped early or failed have no point.")


def importance_plot(result: Result) -> Plot | None:
    """Return what share of the metric's variation each key explains; None with too few trials."""
    if not result.importance:
        return None
    shares = list(result.importance.items())[::-1]
    with drawn(6.5, 0.6 + 0.35 * len(shares)) as (figure, (axes,)):
        axes.barh([key for key, _ in shares], [share for _, share in shares], color=SERIES[0], height=0.6)
        axes.set(xlabel="share of the variation", xlim=(0, 1))
        axes.grid(visible=False, axis="y")
        caption = "By functional ANOVA over the finished trials; with few of them, a rough estimate."
        return plot(figure, "importance", "Importance", caption)
