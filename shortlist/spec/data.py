"""The `data` section: source, columns, clock, side tables, rules and split of the log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from math import ceil
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from shortlist.contracts import LIVE_COLUMNS, RESERVED, did_you_mean, label_column, score_column
from shortlist.spec.base import Section, expand_names
from shortlist.spec.generated_options import (
    GeneratedContent,
    GeneratedLifetime,
    GeneratedLikes,
    GeneratedPositionBias,
    GeneratedRecommender,
)
from shortlist.spec.log_shape import Explode, FurtherLabel, Positive
from shortlist.spec.text.durations import Duration
from shortlist.spec.text.time_format import TimeFormat

if TYPE_CHECKING:
    import polars as pl

Share = Annotated[float, Field(ge=0.0, le=1.0)]
LabelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
"""What a further label is called: in models, scores, the prediction log, reports and MLflow."""
ColumnType = Literal["integer", "number", "string", "hex", "date", "tags", "vector"]
Delimiter = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^[\t !#-~]$")]
FileFormat = Literal["auto", "csv", "tsv", "jsonl", "parquet", "npz"]
TableRule = Literal[
    "quarantined_share",
    "duplicate_share",
    "enough_rows",
    "null_share",
    "volume",
    "label_rate",
    "freshness",
    "leakage",
    "randomized_rows_vary",
    "propensities_sum_to_one",
    "side_tables",
]
"""Rules of a log as a whole; without a valid row, both labels and days for the split nothing can be trained."""


_PLACEMENT_TYPES: Final[dict[str, ColumnType]] = {
    "position": "integer",
    "propensity": "number",
    "policy": "string",
    "randomized": "integer",
}


def null_texts(declared: Iterable[str]) -> frozenset[str]:
    """Return the texts that mean "no value"; the same for training and serving."""
    return frozenset(("", *declared))


class LogFiles(Section):
    """A log that somebody else writes, in files of any form."""

    null_values: tuple[str, ...] = ("",)
    """Texts that mean "no value", in the log and in requests; an empty text always does."""


class FileSource(LogFiles):
    """A log in files."""

    kind: Literal["files"] = "files"
    """Read files."""
    path: str = ""
    """File, glob or folder, relative to the data folder of the run; empty: that folder or file itself."""
    format: FileFormat = "auto"
    """`auto` uses the file's name; .gz and .zst are decompressed while reading."""
    header: bool = True
    """Whether the first line of a CSV or TSV names the columns; without it they come in declared order."""
    delimiter: Delimiter | None = None
    """Character between the fields of a CSV or TSV file, such as `;` or `|`; null: a comma, in TSV a tab."""


class DeltaSource(LogFiles):
    """A log in a Delta table, read with the schema of one version: a column that was added later is null before."""

    kind: Literal["delta"]
    """Read a Delta table."""
    path: str = ""
    """Folder of the table, relative to the data folder of the run; empty: that folder itself."""
    version: int | None = Field(default=None, ge=0)
    """Version of the table; null: the newest when a run begins."""


class Drift(Section):
    """A change planted into a generated log from one day on."""

    kind: Literal["new_items", "changed_tastes", "broken_column", "volume_collapse"]
    """What changes: unseen items appear, users like other tags, a column turns to nulls, or most traffic vanishes."""
    from_day: int = Field(ge=1)
    """First day of the change, counted from 0."""
    until_day: int | None = Field(default=None, ge=2)
    """First day after the change (only for broken_column and volume_collapse); null: it never ends."""
    strength: Share = 0.5
    """Share of the items, users, rows or traffic that change."""
    column: str = "duration"
    """The column that breaks (only for broken_column)."""

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Self:
        if self.until_day is not None and self.kind in ("new_items", "changed_tastes"):
            raise ValueError(f"until_day: {self.kind} never ends; leave it out")
        if self.until_day is not None and self.until_day <= self.from_day:
            raise ValueError(f"until_day {self.until_day} is not after from_day {self.from_day}")
        return self

    def holds_on(self, day: int) -> bool:
        """Whether the change is present on a day, counted from 0."""
        return self.from_day <= day and (self.until_day is None or day < self.until_day)


