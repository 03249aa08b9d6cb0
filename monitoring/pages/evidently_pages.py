"""Evidently's pages of a window: its columns beside the reference's, and how good its model was."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from monitoring.pages.evidently_columns import DrawnColumn, drawn_columns, sample_requests, scores_of_one_version
from monitoring.reference.distributions import Kind
from monitoring.windows.kpi import SCORE
from monitoring.windows.records import Finding
from shortlist.contracts import Columns, ShortlistError
from shortlist.spec.monitoring import DriftLimits
from shortlist.storage.artefacts import write_text

if TYPE_CHECKING:
    from monitoring.reference.reference import Reference
    from monitoring.windows.windows import LiveWindow

DRIFT: Final = "drift.html"
QUALITY: Final = "quality.html"
_HEADING: Final = '<h1 style="margin:0;padding:12px 24px;background:#fff;color:#111;font:16px sans-serif">{}</h1>'
_STYLE: Final = (
    "<style>:focus-visible{outline:3px solid #1a73e8 !important;outline-offset:2px}"
    ".for-screen-readers{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}</style>"
)
"""Evidently hides the outline of what has the keyboard's focus."""
_SCRIPT: Final = Path(__file__).with_name("evidently_accessibility.js")


def write_pages(
    window: LiveWindow,
    reference: Reference,
    model: str,
    compared: Mapping[str, Kind],
    out: Path,
    rows: int = 5_000,
    seed: int = 0,
    findings: Sequence[Finding] = (),
) -> tuple[Path, ...]:
    """Write `drift.html` and `quality.html`; each opens from disk without a network.

    Evidently's own tests call most keys drifted when nothing is, and its bins are not ours: each column is judged by
    the index over the reference's bins instead, so that the page agrees with the findings but for the sample. Scores
    and labels are those of the version that most rows come from. The quality page is left out for a window of one
    class.

    Costs about 4 s for the import, once in a process, and 1 to 2 s for 20 columns and 5 000 rows on a side. A page has
    4 to 5 MB, nearly all of it Evidently's scripts.

    Args:
        window: With its rows.
        reference: Of the model that most rows come from.
        model: Its name, as in the reference.
        compared: Columns that are compared, and how.
        out: Folder.
        rows: Most rows on either side; of the window's, whole requests.
        seed: Of the samples.
        findings: Of the window, for their critical values; a column without one has the default `max_index`.

    Returns:
        The files.

    Raises:
        ShortlistError: There is nothing to draw, or Evidently fails. A page that was written before stays.
    """
    live = scores_of_one_version(sample_requests(window.rows, rows, seed))
    scores = pl.col(f"score:{model}") if f"score:{model}" in reference.sample.columns else pl.lit(None)
    scored = reference.sample.with_columns(scores.cast(pl.Float64).alias(SCORE))
    columns = tuple(drawn_columns(live, _some(scored, rows, seed), reference, model, compared))
    title = f"{reference.spec}, {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M}, {model}"
    if not columns:
        raise ShortlistError(f"{out}: nothing to draw for {title}: no compared column has values on both sides")
    written = [_write(out / DRIFT, f"Drift: {title}", lambda: _draw_drift(columns, findings))]
    known, tested = _judged(live), _judged(_some(scored.drop_nulls(SCORE), rows, seed))
    if known is not None:
        written.append(_write(out / QUALITY, f"Quality: {title}", lambda: _draw_quality(known, tested)))
    return tuple(written)


def _some(rows: pl.DataFrame, most: int, seed: int) -> pl.DataFrame:
    return rows.sample(min(most, rows.height), seed=seed)


def _judged(rows: pl.DataFrame) -> pl.DataFrame | None:
    """Return labels and scores; None with one class."""
    known = rows.select(pl.col(Columns.LABEL).cast(pl.Int64), SCORE).drop_nulls()
    return known if known[Columns.LABEL].n_unique() > 1 else None


def _draw_drift(columns: Sequence[DrawnColumn], findings: Sequence[Finding]) -> str:
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    critical = {one.column: one.critical for one in findings if one.kind in ("numeric", "categorical", "score")}
    preset = DataDriftPreset(
        columns=[column.name for column in columns],
        per_column_method={column.name: _taught(column) for column in columns},
        per_column_threshold={one.name: critical.get(one.name, DriftLimits().max_index) for one in columns},
        drift_share=round(0.5 / len(columns), 4),  # one column is enough
    )
    definition = DataDefinition(
        numerical_columns=[column.name for column in columns if column.numeric],
        categorical_columns=[column.name for column in columns if not column.numeric],
    )
    live, then = ([getattr(column, side) for column in columns] for side in ("live", "then"))
    now, before = (Dataset.from_pandas(pl.DataFrame(side).to_pandas(), definition) for side in (live, then))
    return str(Report([preset]).run(now, before).get_html_str(as_iframe=False))


def _taught(column: DrawnColumn) -> str:
    """Teach Evidently the index of a column; return the name that it has there."""
    from evidently.legacy.calculations.stattests import StatTest, register_stattest
    from evidently.legacy.core import ColumnType

    def judge(_: Any, live: Any, __: Any, critical: float) -> tuple[float, bool]:
        index = column.index(live)
        return index, index > critical

    kind = ColumnType.Numerical if column.numeric else ColumnType.Categorical
    test = StatTest(f"index of {column.name}", "Index over the reference's bins", allowed_feature_types=[kind])
    register_stattest(test, default_impl=judge)
    return str(test.name)


def _draw_quality(live: pl.DataFrame, tested: pl.DataFrame | None) -> str:
    from evidently import BinaryClassification, DataDefinition, Dataset, Report
    from evidently.presets import ClassificationPreset

    definition = DataDefinition(
        classification=[BinaryClassification(target=Columns.LABEL, prediction_probas=SCORE)],
        numerical_columns=[SCORE],
        categorical_columns=[Columns.LABEL],
    )
    now, then = (None if side is None else Dataset.from_pandas(side.to_pandas(), definition) for side in (live, tested))
    # Called positive is what is likelier than the average row: few scores ever pass one half.
    preset = ClassificationPreset(probas_threshold=(live if tested is None else tested)[Columns.LABEL].mean())
    return str(Report([preset]).run(now, then).get_html_str(as_iframe=False))


def _write(path: Path, title: str, draw: Callable[[], str]) -> Path:
    try:
        with _quiet():
            html = draw()
    except Exception as error:
        raise ShortlistError(
            f"{path}: Evidently could not draw this page ({type(error).__name__}: {error}). The window's report has the"
            " numbers; install the pinned version (requirements/run.txt) and monitor again for the page."
        ) from error
    heading = _HEADING.format(escape(title))
    html = html.replace("<head>", f"<head><title>{escape(title)}</title>{_STYLE}", 1)
    # Screen readers jump to a page's main part and to its heading; Evidently writes neither. What it draws in the
    # browser is mended there.
    before, _, after = html.replace("<body>", f"<body><main>{heading}", 1).rpartition("</body>")
    html = f"{before}</main><script>{_SCRIPT.read_text(encoding='utf-8')}</script></body>{after}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    # Drawing sends nothing; only Evidently's own server does, and with this not even that.
    os.environ["DO_NOT_TRACK"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, of their dependencies: nothing that a reader could mend
        yield
