"""The `features` section: how columns become what a model reads."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shortlist.config.base import Names, Section, expand_names
from shortlist.contracts import Columns

FeatureName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

KeyedName = Annotated[str, Field(pattern=r"^([A-Za-z_]|\{key\})([A-Za-z0-9_]|\{key\})*$")]


class _PerColumn(Section):
    """An operation applied to each of several columns on its own."""

    each: Names = Field(min_length=1)
    """Columns; each gives one feature of its own."""
    suffix: str = Field(default="", pattern=r"^[a-z0-9_]*$")
    """Added to the column's name to name the feature; the kind's own suffix by default."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features, in the order of `each`."""
        return tuple(f"{column}_{self.suffix or _SUFFIX[type(self).__name__]}" for column in self.each)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.each


class _PerKey(Section):
    """A statistic of the days before, looked up by the values of one or more columns."""

    key: Names = ()
    """Columns whose values together are the key; a tags column counts once per value. Empty: all rows."""
    name: KeyedName
    """Name of the feature; with `{key}` in it, every key column gives a feature of its own, named after it."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.key


class Numeric(_PerColumn):
    """Numbers: filled, clipped, logged, standardised, in this order."""

    kind: Literal["numeric"]
    """Numbers as numbers."""
    fill: float | None = None
    """Value for nulls; null keeps them missing (XGBoost reads them as missing, DLRM as 0)."""
    clip: tuple[float, float] | None = None
    """Smallest and largest value kept."""
    log: bool = False
    """log(1 + x); values below 0 count as 0."""
    standardise: bool = False
    """Subtract the mean and divide by the standard deviation of the training days."""


class Vocabulary(_PerColumn):
    """Dense ids for values seen often enough; 0 is unknown or rare. Ids never change; new values are appended."""

    kind: Literal["vocabulary"]
    """Values to ids."""
    min_rows: int = Field(default=1, ge=1)
    """Training rows a value needs to get an id of its own (the frequency cap)."""
    max_size: int = Field(default=10_000_000, ge=2)
    """Most ids, the unknown one among them."""
    max_values: int = Field(default=64, ge=1)
    """Values kept per row of a tags column, the first ones."""


class Hash(_PerColumn):
    """Ids by hashing, for columns whose values need no vocabulary, whatever values will come; 0 is null."""

    kind: Literal["hash"]
    """Values to buckets."""
    buckets: int = Field(ge=2, le=2**31 - 1)
    """Ids, the null one among them."""
    admit_after: int = Field(default=1, ge=1, le=2**31 - 1)
    """The occurrence on the training days from which on the DLRM learns a bucket's embedding. Until then it is zero: an
    id too rare to learn from adds nothing, in training and in serving alike."""
    evict_after_days: int | None = Field(default=None, ge=1)
    """With `models.dlrm.retrain: warm`, buckets that no training looked up for more days than these (a training counts
    as its last day) are given back: their embeddings are zero again, free for new ids. null keeps them for ever."""


class Cross(Section):
    """One id for the ordered combination of two or more columns, by an order-aware hash; 0 when one is null."""

    kind: Literal["cross"]
    """Combinations to buckets."""
    columns: Names = Field(min_length=2)
    """Columns, not tags; (a, b) and (b, a) are different crosses."""
    name: FeatureName
    """Name of the feature."""
    buckets: int = Field(ge=2, le=2**31 - 1)
    """Ids, the null one among them."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.columns


class Count(_PerKey):
    """log(1 + n): how often the key occurred on the days before."""

    kind: Literal["count"]
    """Occurrences of a key."""
    of: str | None = None
    """Count instead in this history from before the log: a tags column, holding item keys, of the user's side table."""
    window_days: int | None = Field(default=None, ge=1)
    """Days that count; null for all."""


class Target(_PerKey):
    """Smoothed mean of the label or an earlier outcome over the days before: (sum + prior * mean) / (rows + prior)."""

    kind: Literal["target"]
    """Rate of a key."""
    of: str | None = None
    """A numeric column, outcomes allowed; null for the label."""
    prior: float = Field(default=20.0, gt=0)
    """Rows' worth of the overall mean (of the days before) mixed in."""
    window_days: int | None = Field(default=None, ge=1)
    """Days that count; null for all."""


class TimeSince(_PerKey):
    """log(1 + hours) since the key's last impression on an earlier day; the cap when there is none."""

    kind: Literal["time_since"]
    """Age of a key's last impression."""
    cap_hours: float = Field(default=24 * 30, gt=0)
    """Longest time told apart."""


class Lag(_PerKey):
    """A column's value at the key's last impression on an earlier day."""

    kind: Literal["lag"]
    """Last value of a key."""
    column: str
    """A numeric column, outcomes allowed."""
    fill: float | None = None
    """Value when there is none."""


class Age(_PerColumn):
    """log(1 + days) from a date column to the impression; a date after the impression counts as 0."""

    kind: Literal["age"]
    """Age of a date."""


class Cyclic(Section):
    """Sine and cosine of the time of day or of the week, in the clock's timezone."""

    kind: Literal["cyclic"]
    """Time on a circle."""
    period: Literal["day", "week"]
    """Length of the circle."""
    name: FeatureName
    """Gives `<name>_sin` and `<name>_cos`."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (f"{self.name}_sin", f"{self.name}_cos")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return ()


class Vector(_PerColumn):
    """A dense vector column, L2-normalised; a null is the zero vector."""

    kind: Literal["vector"]
    """Vectors as they are."""
    normalise: bool = True
    """Divide by the Euclidean length."""


class Similarity(Section):
    """Cosine of the item's vector and the mean vector of the items in the user's list; 0 when either is missing."""

    kind: Literal["similarity"]
    """Closeness of an item to a history."""
    list: str
    """A tags column of the user's side table that holds item keys."""
    vector: str
    """A vector column of the item's side table."""
    name: FeatureName
    """Name of the feature."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return (self.list, self.vector)


_SUFFIX = {"Numeric": "number", "Vocabulary": "id", "Hash": "hash", "Age": "age", "Vector": "vector"}

Feature = Annotated[
    Numeric | Vocabulary | Hash | Cross | Count | Target | TimeSince | Lag | Age | Cyclic | Vector | Similarity,
    Field(discriminator="kind"),
]


def _one_per_key(columns: object) -> object:
    """Replace an operation whose name holds `{key}` by one operation per key column."""
    if not isinstance(columns, list | tuple):
        return columns
    spread: list[object] = []
    for column in columns:
        if (
            isinstance(column, dict)
            and "{key}" in str(column.get("name"))
            and isinstance(column.get("key"), str | list)
        ):
            patterns = [column["key"]] if isinstance(column["key"], str) else column["key"]
            keys = [key for pattern in patterns for key in expand_names(str(pattern))]
            spread += [{**column, "key": [key], "name": column["name"].replace("{key}", key)} for key in keys]
        else:
            spread.append(column)
    return tuple(spread)


class Features(Section):
    """The features of a run, in order."""

    columns: Annotated[tuple[Feature, ...], BeforeValidator(_one_per_key)] = Field(min_length=1)
    """Operations; each gives one or more named features."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise ValueError(f"two features are named '{name}'; give one of them another name or suffix")
            if name in (Columns.LABEL, Columns.TIME, Columns.DAY, Columns.IMPRESSION, Columns.USER, Columns.ITEM):
                raise ValueError(f"feature name '{name}' is Shortlist's own")
            seen.add(name)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Every feature's name, in declared order."""
        return tuple(name for feature in self.columns for name in feature.outputs)