class GeneratedChapters(Section):
    """Chapters of items that users follow in order, so that the next item depends on the previous ones.

    Every item belongs to a chapter, and every user moves to the next chapter each day (after the last chapter to the
    first), or, with `within_session`, after every item. No column holds the chapter of an item or a user; it can only
    be learnt from the order of a user's items.
    """

    count: int = Field(default=8, ge=2, le=1_000)
    """Number of chapters."""
    follow: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of impressions whose item is of the user's current chapter; the others are of any chapter."""
    effect: float = Field(default=1.0, ge=0.0, le=10.0)
    """Weight in the click probability of an item being of the user's current chapter, relative to time and place."""
    within_session: bool = False
    """Whether a user's current chapter is the one after that of the previous item of the same session, and none for
    the first item. It then follows from the last items of a session only, not from sequences of whole days."""


MIN_RECOMMENDED_ITEMS: Final = 50
"""Fewest items of a world with a recommender: its slates hold ten published ones each."""


class GeneratedSource(Section):
    """A generated log with planted click probabilities, so that the best possible score is known."""

    kind: Literal["generated"]
    """Generate the log."""
    rows: int = Field(default=200_000, ge=1_000)
    """Impressions to write."""
    users: int = Field(default=5_000, ge=10)
    """Users, their activity heavy-tailed."""
    items: int = Field(default=2_000, ge=10)
    """Items, their popularity heavy-tailed."""
    days: int = Field(default=14, ge=3, le=3_650)
    """Days the log spans."""
    start: date = date(2026, 1, 5)
    """First day."""
    seed: int = Field(default=7, ge=0)
    """The same seed gives the same bytes."""
    taste: float = Field(default=1.0, gt=0, le=10)
    """Weight of the users' tastes in the click probability, relative to time and place of the impression."""
    drifts: tuple[Drift, ...] = ()
    """Changes planted into the world, none by default."""
    chapters: GeneratedChapters | None = None
    """Chapters of items that users follow in order; null: a user's previous items say nothing beyond their tastes."""
    content: GeneratedContent | None = None
    """Titles and vectors that predict an item's appeal; null: items have none, and content has no effect."""
    likes: GeneratedLikes | None = None
    """A second outcome, the like; null: none."""
    position_bias: GeneratedPositionBias | None = None
    """An earlier ranker that chose the positions; null: positions are independent of the items."""
    lifetime: GeneratedLifetime | None = None
    """Items that are shown for some hours only; null: an item is shown from its publication on, without end."""
    recommender: GeneratedRecommender | None = None
    """An old recommender that showed the items; null: they are drawn by popularity, without known propensities."""

    @model_validator(mode="after")
    def _check_recommender(self) -> Self:
        if self.recommender is None:
            return self
        for option in ("chapters", "position_bias", "lifetime"):
            if getattr(self, option) is not None:
                raise ValueError(f"recommender: {option} chooses the shown items too; leave one out")
        if self.items < MIN_RECOMMENDED_ITEMS:
            raise ValueError(
                f"recommender: needs at least {MIN_RECOMMENDED_ITEMS} items to fill slates; got {self.items}"
            )
        return self

    @model_validator(mode="after")
    def _short_lives_fill_the_log(self) -> Self:
        if self.lifetime is None:
            return self
        declared_options = {
            "chapters": self.chapters is not None,
            "position_bias": self.position_bias is not None,
            "drifts of kind new_items": any(drift.kind == "new_items" for drift in self.drifts),
        }
        for name, is_declared in declared_options.items():
            if is_declared:
                raise ValueError(f"{name} would show items outside their lives, which lifetime limits; leave one out")
        hours = self.lifetime.hours
        min_items = ceil(2 * (24 * self.days + hours) / hours)
        if self.items < min_items:
            raise ValueError(
                f"items: {self.items} that live for {hours:g} hours leave moments of {self.days} days without any;"
                f" declare at least {min_items}, or a longer lifetime.hours"
            )
        return self


Source = Annotated[FileSource | DeltaSource | GeneratedSource, Field(discriminator="kind")]


class TextEmbedding(Section):
    """Vectors of the texts of another column, computed by a model that the user provides."""

    text: str
    """Column of type `string` of the same side table."""
    model: str = Field(min_length=1)
    """ONNX file, relative to the data folder. Input: texts, shape (rows,) or (rows, 1), with the tokenizer in the
    graph; output: vectors. Each text is computed once per machine and model."""
    batch_rows: int = Field(default=256, ge=1, le=65_536)
    """Texts of one call of the model."""


