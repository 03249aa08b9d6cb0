"""The `gates` section: limits that a candidate must meet before it may be promoted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from shortlist.contracts import LIVE_COLUMNS, Columns, ShortlistError, did_you_mean
from shortlist.spec.base import Check, Section, expand_patterns
from shortlist.spec.data import Data
from shortlist.spec.features import declared_column
from shortlist.system.registry import resolve_address
from shortlist.system.row_expressions import compile_expression, parse_expression
from shortlist.system.table_queries import QueryError, check_query

if TYPE_CHECKING:
    import polars as pl

TEST_ROWS: Final = "test_rows"
"""Name of the table that `gates.queries` read."""
COLD_COLUMNS: Final = ("cold_user", "cold_item")
"""Columns of the feature table: whether the row's user, or item, had no row before."""
SCORE_COLUMNS: Final = ("score", "baseline_score", "champion_score")
"""Columns of that table: scores of the candidate, of the baseline to beat and of the champion, null without one."""
MIN_DEFAULT_GAUC_DROP: Final = 0.01
"""Smallest default of `max_gauc_drop`."""
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


class Infra(Section):
    """Load test of a real Triton with the exported model, and its limits."""

    rows_per_request: int = Field(default=128, ge=1)
    """Rows of a request."""
    requests_per_second: float = Field(default=20, gt=0)
    """Request rate, open loop."""
    seconds: float = Field(default=3, gt=0)
    """Duration of the load."""
    max_p50_ms: float = Field(default=100, gt=0)
    """Largest median latency."""
    max_p99_ms: float = Field(default=500, gt=0)
    """Largest 99th percentile of latency."""
    slates_per_second: float = Field(default=5, gt=0)
    """Rate of whole slates, open loop, on the servers of a release before it gets users; only with retrieval."""
    max_slate_p50_ms: float = Field(default=250, gt=0)
    """Largest median latency of a slate: candidates, filters, the user's and the items' features, scores, order."""
    max_slate_p99_ms: float = Field(default=1_000, gt=0)
    """Largest 99th percentile of the latency of slates."""
    max_memory_mib: float = Field(default=4_096, gt=0)
    """Most resident memory of the server and its child processes."""
    max_cold_start_seconds: float = Field(default=60, gt=0)
    """Longest time from start to ready."""


def gate_settings() -> dict[str, type[Section]]:
    """Return the sections of the gates with settings of their own, by the gate's name."""
    return {name: gate.settings for name, gate in resolve_address("gates").complete().items() if gate.settings}


def _parse_gate_settings(settings_by_gate: object) -> object:
    """Return the settings of each gate, parsed by the section that the gate declares."""
    if not isinstance(settings_by_gate, Mapping) or not settings_by_gate:
        return settings_by_gate
    sections = gate_settings()
    parsed: dict[str, Section] = {}
    problems: list[InitErrorDetails] = []
    for name, settings in settings_by_gate.items():
        if name not in sections:
            message = (
                f"'{name}' is no gate with settings of its own{did_you_mean(str(name), sections)}; gates of a project"
                " are files pipelines/gates/<name>.py, with `GATE = Gate(judge, settings=...)`"
            )
            fault = PydanticCustomError("unknown_gate", "{message}", {"message": message})
            problems.append({"type": fault, "loc": (str(name),), "input": settings})
            continue
        try:
            parsed[name] = sections[name].model_validate(settings)
        except ValidationError as error:
            # The key path of a nested section would lack the gate's name.
            problems += [
                {
                    "type": problem["type"],
                    "loc": (name, *problem["loc"]),
                    "input": problem["input"],
                    "ctx": problem.get("ctx", {}),
                }
                for problem in error.errors()
            ]
    if problems:
        raise ValidationError.from_exception_data("gates.custom", problems)
    return parsed


class SliceLimits(Section):
    """A slice by a condition, with limits of its own; where it cannot be measured, the candidate is held."""

    where: str
    """Which test rows: a SQL condition over declared columns, `cold_user` and `cold_item`: "device = 'mobile'"."""
    min_auc: float | None = Field(default=None, ge=0.0, le=1.0)
    """Minimum of the lower bound of the AUC on these rows."""
    max_drop: float | None = Field(default=None, gt=0, le=0.5)
    """Non-inferiority margin of the AUC on these rows against the champion (without one: against the baseline)."""

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        if self.min_auc is None and self.max_drop is None:
            raise ValueError(f'"{self.where}" has no limit; wanted min_auc, max_drop or both')
        return self


