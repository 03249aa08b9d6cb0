"""The `tune` section: search space, limits and metric of a search for better settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, ValidationError, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.spec.models import ModelName, ModelSection

FIXED: Final = ("kind", "role", "calibration", "refit", "retrain")
"""Keys that a search does not change, because they set a model's role or use the validation days. The last two are
prefixes of keys."""

Metric = Literal["auc", "gauc", "log_loss"]


class Dimension(Section):
    """The values of one key in a search: `choices`, or numbers from `low` to `high`."""

    choices: tuple[Any, ...] | None = Field(default=None, min_length=1)
    """The values to choose from."""
    low: int | float | None = None
    """Smallest number."""
    high: int | float | None = None
    """Largest number."""
    log: bool = False
    """Whether numbers are drawn by their logarithm: 0.01 to 0.1 as often as 0.1 to 1."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Distance between numbers; null: any number, and for whole numbers 1."""

    @model_validator(mode="after")
    def _choices_or_bounds(self) -> Self:
        bounds = (self.low, self.high)
        if self.choices is not None:
            if bounds != (None, None) or self.log or self.step is not None:
                raise ValueError("choices: leave low, high, log and step out, or declare those instead")
            return self
        if self.low is None or self.high is None:
            raise ValueError("wanted choices, or low and high")
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low {self.low}: with log: true, numbers must be above 0")
        if self.log and self.step is not None:
            raise ValueError("step: not with log: true; leave one of them out")
        return self

    def bounds(self, whole: bool) -> Iterator[tuple[str, Any]]:
        """Yield the extreme values, which must be valid for the key, each with its place in the declaration."""
        if self.choices is not None:
            yield from ((f"choices.{number}", value) for number, value in enumerate(self.choices))
            return
        assert self.low is not None
        yield from (("low", self.low), ("high", self.high))
        if self.step is not None or whole:
            yield "low + step", self.low + (self.step or 1)


class Tune(Section):
    """A search for better settings (`shortlist tune`); its settings are never applied automatically."""

    metric: Metric | None = None
    """Metric on the validation days: the higher AUC, the higher GAUC (AUC within each user, weighted by the user's
    rows), or the lower log loss. null: `gates.metric`, and where that is null too, `gauc` where the log names users and
    100 or more of them have clicks and other rows on the validation days, else `auc`."""
    minutes: float | None = Field(default=20, gt=0)
    """Longest duration of a model's search; the trial of the declared section is always finished. null: no limit."""
    trials: int | None = Field(default=None, ge=1)
    """Most settings that are tried, including the declared ones and those of an interrupted search; null: no limit."""
    batches: int = Field(default=1, ge=1, le=64)
    """Number of pods that search in parallel in the Kubeflow graph. Each has its share of `trials`; where
    `runtime.database` is PostgreSQL, all propose by the trials of all, elsewhere each by its own."""
    models: dict[ModelName, dict[str, Dimension]] = Field(default_factory=dict)
    """Search space: name of the model -> key of its section -> values. A model that is not named here is searched over
    the default space of its kind."""

    @model_validator(mode="after")
    def _has_limit(self) -> Self:
        if self.minutes is None and self.trials is None:
            raise ValueError("declare minutes or trials; without either a search would not end")
        return self

    def check(self, models: Mapping[str, ModelSection]) -> None:
        """Check all search spaces against the sections of the models.

        Raises:
            ValueError: Names model, key and bound.
        """
        for name, space in self.models.items():
            if name not in models:
                raise ValueError(f"tune.models.{name}: no model is called '{name}'{did_you_mean(name, models)}")
            if models[name].members:
                raise ValueError(f"tune.models.{name}: it is made of other models; search over those instead")
            check_space(f"tune.models.{name}", models[name], space)


def check_space(key_path: str, section: ModelSection, space: Mapping[str, Dimension]) -> None:
    """Check that all values of a search space are valid for a section.

    Args:
        key_path: Where the space is declared, for the message.
        section: A declared model.
        space: Values by key.

    Raises:
        ValueError: Names the key and the bound that are wrong.
    """
    fields = type(section).model_fields
    for key, dimension in space.items():
        if key not in fields:
            raise ValueError(f"{key_path}.{key}: kind {section.kind} has no such key{did_you_mean(key, fields)}")
        if key.startswith(FIXED):
            raise ValueError(f"{key_path}.{key}: a search does not change this key; leave it out")
        if dimension.choices is None and not is_numeric(section, key):
            raise ValueError(f"{key_path}.{key}: not a number; declare choices instead of low and high")
        for bound, value in dimension.bounds(is_whole(section, key)):
            problem = _problem(section, key, value)
            if problem:
                raise ValueError(f"{key_path}.{key}.{bound}: {problem} (got {value!r})")


def is_whole(section: ModelSection, key: str) -> bool:
    """Whether a key of a section holds whole numbers."""
    kinds = _types(section, key)
    return int in kinds and float not in kinds


def is_numeric(section: ModelSection, key: str) -> bool:
    """Whether a key of a section holds numbers."""
    return bool(_types(section, key) & {int, float})


def apply_section_changes(section: ModelSection, changes: Mapping[str, Any]) -> ModelSection:
    """Return a section with some of its keys changed.

    Raises:
        ValueError: The changed section is not valid; says why in one line.
    """
    try:
        return type(section).model_validate({**section.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{key_path}: {first['msg']}" if key_path else first["msg"]) from None


def _types(section: ModelSection, key: str) -> set[Any]:
    annotation = type(section).model_fields[key].annotation
    return {annotation, *get_args(annotation)}


def _problem(section: ModelSection, key: str, value: Any) -> str:
    try:
        apply_section_changes(section, {key: value})
    except ValueError as error:
        return str(error).removeprefix(f"{key}: ").removeprefix("Value error, ")
    return ""