class Column(Section):
    """One column of a file."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name used in the spec and in every table."""
    source: str | None = None
    """Name in the file, when it differs."""
    type: ColumnType
    """`hex`: hexadecimal text kept as an integer; `date`: ISO 8601; `tags`: several keys; `vector`: several numbers."""
    format: TimeFormat | None = None
    """How a `date` is written where it is not ISO 8601, in `strptime` directives: `%d/%m/%Y`. Requests send ISO."""
    tag_type: Literal["integer", "string"] = "string"
    """Type of the values of a `tags` column."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """Separator of the values of `tags` or `vector` in a text file."""
    decimal_comma: bool = False
    """Whether a `number` in a text file has a comma before its decimals, and may have dots between its thousands:
    `1.234,50`."""
    nullable: bool = True
    """Whether a row without a value is valid."""
    max_null_share: Share = 1.0
    """The run stops when more of the column than this is null on any day."""
    min: float | None = None
    """Smallest valid value."""
    max: float | None = None
    """Largest valid value."""
    allowed: tuple[str | int, ...] | None = None
    """The only valid values."""
    known: Literal["before", "after"] = "before"
    """`after`: an outcome of the impression. It is never a feature of its own row, only of later days."""
    embedding: TextEmbedding | None = None
    """How a `vector` column of a side table that is in no file is computed from a column of texts."""

    @model_validator(mode="after")
    def _bounds_fit_the_type(self) -> Self:
        if (self.min is not None or self.max is not None) and self.type not in ("integer", "number"):
            raise ValueError(f"'{self.name}' has min or max but type '{self.type}'; bounds need integer or number")
        if self.decimal_comma and self.type != "number":
            raise ValueError(f"'{self.name}' has decimal_comma but type '{self.type}'; it needs number")
        if self.allowed is not None and self.type not in ("integer", "string"):
            raise ValueError(f"'{self.name}' has allowed values but type '{self.type}'; they need integer or string")
        if self.format is not None and self.type != "date":
            raise ValueError(f"'{self.name}' has a format but type '{self.type}'; it needs date")
        if self.embedding is not None and (self.type != "vector" or self.source is not None):
            raise ValueError(
                f"'{self.name}' has an embedding, so it is computed and read from no file; declare type: vector and no"
                f" source (got type '{self.type}')"
            )
        return self

    @property
    def is_binary(self) -> bool:
        """Whether only 0 and 1 are valid."""
        return (self.min, self.max) == (0, 1) or (self.allowed is not None and set(self.allowed) <= {0, 1})

    @property
    def source_name(self) -> str:
        """Name in the file."""
        return self.source or self.name

    @property
    def polars_type(self) -> pl.DataType:
        """Type of its values in a validated table."""
        import polars as pl  # most readers of a spec need no types

        match self.type:
            case "integer" | "hex":
                return pl.Int64()
            case "number":
                return pl.Float64()
            case "string":
                return pl.String()
            case "date":
                return pl.Date()
            case "tags":
                return pl.List(pl.Int64() if self.tag_type == "integer" else pl.String())
            case "vector":
                return pl.List(pl.Float32())


def _expand_columns(columns: object) -> object:
    if not isinstance(columns, list | tuple):
        return columns
    expanded: list[object] = []
    for column in columns:
        if isinstance(column, dict) and isinstance(column.get("name"), str):
            expanded += [{**column, "name": name} for name in expand_names(column["name"])]
        else:
            expanded.append(column)
    return tuple(expanded)


ColumnList = Annotated[tuple[Column, ...], BeforeValidator(_expand_columns), Field(min_length=1)]


class EventClock(Section):
    """Time read from a column."""

    kind: Literal["column"] = "column"
    """The log has a time column."""
    column: str
    """Name in the file of the time column; its position from 0 in a file without a header."""
    unit: Literal["s", "ms", "us", "iso"] | None = None
    """Unit since 1970-01-01 UTC, or ISO 8601 text (in the clock's timezone where it has no offset)."""
    format: TimeFormat | None = None
    """Instead of `unit`: how the text is written, in `strptime` directives: `%d/%m/%Y %H:%M:%S`."""
    timezone: str = "UTC"
    """Time zone in which days begin at midnight."""
    earliest: date = date(2000, 1, 1)
    """Earlier times are refused: usually the unit is wrong."""
    latest: date = date(2100, 1, 1)
    """Later times are refused: usually the unit is wrong."""

    @model_validator(mode="after")
    def _one_notation(self) -> Self:
        if (self.unit is None) == (self.format is None):
            raise ValueError("give unit (s, ms, us, iso) or format (%d/%m/%Y %H:%M), one of the two")
        return self

    @property
    def is_text(self) -> bool:
        """Whether times are texts, not counts of a unit."""
        return self.unit in (None, "iso")


class RowClock(Section):
    """Time derived from the order of the rows, for logs without a time column."""

    kind: Literal["row_order"]
    """The rows are in time order and have no time."""
    days: int = Field(default=7, ge=2, le=3_650)
    """Number of equal days into which the rows are divided."""
    start: date = date(2000, 1, 3)
    """Name of the first day."""


Clock = Annotated[EventClock | RowClock, Field(discriminator="kind")]


class SideTable(Section):
    """A table with one row per user or item."""

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]*$")
    """Name of the Feast view."""
    path: str
    """File, glob or folder, relative to the data folder."""
    format: FileFormat = "auto"
    """As for the log."""
    header: bool = True
    """As for the log."""
    null_values: tuple[str, ...] = ("",)
    """As for the log."""
    delimiter: Delimiter | None = None
    """As for the log."""
    key: str
    """Key column, also a column of the log."""
    columns: ColumnList
    """Columns, the key among them."""
    min_coverage: Share = 0.5
    """Smallest share of the log's rows whose key is in the table; the run stops below it."""

    @property
    def file_columns(self) -> tuple[Column, ...]:
        """Columns that are in the files; the others are computed."""
        return tuple(column for column in self.columns if column.embedding is None)