class GateQuery(Section):
    """A gate without code: one number of the test rows, and its limits."""

    sql: str
    """A SELECT in DuckDB's SQL that gives one number: "SELECT avg(score) FROM test_rows WHERE price > 100". The table
    has `label`, `score`, `baseline_score`, `champion_score`, `day`, `user`, `item`, `cold_user`, `cold_item` and the
    declared columns. The query can read nothing else."""
    min: float | None = None
    """Smallest number with which a candidate passes."""
    max: float | None = None
    """Largest number with which a candidate passes."""

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("has no limit; wanted min, max or both")
        return self


_Slice = Annotated[
    Annotated[str, Tag("column")] | Annotated[SliceLimits, Tag("condition")],
    Discriminator(lambda declared: "column" if isinstance(declared, str) else "condition"),
]
QueryName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]


class ExportLimits(Section):
    """The part of the limits that the validation of an exported model reads; a change of the others repeats none."""

    parity_rows: int = Field(default=10_000, ge=10)
    """Test rows that are scored in-process, by the exported file and by a real Triton; all if there are fewer."""
    max_score_difference: float = Field(default=1e-5, gt=0, le=0.01)
    """Largest difference between those scores."""
    infra: Infra = Infra()
    """Limits under load."""
    decision_threshold: Probability | None = None
    """Smallest score of a positive row in Kubeflow's confusion matrix; null: the label rate. No gate uses it."""


class Gates(ExportLimits):
    """Limits of the gates; every gate always runs."""

    confidence: Probability = 0.95
    """Confidence level of all intervals."""
    bootstrap_rounds: int = Field(default=200, ge=50, le=10_000)
    """Resamples of users (of rows when there are no users) for each interval."""
    min_test_rows: int = Field(default=2_000, ge=100)
    """Fewest test rows; the candidate is held below it."""
    min_auc: float = Field(default=0.55, ge=0.5, le=1.0)
    """Minimum of the lower bound of the test AUC."""
    max_log_loss: float | None = Field(default=None, gt=0)
    """Maximum of the upper bound of the test log loss; null: it must only be below that of a constant rate."""
    metric: Literal["auc", "gauc"] | None = None
    """The metric by which a candidate is compared with the champion, and by which the best of several passing
    candidates is chosen. `gauc`: AUC within each user, weighted by the user's rows. null: `gauc` where the log names
    users and 100 or more of them have clicks and other rows on the test days, else `auc`."""
    baseline: str | None = Field(default=None, min_length=1, max_length=31)
    """Name of the baseline that candidates have to beat; null: popularity."""
    min_gain_over_baseline: float = Field(default=0.0, ge=0.0, le=0.5)
    """Minimum gain in AUC over that baseline, by the lower bound of a paired bootstrap: both models on the same rows of
    the same resampled users."""
    min_gauc_gain: float | None = Field(default=0.0, ge=0.0, le=0.5)
    """Likewise for the GAUC, where `metric` is GAUC; where it is AUC, only a value above 0 is checked. null: not
    checked."""
    max_auc_drop: float = Field(default=0.002, ge=0.0003, le=0.1)
    """Non-inferiority margin against the champion where `metric` is AUC; seeds alone differ by up to 3e-4."""
    max_gauc_drop: float | None = Field(default=None, ge=0.0003, le=0.2)
    """Likewise where it is GAUC. null: `max_auc_drop`, but at least 0.01, because GAUC varies more between seeds."""
    compare_with_best: bool = True
    """Whether the margin also applies to the best champion so far, where the present champion is worse by less than the
    margin; this keeps many small drops from adding up. False: only the champion is compared, and whoever passes becomes
    the best so far."""
    max_calibration_error: float = Field(default=0.03, gt=0, le=1)
    """Largest expected calibration error (20 equal-count bins) on the test rows."""
    max_rate_error: float = Field(default=0.1, gt=0, le=1)
    """Largest relative difference between mean score and label rate on the test rows."""
    slices: Annotated[tuple[_Slice, ...], BeforeValidator(expand_patterns)] = ()
    """Columns by whose values the test rows are sliced, and conditions with limits of their own; cold users and cold
    items are always slices."""
    min_slice_rows: int = Field(default=500, ge=50)
    """Slices with fewer test rows are reported, not gated."""
    max_slices: int = Field(default=30, ge=1, le=1_000)
    """Number of a column's most frequent values that become slices."""
    max_slice_auc_drop: float = Field(default=0.02, gt=0, le=0.5)
    """Margin by which a slice may fall behind the champion (without one: behind the baseline), Holm-corrected."""
    skew_rows: int = Field(default=500, ge=10, le=100_000)
    """Rows of the feature table that are compared with Feast's answers."""
    queries: dict[QueryName, GateQuery] = Field(default={}, max_length=16)
    """Gates without code, by name: queries over the scored test rows, each with a limit."""
    custom: Annotated[Mapping[str, Any], BeforeValidator(_parse_gate_settings)] = Field(default={}, max_length=100)
    """Settings of gates that were added to the registry, by the name of the gate."""

    @property
    def export_limits(self) -> ExportLimits:
        """The limits that the validation of an exported model reads."""
        return ExportLimits(**{name: getattr(self, name) for name in ExportLimits.model_fields})

    @property
    def margin(self) -> dict[str, float]:
        """The non-inferiority margin against the champion, by the metric that may decide."""
        usual = max(self.max_auc_drop, MIN_DEFAULT_GAUC_DROP)
        return {"auc": self.max_auc_drop, "gauc": usual if self.max_gauc_drop is None else self.max_gauc_drop}

    @property
    def slice_columns(self) -> tuple[str, ...]:
        """The columns by whose values rows are sliced."""
        return tuple(declared for declared in self.slices if isinstance(declared, str))

    @property
    def conditions(self) -> tuple[SliceLimits, ...]:
        """The slices by a condition."""
        return tuple(declared for declared in self.slices if isinstance(declared, SliceLimits))

    def kept_columns(self, data: Data) -> tuple[str, ...]:
        """Return the columns of the log that gates read, which the feature table and the scores keep."""
        return tuple(dict.fromkeys((*self.slice_columns, *self._columns_read(data))))

    def _columns_read(self, data: Data) -> Iterator[str]:
        for declared in self.conditions:
            yield from (name for name in compile_expression(declared.where).columns if name not in COLD_COLUMNS)
        yield from self.query_columns(data)

    def query_columns(self, log: Data) -> Iterator[str]:
        """Yield the declared columns that queries read."""
        query_terms = {term for query in self.queries.values() for term in re.findall(r"\w+", query.sql.lower())}
        yield from (name for name in log.by_name if name.lower() in query_terms)


