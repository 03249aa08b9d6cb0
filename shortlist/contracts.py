"""Column names, file names and errors that the stages of a run share."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final


class ShortlistError(ValueError):
    """A user's mistake or a refused input: what, where, got, wanted, next step. Shown without a traceback."""


class NotMeasuredError(ShortlistError):
    """A measurement failed: nothing is known of what it measures.

    It is never a result of a gate; the next run measures again.
    """


class StoreUnavailableError(ShortlistError):
    """A store cannot be reached now; the same call may succeed later.

    On a cluster a step that fails for it is run again, as often as `runtime.cluster.tasks.<step>.retries` says.
    """


class DataError(ShortlistError):
    """The data break a rule; the run stops and its findings stay on disk."""


class Columns:
    """Names of Shortlist's own columns; a spec may not declare them for something else."""

    LABEL: Final = "label"
    """Int8, 0 or 1."""
    TIME: Final = "event_time"
    """Datetime("us", "UTC")."""
    DAY: Final = "day"
    """Date in the clock's own timezone; the unit of statistics, of encodings and of the split."""
    IMPRESSION: Final = "impression_id"
    """Int64, unique in a log."""
    USER: Final = "user"
    """The declared user key in a feature table; absent when the log declares none."""
    ITEM: Final = "item"
    """The declared item key in a feature table; absent when the log declares none."""
    SLATE: Final = "slate_number"
    """Int64, in a feature table: number of the row's slate, unique within a day; absent when `data.slate` is not
    declared."""
    BEST: Final = "true_probability"
    """Float64, only in a generated log: the planted click probability. Never a feature."""
    SERVED_VERSION: Final = "served_version"
    """Int64: registered version that scored a collected row; null in rows of the declared source. Never a feature."""
    SERVED_TRACK: Final = "served_track"
    """Track that scored a collected row, stable or canary; null like SERVED_VERSION."""
    COUNTS_DELAY: Final = "counts_delay_ms"
    """Float32: delay of the counts of open tiles when a collected row was scored; null where none were read."""
    UNCOUNTED: Final = "uncounted"
    """Boolean: the counts of open tiles lack a collected row, being beyond a share; null where none says it."""
    WEIGHT: Final = "impression_weight"
    """Float32: number of impressions that a row represents; more than 1 where the prediction log is sampled."""
    PROPENSITY: Final = "shown_propensity"
    """Float32, in a feature table: probability of the item at its place; absent when `data.propensity` is not declared.
    Never a feature."""
    POSITION: Final = "shown_position"
    """Int32, in a feature table: place of the row; absent when `data.position` is not declared. Never a feature."""
    GLOBAL_KEY: Final = "everything"
    """Int64, always 0: the key of statistics over all rows."""
    ROWS: Final = "rows"
    """Int64: impressions counted in a statistic."""
    VALID_FROM: Final = "event_timestamp"
    """Datetime("us", "UTC"): time from which a row of a Feast view is valid (the start of a day)."""
    SOURCE_FILE: Final = "source_file"
    SOURCE_LINE: Final = "source_line"
    RULE: Final = "rule"
    DETAIL: Final = "detail"


def label_column(label: str) -> str:
    """Return the column of a feature table that holds a further label (`data.labels`): Int8, 0 or 1."""
    return f"label_{label}"


def best_column(name: str) -> str:
    """Return the column with the planted probability of a further outcome, or of a further label; as `Columns.BEST`."""
    return f"{Columns.BEST}_{name}"


def score_column(label: str) -> str:
    """Return the name of a further label's score in answers, logs and files."""
    return f"score_{label}"


RESERVED: Final = frozenset(
    value for name, value in vars(Columns).items() if not name.startswith("_") and isinstance(value, str)
)


LIVE_COLUMNS: Final = (Columns.SERVED_VERSION, Columns.SERVED_TRACK)
"""Columns with the model that served a row; only in a log with collected rows."""


class Files:
    """File names inside artefact folders."""

    LOG: Final = "log.json"
    QUARANTINE: Final = "quarantine.parquet"
    STATISTICS: Final = "statistics.json"
    FEATURES: Final = "features.json"
    TABLE: Final = "table.json"
    MANIFEST: Final = "manifest.json"
    MODEL: Final = "model.json"
    SCORES: Final = "scores.parquet"
    TRAINING_ONLY: Final = "training_only.json"
    """Beside the scores: the effect of training-only features on them; only for a model that reads one."""
    PROBLEM: Final = "problem.json"
    """In place of the scores: the reason why there are none."""
    SKEW: Final = "skew.json"
    CHAMPION: Final = "champion.json"
    EXPORT_VALIDATION: Final = "export_validation.json"
    GATES: Final = "gates.json"
    BLESSING: Final = "blessing.json"
    SUMMARY: Final = "summary.json"
    SPEC: Final = "spec.json"
    """The spec that a run's graph was built for, as canonical JSON."""
    SERVED_FEATURES: Final = "served_features.json"
    COMPARISON: Final = "compare.json"
    REPORT: Final = "report.html"
    PREPROCESSING: Final = "preprocessing"
    """Folder inside a model folder with the model's preprocessing of rows."""


_MAX_NAME_LENGTH: Final = 200


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known name, or an empty string.

    >>> did_you_mean("embeding_dim", ["embedding_dim", "epochs"])
    "; did you mean 'embedding_dim'?"
    """
    if len(name) > _MAX_NAME_LENGTH:  # not a typo, and comparing takes long
        return ""
    close_matches = get_close_matches(name, list(known_names), n=1, cutoff=0.6)
    return f"; did you mean '{close_matches[0]}'?" if close_matches else ""