class Rules(Section):
    """Rules of a valid log. A row that breaks a rule is quarantined; a table that breaks one stops the run."""

    max_quarantined_share: Share = 0.01
    """Largest share of quarantined rows; the run stops above it."""
    unique: tuple[str, ...] = ()
    """Columns whose values may each occur once within a day; later rows are quarantined."""
    max_duplicate_share: Share = 0.01
    """Largest share of exact copies of earlier rows; the run stops above it. Copies are quarantined."""
    sorted: bool = False
    """Whether rows must come in time order."""
    max_age_hours: float | None = Field(default=None, gt=0)
    """Largest age of the newest row; null for a historical log."""
    min_rows: int = Field(default=1_000, ge=1)
    """Fewest valid rows; the run stops below it."""
    min_volume_ratio: Share = 0.2
    """Fewest rows of a day, as a share of the median of the days before, allowing for chance and usual spread; the run
    stops below it."""
    max_volume_ratio: float = Field(default=5.0, ge=1.0)
    """Most rows of a day, as a multiple of the median of the days before; chance and spread as above."""
    max_label_rate_change: float = Field(default=0.5, ge=0.0)
    """Largest relative change of a day's label rate against the median of the days before; chance and spread as
    above."""
    undeclared_columns: Literal["refuse", "ignore"] = "refuse"
    """What happens with a column of the file that the spec does not name."""
    max_column_auc: float = Field(default=0.95, gt=0.5, le=1.0)
    """Largest AUC of a single column known before the impression; a column above it leaks the label."""
    allow_leak: tuple[str, ...] = ()
    """Columns to which `max_column_auc` does not apply."""
    warn: tuple[TableRule, ...] = ()
    """Rules of the log as a whole that stop no run: what breaks them is printed, and stands on the run's page."""
    off: tuple[TableRule, ...] = ()
    """Rules of the log as a whole that are not checked; the run's page lists them."""

    @model_validator(mode="after")
    def _check_severities(self) -> Self:
        if both := sorted(set(self.warn) & set(self.off)):
            raise ValueError(f"'{both[0]}' is both in warn and in off; a rule that is off warns of nothing")
        return self


class Split(Section):
    """Days for warm-up, training, validation and test: whole days in time order."""

    warmup_days: int = Field(default=1, ge=0)
    """First days, used only for statistics, because every encoding is still empty on them. A model whose features look
    up no statistics is trained on these days too."""
    validation_days: int = Field(default=1, ge=1)
    """Days before the test days, for early stopping."""
    test_days: int = Field(default=1, ge=1)
    """Last days, for gates and reports; no model is trained on them. Where they, or the validation days, hold fewer
    rows than `rules.min_volume_ratio` of as many usual days, earlier days are added, and the run says so."""