def gate_column_checks(gates: Gates, data: Data) -> Iterator[Check]:
    """Yield the checks that gates read declared columns, as their types allow: of slices, conditions and queries."""
    for name in gates.slice_columns:
        if name not in LIVE_COLUMNS or not data.live.collect:
            yield partial(declared_column, name, data, "gates.slices")
    if not gates.conditions and not gates.queries:
        return
    types = _row_types(data)
    yield from (partial(_check_condition, declared.where, types) for declared in gates.conditions)
    columns = {name: types[name] for name in gates.query_columns(data)} | _own_types(data)
    yield from (partial(_check_query, name, query.sql, columns) for name, query in gates.queries.items())


def _check_condition(where: str, types: Mapping[str, pl.DataType]) -> None:
    try:
        parse_expression(where, types, "condition", "the test rows")
    except ShortlistError as error:
        raise ValueError(f"gates.slices: {error}") from None


def _check_query(name: str, sql: str, types: Mapping[str, pl.DataType]) -> None:
    try:
        check_query(sql, TEST_ROWS, types)
    except QueryError as error:
        further = " and the declared columns" if f"; {TEST_ROWS} has " in str(error) else ""
        raise ValueError(f"gates.queries.{name}: {error}{further}") from None


def _row_types(data: Data) -> dict[str, pl.DataType]:
    """Return the types of the columns that a condition may read; tags are one text."""
    import polars as pl

    types = {
        name: pl.String() if column.type == "tags" else column.polars_type for name, column in data.by_name.items()
    }
    keys = {"cold_user": data.user, "cold_item": data.item}
    return types | {cold: pl.Boolean() for cold, key in keys.items() if key is not None}


def _own_types(data: Data) -> dict[str, pl.DataType]:
    """Return the types of the columns of the test rows that every log has."""
    import polars as pl

    types: dict[str, pl.DataType] = {Columns.LABEL: pl.Int8(), Columns.DAY: pl.Date()}
    for key, name, cold in ((data.user, Columns.USER, "cold_user"), (data.item, Columns.ITEM, "cold_item")):
        if key is not None:
            types |= {name: data.by_name[key].polars_type, cold: pl.Boolean()}
    return types | dict.fromkeys(SCORE_COLUMNS, pl.Float64())
