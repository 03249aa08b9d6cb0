"""The names, files and errors at which the stages of a run meet."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final


class ShortlistError(ValueError):
    """A user's mistake or a refused input: what, where, got, wanted, next step. Never shown with a traceback."""


class DataError(ShortlistError):
    """The data break a rule; the run stops and what was found stays on disk."""


class Columns:
    """Column names that Shortlist gives; a spec may not declare them for something else."""

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
    """Int64, in a feature table: the same in the rows of a slate, unique within a day; absent when `data.slate` is not
    declared."""
    BEST: Final = "true_probability"
    """Float64, only in a generated log: the planted click probability. Never a feature."""
    SERVED_VERSION: Final = "served_version"
    """Int64: registered version that scored a collected row; null in rows of the declared source. Never a feature."""
    SERVED_TRACK: Final = "served_track"
    """stable or canary, as SERVED_VERSION."""
    COUNTS_DELAY: Final = "counts_delay_ms"
    """Float32, as SERVED_VERSION: how far behind the counts of the open tiles were that scored the row; null where none
    were read."""
    WEIGHT: Final = "impression_weight"
    """Float32: impressions for which a row stands; more than 1 where the prediction log keeps a sample."""
    EVERYTHING: Final = "everything"
    """Int64, always 0: the key of statistics over all rows."""
    ROWS: Final = "rows"
    """Int64: impressions counted in a statistic."""
    VALID_FROM: Final = "event_timestamp"
    """Datetime("us", "UTC"): the moment from which a row of a Feast view holds (the start of a day)."""
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
    """Return the name under which a further label's score is answered, logged and kept."""
    return f"score_{label}"


RESERVED: Final = frozenset(
    value for name, value in vars(Columns).items() if not name.startswith("_") and isinstance(value, str)
)


LIVE_COLUMNS: Final = (Columns.SERVED_VERSION, Columns.SERVED_TRACK)
"""Columns that tell which model served a row; only in a log with collected rows."""


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
    """Beside the scores: what features that serving fixes do to them; only of a model that reads one."""
    PROBLEM: Final = "problem.json"
    """In place of the scores: why there are none."""
    SKEW: Final = "skew.json"
    CHAMPION: Final = "champion.json"
    EXPORT_VALIDATION: Final = "export_validation.json"
    GATES: Final = "gates.json"
    BLESSING: Final = "blessing.json"
    SUMMARY: Final = "summary.json"
    SERVED_FEATURES: Final = "served_features.json"
    COMPARISON: Final = "compare.json"
    REPORT: Final = "report.html"
    PREPROCESSING: Final = "preprocessing"
    """Folder inside a model folder: what the model needs besides its weights to read rows."""


_LONGEST_NAME: Final = 200


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known word, or an empty string.

    >>> did_you_mean("embeding_dim", ["embedding_dim", "epochs"])
    "; did you mean 'embedding_dim'?"
    """
    if len(word) > _LONGEST_NAME:  # no typing error, and comparing takes long
        return ""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