TYPICAL_CONTRIBUTIONS: Final = 10
"""Everybody may contribute this many times as much as the median one: among few users, each has a large share. With
290 users a day of a generated log, 4 times would leave out 6 % of the rows, 10 times 0.1 %."""
TYPICAL_CONTRIBUTIONS_TO_ITEM: Final = 4
"""The same for the rows of one item, which most users see once a day."""


class Live(Section):
    """Served traffic as training data: predictions joined with their outcomes become days of the log."""

    collect: bool = False
    """Whether `shortlist collect`, `shortlist watch` and the monitoring graph collect rows, and trainings read them.
    """
    outcome_delay: Duration | None = None
    """Time after an answer in which its outcome counts; null: `data.outcome_delay`. Declare another one for a replay,
    in which a day of the log takes less than a day."""
    settle: Duration = "1m"
    """Time after an outcome was due until its prediction is collected; logs may be written or shipped until then."""
    missing_outcome: Literal["negative", "negative_if_seen", "leave_out"] = "negative"
    """A row without an outcome after `data.outcome_delay`: label 0, unless an event says that the user did not see it;
    label 0 where an event says that the user saw it, else no row; or no row (where not every candidate is shown)."""
    max_clock_skew: Duration = "5m"
    """Largest difference between clocks: a row may be this much later than its answer, at which it then counts, and an
    outcome this much earlier."""
    max_age: Duration | None = "1d"
    """How long before its answer a row's time may be; an older one is quarantined, so that clients, who send the time,
    cannot add days to the log. null: any time. A generated log, whose days are all in the past, is replayed as if null
    were declared."""
    max_share: float = Field(default=0.01, gt=0.0, le=1.0)
    """Largest share of a day's collected rows, and of those of each item, from one request, one user or one sender;
    further ones are quarantined. The same of the live counts of a tile (`features.streaming`), and of each value in it,
    from a user or a sender; further rows are not counted. Nobody is cut below ten times the median of the day or of the
    last tiles, or four times that of an item or value, and no sender that vouches for its users (`serving.backends`).
    """
    since: AwareDatetime | None = None
    """The time from which rows are collected. The log in `data.source` must end before it; a generated log always
    does. null: all rows that are later than the newest row of that log."""


class Slates(Section):
    """Which rows of the log were the candidates of one request. In serving, every request is a slate."""

    column: str | None = None
    """A column of the log with the same value in all rows of a request, and within a day different between requests."""
    gap_seconds: float | None = Field(default=None, gt=0)
    """Instead of `column`: rows of a user that follow each other within this time are one slate."""
    max_rows: int = Field(default=10_000, ge=2)
    """Most rows of a slate. A log with a larger slate stops the run; a request cannot be larger (serving.max_rows)."""

    @model_validator(mode="after")
    def _exactly_one_key(self) -> Self:
        if (self.column is None) == (self.gap_seconds is None):
            raise ValueError("wanted either column or gap_seconds")
        return self


