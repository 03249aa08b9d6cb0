"""The page of a run: one file that opens anywhere, with nothing to fetch and nothing that runs."""

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
from shortlist.evaluation.calibration import rate_error
from shortlist.evaluation.records import TITLES, Measures, Scores
from shortlist.evaluation.slates import SlateMeasures
from shortlist.evaluation.verdict import Verdict
from shortlist.report import plots
from shortlist.report.figures import Plot
from shortlist.report.page import RunPage
from shortlist.report.page_facts import broken_rules, feature_facts, split_days, split_rows
from shortlist.report.summary import best_line, engine_of_all
from shortlist.report.templates import page_environment
from shortlist.storage.artefacts import read_json, write_text
from shortlist.storage.tables import DayTable

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE = "report.html.j2"
_NOTHING = "\N{EN DASH}"


def write_report(page: RunPage, out: Path) -> None:
    """Write the page of a run, finished or stopped, whole or not at all.

    Args:
        page: What there is to show.
        out: The HTML file.

    Raises:
        IntegrityError: A folder that is given does not hold what it should.
    """
    write_text(out, render(page))


def render(page: RunPage) -> str:
    """Return the page as HTML."""
    verdict = Verdict.read(page.verdict) if page.verdict else None
    blessing = read_blessing(page.verdict / Files.BLESSING) if page.verdict else None
    models = _by_auc((*(verdict.models if verdict else ()), *page.measures))
    best = verdict.best_possible if verdict else None
    slates = slates_of(verdict, blessing)
    records = {model: read_json(folder / Files.MODEL) for model, folder in page.models.items()}
    return _template().render(
        page=page,
        verdict=verdict,
        blessing=blessing,
        status=_status(page, blessing),
        engine=engine_of_all(step.engine for step in page.steps),
        models=models,
        best=best,
        labels=sorted(
            ((name, one.model, head) for one in models for name, head in one.labels.items()), key=itemgetter(0)
        ),
        training_only=[(one.model, effect) for one in models for effect in one.training_only],
        by_user=next((one for one in models if one.gauc), None),
        metric_title=TITLES[verdict.metric] if verdict else "",
        hero=_headline_model(models, blessing),
        records=records,
        rate_error=rate_error,
        best_line=best_line,
        model_plots=model_plots(models, best),
        retrieval=verdict.retrieval if verdict else None,
        slates=slates,
        funnel=plots.funnel_plot(verdict.retrieval, slates[1].stages if slates else ())
        if verdict and verdict.retrieval
        else None,
        training_plots=sorted(
            (one for record in records.values() for one in training_plots(record)),
            key=lambda one: one.name.startswith("importance"),
        ),
        **_log(page),
        **_table(page),
    )


def slates_of(verdict: Verdict | None, blessing: Blessing | None) -> tuple[str, SlateMeasures] | None:
    """Return the candidate whose slates are shown, the blessed one or the first, with what was measured of them."""
    measured = verdict.slate_measures if verdict else {}
    blessed = blessing.blessed.model if blessing and blessing.blessed else None
    shown = blessed if blessed in measured else next(iter(measured), None)
    return (shown, measured[shown]) if shown else None


def model_plots(models: Sequence[Measures], best: Scores | None) -> list[Plot]:
    """Return the pictures that compare models: for the page, or for MLflow through `figures.write_plots`."""
    drawn = (
        plots.auc_plot(models, best),
        plots.roc_plot(models),
        plots.calibration_plot(models),
        plots.scores_plot(models),
    )
    return [one for one in drawn if one is not None]


def training_plots(record: Mapping[str, Any]) -> list[Plot]:
    """Return the pictures of one training, from its `model.json`."""
    kind = str(record.get("kind", "model"))
    drawn = (
        plots.loss_plot(record.get("history") or [], kind, record.get("best_epoch")),
        plots.importance_plot(record.get("importance") or {}, kind),
    )
    return [one for one in drawn if one is not None]


def _by_auc(models: Sequence[Measures]) -> list[Measures]:
    return sorted(models, key=lambda one: one.auc.value if one.auc else 0.0, reverse=True)


def _status(page: RunPage, blessing: Blessing | None) -> str:
    if page.failure is not None:
        return "stopped"
    return "blessed" if blessing and blessing.blessed else "held"


def _headline_model(models: Sequence[Measures], blessing: Blessing | None) -> Measures | None:
    """Return the model whose numbers stand on top: the blessed one, else the best candidate."""
    if blessing and blessing.blessed:
        return next((one for one in models if one.model == blessing.blessed.model), None)
    return next((one for one in models if one.role == "candidate" and one.auc), None)


def _log(page: RunPage) -> dict[str, Any]:
    """Return what is known of the log and its quarantine."""
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
    """Return what is known of the feature table."""
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
    """Digits in groups, parted by a narrow space; a dash for nothing."""
    return _NOTHING if number is None else f"{number:,.0f}".replace(",", "\u202f")


def _share(number: float | None) -> str:
    if number is None:
        return _NOTHING
    return f"{number:.1%}" if number == 0 or number >= 0.001 else "< 0.1%"


def _seconds(number: float | None) -> str:
    if number is None:
        return _NOTHING
    return f"{number:.1f}\u202fs" if number < 60 else f"{int(number // 60)}\u202fmin {int(number % 60):02d}\u202fs"


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso):%-d %B %Y, %H:%M %Z}".strip() if iso else ""


def _short(number: float | None) -> str:
    """Four decimals, none for large numbers; a dash for nothing."""
    if number is None:
        return _NOTHING
    return f"{number:.4f}" if abs(number) < 100 else _count(number)


def _nonbreaking_numbers(text: str) -> str:
    """A sentence whose numbers are not torn apart at the end of a line."""
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "\u202f", text)
