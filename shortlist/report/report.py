"""The page of a run: one HTML file without external resources or scripts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shortlist.contracts import Files
from shortlist.evaluation.blessing import Blessing, read_blessing
from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.metrics.calibration import rate_error
from shortlist.evaluation.metrics.records import TITLES, Measures, Scores
from shortlist.evaluation.verdict import GateVerdict
from shortlist.report import plots
from shortlist.report.figures import Plot
from shortlist.report.page import RunPage
from shortlist.report.page_facts import broken_rules, feature_facts, near_auc, split_days, split_rows
from shortlist.report.summary import best_epoch_record, combine_engines
from shortlist.report.templates import page_environment
from shortlist.report.value_lines import RunValue, run_value
from shortlist.storage.artefacts import read_json, write_text
from shortlist.storage.tables import DayTable

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "report.html.j2"
_MISSING = "\N{EN DASH}"


def write_report(page: RunPage, out: Path) -> None:
    """Write the page of a run, finished or stopped, atomically.

    Args:
        page: Content of the page.
        out: The HTML file.

    Raises:
        IntegrityError: A folder of the page lacks a file, or a file is invalid.
    """
    write_text(out, render(page))


def render(page: RunPage) -> str:
    """Return the page as HTML."""
    verdict = GateVerdict.read(page.verdict) if page.verdict else None
    blessing = read_blessing(page.verdict / Files.BLESSING) if page.verdict else None
    models = _by_auc((*(verdict.models if verdict else ()), *page.measures))
    best = verdict.best_possible if verdict else None
    slates = choose_shown_slates(verdict, blessing)
    value = run_value(verdict, slates) if verdict else None
    hero = _headline_model(models, blessing)
    records = {model: read_json(folder / Files.MODEL) for model, folder in page.models.items()}
    return _template().render(
        page=page,
        verdict=verdict,
        blessing=blessing,
        status=_status(page, blessing),
        engine=combine_engines(step.engine for step in page.steps),
        models=models,
        best=best,
        labels=sorted(
            ((name, measures.model, head) for measures in models for name, head in measures.labels.items()),
            key=itemgetter(0),
        ),
        training_only=[(measures.model, effect) for measures in models for effect in measures.training_only],
        by_user=next((measures for measures in models if measures.gauc), None),
        metric_title=TITLES[verdict.metric] if verdict else "",
        hero=hero,
        near_auc=near_auc(hero.auc.value) if hero and hero.auc else None,
        records=records,
        rate_error=rate_error,
        best_epoch_record=best_epoch_record,
        model_plots=model_plots(models, best, None),
        retrieval=verdict.retrieval if verdict else None,
        slates=slates,
        value=value,
        value_plot=plots.value_plot(value) if value else None,
        funnel=plots.funnel_plot(verdict.retrieval, slates[1].stages if slates else ())
        if verdict and verdict.retrieval
        else None,
        training_plots=sorted(
            (plot for record in records.values() for plot in training_plots(record)),
            key=lambda plot: plot.name.startswith("importance"),
        ),
        **_log(page),
        **_table(page),
    )


def choose_shown_slates(verdict: GateVerdict | None, blessing: Blessing | None) -> tuple[str, SlateMeasures] | None:
    """Return the candidate whose slates are shown, the blessed one or the first, with the measures of its slates."""
    measured = verdict.slate_measures if verdict else {}
    blessed = blessing.blessed.model if blessing and blessing.blessed else None
    shown_model = blessed if blessed in measured else next(iter(measured), None)
    return (shown_model, measured[shown_model]) if shown_model else None


def model_plots(models: Sequence[Measures], best: Scores | None, value: RunValue | None) -> list[Plot]:
    """Return the plots that compare models: for the page, or for MLflow by `figures.write_plots`."""
    figures = (
        plots.auc_plot(models, best),
        plots.roc_plot(models),
        plots.calibration_plot(models),
        plots.scores_plot(models),
        plots.value_plot(value) if value else None,
    )
    return [figure for figure in figures if figure is not None]


def training_plots(record: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of one training, from its `model.json`."""
    kind = str(record.get("kind", "model"))
    figures = (
        plots.loss_plot(record.get("history") or [], kind, record.get("best_epoch")),
        plots.importance_plot(record.get("importance") or {}, kind),
    )
    return [figure for figure in figures if figure is not None]


def _by_auc(models: Sequence[Measures]) -> list[Measures]:
    return sorted(models, key=lambda measures: measures.auc.value if measures.auc else 0.0, reverse=True)


def _status(page: RunPage, blessing: Blessing | None) -> str:
    if page.failure is not None:
        return "stopped"
    return "blessed" if blessing and blessing.blessed else "held"


def _headline_model(models: Sequence[Measures], blessing: Blessing | None) -> Measures | None:
    """Return the model whose numbers head the page: the blessed one, or else the best candidate."""
    if blessing and blessing.blessed:
        return next((measures for measures in models if measures.model == blessing.blessed.model), None)
    return next((measures for measures in models if measures.role == "candidate" and measures.auc), None)


def _log(page: RunPage) -> dict[str, Any]:
    """Return the template's values on the log and its quarantine."""
    log = DayTable.open(page.valid_log, Files.LOG) if page.valid_log else None
    split = split_days(DayTable.open(page.table, Files.TABLE)) if page.table else {}
    days = [(part.day, part.rows, part.positives) for part in log.days] if log else []
    return {
        "log": log,
        "rules": broken_rules(page.quarantine) if page.quarantine else [],
        "split": split,
        "days_plot": plots.days_plot(days, split),
    }


def _table(page: RunPage) -> dict[str, Any]:
    """Return the template's values on the feature table."""
    if page.table is None:
        return {"features": [], "rows_of": {}}
    table = DayTable.open(page.table, Files.TABLE)
    return {"features": feature_facts(table), "rows_of": split_rows(table)}


@cache
def _template() -> Template:
    filters: dict[str, Callable[..., Any]] = {
        "count": _count,
        "share": _share,
        "seconds": _seconds,
        "moment": _moment,
        "short": _short,
        "unbroken": _nonbreaking_numbers,
    }
    return page_environment(Path(__file__).parent, filters).get_template(TEMPLATE)


def _count(number: float | None) -> str:
    """Return a count with its digits in groups, separated by narrow spaces; a dash for None."""
    return _MISSING if number is None else f"{number:,.0f}".replace(",", "\u202f")


def _share(number: float | None) -> str:
    if number is None:
        return _MISSING
    return f"{number:.1%}" if number == 0 or number >= 0.001 else "< 0.1%"


def _seconds(number: float | None) -> str:
    if number is None:
        return _MISSING
    return f"{number:.1f}\u202fs" if number < 60 else f"{int(number // 60)}\u202fmin {int(number % 60):02d}\u202fs"


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso):%-d %B %Y, %H:%M %Z}".strip() if iso else ""


def _short(number: float | None) -> str:
    """Return a number with four decimals, without decimals from 100 on; a dash for None."""
    if number is None:
        return _MISSING
    return f"{number:.4f}" if abs(number) < 100 else _count(number)


def _nonbreaking_numbers(text: str) -> str:
    """Return a sentence in which line breaks do not split numbers."""
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "\u202f", text)