class Data(Section):
    """The log: its files, columns, side tables, rules and split."""

    source: Source
    """Where the log comes from."""
    columns: ColumnList
    """All columns of the log, in file order when there is no header."""
    label: str
    """The column to predict, 0 or 1, or any column with `positive`."""
    positive: Positive | None = None
    """Which values of the label's column count as 1, where it is not 0 or 1: `{at_least: 4}`, `{any_of: [buy]}`."""
    labels: dict[LabelName, FurtherLabel] = Field(default={}, max_length=16)
    """Further labels by name, such as `long_view: {column: watch_seconds, positive: {at_least: 20}}`. `label` decides
    in gates, rollouts and monitoring; a model that lists further labels under `labels` has one more score for each."""
    clock: Clock
    """Time of the rows: a column, or their order."""
    user: str | None = None
    """The column that names the user, if there is one."""
    item: str | None = None
    """The column that names the item, if there is one."""
    impression: str | None = None
    """An integer column with the impression's id, unique per row; by default the row's number."""
    request: str | None = None
    """A column with the id of the request whose answer held the row; many rows share it. Never a feature."""
    position: str | None = None
    """An integer column with the place, from 1, at which the row was shown, `known: after`. Like the three below, it
    says how the row came to be shown; only a `training_only` feature reads it."""
    propensity: str | None = None
    """A number column with the probability, above 0, with which the row's policy puts this item at this place for this
    request (the marginal one, over all slates that it may show). The value of releases is estimated with it."""
    policy: str | None = None
    """A string column that names what chose the row: a release, a recommender, an editor. `allowed` lists them."""
    randomized: str | None = None
    """An integer column, 1 where the row's slate was drawn at random, 0 elsewhere."""
    explode: Explode | None = None
    """Columns that hold lists, whose elements become rows."""
    slate: Slates | None = None
    """Which rows were one request: the lists of nDCG and of learning to rank; features of kind `slate` need it."""
    outcome_delay: Duration | None = None
    """Time after an impression until its outcome is known, such as 30m or 1d; no statistic counts it before. Null: it
    is known at once."""
    side_tables: tuple[SideTable, ...] = ()
    """Tables keyed by a column of the log."""
    rules: Rules = Rules()
    """Rules of a valid log."""
    split: Split = Split()
    """Training, validation and test days."""
    live: Live = Live()
    """Served traffic as training data."""

    @model_validator(mode="after")
    def _live_rows_can_be_collected(self) -> Self:
        if not self.live.collect:
            return self
        if self.live_outcome_delay is None:
            raise ValueError(
                "live.collect: declare outcome_delay, the time after which a row without an outcome is a negative one"
            )
        if isinstance(self.clock, RowClock):
            raise ValueError("live.collect: served rows have a time; the clock must be of kind column, not row_order")
        vector = next((column.name for column in self.columns if column.type == "vector"), None)
        if vector is not None:
            raise ValueError(
                f"live.collect: column '{vector}' is a vector, which the prediction log does not keep; collected rows"
                " would lack it. Move it into a side table"
            )
        for column in self.columns:
            is_outcome = column.name not in (self.label, *self.placement.values())
            if column.known == "after" and not column.nullable and is_outcome:
                raise ValueError(
                    f"live.collect: column '{column.name}' is known after the impression and never null; a row without"
                    " an outcome has no such value. Declare it nullable"
                )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [column.name for column in self.columns]
        _check_unique_names(names, "columns")
        roles = {
            "label": self.label,
            "user": self.user,
            "item": self.item,
            "impression": self.impression,
            "request": self.request,
        }
        for role, name in roles.items():
            if name is not None and name not in names:
                raise ValueError(f"{role} '{name}' is not a declared column{did_you_mean(name, names)}")
            if name is not None and role != "label":
                self._refuse_outcome(name, f"{role} '{name}'")
        if isinstance(self.clock, EventClock) and self.clock.column in names:
            raise ValueError(f"clock column '{self.clock.column}' is read by the clock; do not list it in columns too")
        column_of_role = {self.label: "label", self.impression: "impression_id"}
        all_columns = [*self.columns, *(column for table in self.side_tables for column in table.columns)]
        for column in all_columns:
            if column.name in RESERVED and column_of_role.get(column.name) != column.name:
                raise ValueError(f"column name '{column.name}' is Shortlist's own; rename it with `name` and `source`")
        for rule, column_names in (("unique", self.rules.unique), ("allow_leak", self.rules.allow_leak)):
            for name in column_names:
                if name not in {column.name for column in all_columns}:
                    raise ValueError(f"rules.{rule}: '{name}' is not a declared column{did_you_mean(name, names)}")
        self._check_side_tables(names)
        self._check_label()
        self._check_further_labels()
        self._check_keys_of_rows()
        self._check_slate(names)
        self._check_placement(names)
        return self

    def _check_label(self) -> None:
        label = self.by_name[self.label]
        if self.positive is not None and label.type not in self.positive.types:
            accepted_types = " or ".join(self.positive.types)
            raise ValueError(f"label '{self.label}' is of type {label.type}; this `positive` needs {accepted_types}")
        paired = self.explode.columns if self.explode is not None and self.explode.within is not None else ()
        for column in self.columns:
            reads_label = column.source_name == label.source_name and column.name not in (self.label, *paired)
            if reads_label and column.known == "before":
                raise ValueError(
                    f"column '{column.name}' reads '{label.source_name}', as the label does; declare it"
                    " `known: after`, or it would leak the label"
                )

    def _check_further_labels(self) -> None:
        column_by_name = {column.name: column for column in self.columns}
        for name, label in self.labels.items():
            label_key, column = f"labels.{name}", column_by_name.get(label.column)
            for derived_column in (label_column(name), score_column(name)):
                if derived_column in self.by_name:
                    raise ValueError(
                        f"{label_key}: '{derived_column}' is a declared column; give the label another name"
                    )
            if column is None:
                raise ValueError(
                    f"{label_key}: '{label.column}' is not a column of the log"
                    f"{did_you_mean(label.column, column_by_name)}"
                )
            if label.column == self.label:
                raise ValueError(
                    f"{label_key}: '{label.column}' is the label itself; declare another column, with the same `source`"
                    " if it is to be read in two ways"
                )
            if column.known != "after":
                raise ValueError(
                    f"{label_key}: '{label.column}' is an outcome; declare it `known: after`, or it would leak"
                )
            types = ("integer",) if label.positive is None else label.positive.types
            if column.type not in types:
                raise ValueError(
                    f"{label_key}: '{label.column}' is of type {column.type}; wanted {' or '.join(types)}"
                    f"{', or `positive`' if label.positive is None else ' for this `positive`'}"
                )
            if label.positive is None and not column.is_binary:
                raise ValueError(
                    f"{label_key}: '{label.column}' may hold other values than 0 and 1; declare min: 0 and max: 1 on"
                    " it, or `positive` here, such as {at_least: 1}"
                )

    def _check_keys_of_rows(self) -> None:
        if self.request is not None:
            if self.request in (self.impression, self.user, self.item):
                role = {self.impression: "impression", self.user: "user", self.item: "item"}[self.request]
                raise ValueError(f"request '{self.request}' is the {role} too; a request is shared by several rows")
            if self.by_name[self.request].type not in ("integer", "string", "hex"):
                raise ValueError(
                    f"request '{self.request}' is of type {self.by_name[self.request].type}; wanted integer, string or"
                    " hex"
                )
        if self.explode is None:
            return
        column_by_name = {column.name: column for column in self.columns}
        for name in self.explode.columns:
            if name not in column_by_name:
                raise ValueError(f"explode: '{name}' is not a column of the log{did_you_mean(name, column_by_name)}")
            if column_by_name[name].type in ("tags", "vector"):
                raise ValueError(
                    f"explode: '{name}' is of type {column_by_name[name].type}; wanted the type of an element, which"
                    " becomes a row"
                )
        if (
            self.explode.within is not None
            and len({column_by_name[name].source_name for name in self.explode.columns}) > 1
        ):
            raise ValueError("explode.within: the columns must have the same `source`, the text that holds them")
        if self.impression is not None:
            raise ValueError(
                f"impression '{self.impression}' names a row of the file, which explode makes several rows of; declare"
                " it as data.request"
            )
        if isinstance(self.clock, RowClock):
            raise ValueError("explode needs a clock column; rows of one list have no order in time")

    def _check_slate(self, names: list[str]) -> None:
        if self.slate is None:
            return
        column = self.slate.column
        if column is None:
            if self.user is None:
                raise ValueError("slate.gap_seconds: needs `user`; declare it, or the column that names a request")
            if isinstance(self.clock, RowClock):
                raise ValueError("slate.gap_seconds: this log has no time of its own; declare slate.column")
            return
        if column not in names:
            raise ValueError(f"slate.column '{column}' is not a column of the log{did_you_mean(column, names)}")
        if self.by_name[column].type not in ("integer", "hex", "string"):
            raise ValueError(
                f"slate.column '{column}' is of type {self.by_name[column].type}; wanted integer, hex or string"
            )
        if column in (self.label, self.impression):
            raise ValueError(f"slate.column '{column}' is the label or the impression; each row would be a slate")

    def _check_placement(self, names: list[str]) -> None:
        for role, name in self.placement.items():
            if name not in names:
                raise ValueError(f"{role} '{name}' is not a declared column{did_you_mean(name, names)}")
            column, wanted_type = self.by_name[name], _PLACEMENT_TYPES[role]
            if column.type != wanted_type:
                raise ValueError(f"{role} '{name}' is of type {column.type}; wanted {wanted_type}")
            if column.known != "after":
                raise ValueError(
                    f"{role} '{name}' says how a row was shown, which no request knows; declare it `known: after`"
                )
            if name in (self.label, self.slate.column if self.slate else None) or name in {
                label.column for label in self.labels.values()
            }:
                raise ValueError(f"{role} '{name}' has another role too; declare a column of its own")
        if len(set(self.placement.values())) < len(self.placement):
            raise ValueError("position, propensity, policy and randomized are four columns; one is declared twice")
        if self.propensity is not None and (self.position is None or self.item is None):
            raise ValueError(
                f"propensity '{self.propensity}' is the probability of an item at its place; declare item and position"
            )

    def _check_side_tables(self, names: list[str]) -> None:
        names_in_use = set(names)
        available = set(names)
        for table in self.side_tables:
            table_columns = [column.name for column in table.columns]
            _check_unique_names(table_columns, f"side table '{table.name}'")
            if table.key not in table_columns or table.key not in available:
                raise ValueError(
                    f"side table '{table.name}': its key '{table.key}' must be a column of its own"
                    f" and of the log{did_you_mean(table.key, table_columns)}"
                )
            self._refuse_outcome(table.key, f"side table '{table.name}': its key '{table.key}'")
            duplicates = (set(table_columns) - {table.key}) & names_in_use
            if duplicates:
                raise ValueError(f"side table '{table.name}': column '{min(duplicates)}' is declared elsewhere already")
            names_in_use |= set(table_columns)
            self._check_embeddings(table)
        for column in self.columns:
            if column.embedding is not None:
                raise ValueError(
                    f"'{column.name}' has an embedding, which only columns of side tables have: texts of users and"
                    " items; move it there"
                )

    def _check_embeddings(self, table: SideTable) -> None:
        texts = {column.name: column for column in table.columns if column.name != table.key}
        for column in table.columns:
            if column.embedding is None:
                continue
            key_path, text = f"side table '{table.name}': column '{column.name}': embedding.text", column.embedding.text
            if text not in texts:
                raise ValueError(f"{key_path}: '{text}' is no other column of the table{did_you_mean(text, texts)}")
            if texts[text].type != "string":
                raise ValueError(f"{key_path}: '{text}' is of type {texts[text].type}; wanted string")

    def _refuse_outcome(self, name: str, description: str) -> None:
        """Refuse a key that is known only after the impression: what is joined by it would leak the outcome."""
        if name == self.label:
            raise ValueError(f"{description} is the label; keys must be known before the impression")
        if self.by_name[name].known == "after":
            raise ValueError(
                f"{description} is declared `known: after`; keys must be known before the impression. Declare another"
                " column, or `known: before` if it is"
            )

    @property
    def placement(self) -> dict[str, str]:
        """Declared columns that say how a row was shown, by role: position, propensity, policy, randomized."""
        roles = {
            "position": self.position,
            "propensity": self.propensity,
            "policy": self.policy,
            "randomized": self.randomized,
        }
        return {role: name for role, name in roles.items() if name is not None}

    @property
    def live_outcome_delay(self) -> Duration | None:
        """Time after an answer in which its outcome counts, in collected rows."""
        return self.live.outcome_delay or self.outcome_delay

    @property
    def _live_columns(self) -> dict[str, ColumnType]:
        live_columns: dict[str, ColumnType] = {LIVE_COLUMNS[0]: "integer", LIVE_COLUMNS[1]: "string"}
        return live_columns if self.live.collect else {}

    @property
    def names_of_rows(self) -> tuple[str | None, ...]:
        """Columns that identify rows and outcomes: never a feature, and not in requests to the server."""
        return self.label, self.impression, self.request

    @property
    def by_name(self) -> dict[str, Column]:
        """All declared columns, of the log and of the side tables, by name."""
        side = {column.name: column for table in self.side_tables for column in table.columns}
        # Columns of collected rows may be slices and are never features (`Spec`).
        side |= {name: Column(name=name, type=kind, known="after") for name, kind in self._live_columns.items()}
        return {**side, **{column.name: column for column in self.columns}}


def _check_unique_names(names: list[str], key_path: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key_path}: '{name}' is declared twice")
