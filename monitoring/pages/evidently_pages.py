"""Evidently's pages of a window: drift of its columns, and quality of its model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from monitoring.pages.evidently_columns import DrawnColumn, make_drawn_columns, sample_requests, scores_of_one_version
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
"""Restores the outline of the focused element, which Evidently hides."""
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

    Evidently's own tests report drift of most keys when there is none, and its bins differ from the reference's: each
    column is judged by the index over the reference's bins instead, so that the page agrees with the findings up to
    the sample. Scores and labels are those of the version with most rows. A window with labels of one class has no
    quality page.

    The import takes about 4 s, once per process, and 20 columns with 5 000 rows on a side take 1 to 2 s. A page has 4
    to 5 MB, nearly all of it Evidently's scripts.

    Args:
        window: The window with its rows.
        reference: The reference of the model that most rows come from.
        model: Name of the model in the reference.
        compared: Compared columns with their kinds.
        out: Folder of the pages.
        rows: Most rows on either side; the window's are whole requests.
        seed: Seed of the samples.
        findings: Findings of the window, for their critical values; a column without one has the default `max_index`.

    Returns:
        The paths of the pages.

    Raises:
        ShortlistError: There is nothing to draw, or Evidently fails. A page that exists already stays.
    """
    live = scores_of_one_version(sample_requests(window.rows, rows, seed))
    scores = pl.col(f"score:{model}") if f"score:{model}" in reference.sample.columns else pl.lit(None)
    scored = reference.sample.with_columns(scores.cast(pl.Float64).alias(SCORE))
    columns = tuple(make_drawn_columns(live, _sample_rows(scored, rows, seed), reference, model, compared))
    title = f"{reference.spec}, {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M}, {model}"
    if not columns:
        raise ShortlistError(f"{out}: nothing to draw for {title}: no compared column has values on both sides")
    written = [_write_page(out / DRIFT, f"Drift: {title}", lambda: _draw_drift(columns, findings))]
    live_scores, test_scores = (
        _labelled_scores(live),
        _labelled_scores(_sample_rows(scored.drop_nulls(SCORE), rows, seed)),
    )
    if live_scores is not None:
        written.append(_write_page(out / QUALITY, f"Quality: {title}", lambda: _draw_quality(live_scores, test_scores)))
    return tuple(written)


def _sample_rows(rows: pl.DataFrame, max_rows: int, seed: int) -> pl.DataFrame:
    return rows.sample(min(max_rows, rows.height), seed=seed)


def _labelled_scores(rows: pl.DataFrame) -> pl.DataFrame | None:
    """Return labels and scores; None when the labels have one class, and of replayed slates, which have none."""
    if Columns.LABEL not in rows.columns:
        return None
    labelled = rows.select(pl.col(Columns.LABEL).cast(pl.Int64), SCORE).drop_nulls()
    return labelled if labelled[Columns.LABEL].n_unique() > 1 else None


def _draw_drift(columns: Sequence[DrawnColumn], findings: Sequence[Finding]) -> str:
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    critical = {
        finding.column: finding.critical for finding in findings if finding.kind in ("numeric", "categorical", "score")
    }
    preset = DataDriftPreset(
        columns=[column.name for column in columns],
        per_column_method={column.name: _register_index_test(column) for column in columns},
        per_column_threshold={column.name: critical.get(column.name, DriftLimits().max_index) for column in columns},
        drift_share=round(0.5 / len(columns), 4),  # one column is enough
    )
    definition = DataDefinition(
        numerical_columns=[column.name for column in columns if column.numeric],
        categorical_columns=[column.name for column in columns if not column.numeric],
    )
    live, reference = ([getattr(column, side) for column in columns] for side in ("live", "reference_values"))
    live_dataset, reference_dataset = (
        Dataset.from_pandas(pl.DataFrame(side).to_pandas(), definition) for side in (live, reference)
    )
    return str(Report([preset]).run(live_dataset, reference_dataset).get_html_str(as_iframe=False))


def _register_index_test(column: DrawnColumn) -> str:
    """Register the index of a column as a test of Evidently; return the test's name."""
    from evidently.legacy.calculations.stattests import StatTest, register_stattest
    from evidently.legacy.core import ColumnType

    def compare_index(_: Any, live: Any, __: Any, critical: float) -> tuple[float, bool]:
        index = column.index(live)
        return index, index > critical

    kind = ColumnType.Numerical if column.numeric else ColumnType.Categorical
    test = StatTest(f"index of {column.name}", "Index over the reference's bins", allowed_feature_types=[kind])
    register_stattest(test, default_impl=compare_index)
    return str(test.name)


def _draw_quality(live: pl.DataFrame, test: pl.DataFrame | None) -> str:
    from evidently import BinaryClassification, DataDefinition, Dataset, Report
    from evidently.presets import ClassificationPreset

    definition = DataDefinition(
        classification=[BinaryClassification(target=Columns.LABEL, prediction_probas=SCORE)],
        numerical_columns=[SCORE],
        categorical_columns=[Columns.LABEL],
    )
    live_dataset, test_dataset = (
        None if side is None else Dataset.from_pandas(side.to_pandas(), definition) for side in (live, test)
    )
    # Rows with a score above the mean label rate are predicted positive, since few scores exceed one half.
    preset = ClassificationPreset(probas_threshold=(live if test is None else test)[Columns.LABEL].mean())
    return str(Report([preset]).run(live_dataset, test_dataset).get_html_str(as_iframe=False))


def _write_page(path: Path, title: str, draw: Callable[[], str]) -> Path:
    try:
        with _quiet():
            html = draw()
    except Exception as error:
        raise ShortlistError(
            f"{path}: Evidently could not draw this page ({type(error).__name__}: {error}). The window's own report has"
            " all numbers. If another version of Evidently is installed, install that of requirements/run.txt."
        ) from error
    heading = _HEADING.format(escape(title))
    html = html.replace("<head>", f"<head><title>{escape(title)}</title>{_STYLE}", 1)
    # Screen readers jump to a page's main element and heading, which Evidently does not write. The script fixes what
    # Evidently draws in the browser.
    head, _, tail = html.replace("<body>", f"<body><main>{heading}", 1).rpartition("</body>")
    html = f"{head}</main><script>{_SCRIPT.read_text(encoding='utf-8')}</script></body>{tail}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    # Only Evidently's own server sends telemetry; this disables it as well.
    os.environ["DO_NOT_TRACK"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of Evidently about its own dependencies
        yield
