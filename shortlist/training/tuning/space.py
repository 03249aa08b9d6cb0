"""The space of a search, and its conversion to Optuna's distributions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isclose
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shortlist.contracts import ShortlistError
from shortlist.ranking.registry import kind_of
from shortlist.spec.models import ModelSection
from shortlist.spec.spec import Spec
from shortlist.spec.tune import Dimension, Tune, apply_section_changes, is_whole

if TYPE_CHECKING:
    import optuna

_DIGITS: Final = 4
"""Significant digits of proposed fractions, so that a trial and its patch have the same value."""

_POINTS: Final = 6
"""Number of choices that replace numbers between bounds."""

Space = Mapping[str, Dimension]


def search_space(tune: Tune, model: str, section: ModelSection) -> Space:
    """Return the search space of a model: the declared one, else the kind's default.

    It is widened to contain the section's values, so that the search can compare with them.

    Args:
        tune: The spec's `tune` section.
        model: Name of the model.
        section: Section of the model.

    Raises:
        ShortlistError: There is no space, or a declared space cannot contain the section's value.
    """
    if section.members:
        raise ShortlistError(
            f"models.{model}: it is made of other models; search over those instead: {', '.join(section.members)}"
        )
    space = tune.models.get(model) or kind_of(section.kind).tuning.space
    if not space:
        raise ShortlistError(
            f"models.{model}: kind {section.kind} has no usual search space; declare one as tune.models.{model}"
        )
    return {key: _widen(f"tune.models.{model}.{key}", dimension, section, key) for key, dimension in space.items()}


def tunable_models(spec: Spec) -> list[str]:
    """Return the models that have a search space, candidates first."""
    names = [name for name, section in spec.models.items() if spec.tune.models.get(name) or _default_space(section)]
    return sorted(names, key=lambda name: spec.models[name].role != "candidate")


def shipped_params(space: Space, section: ModelSection) -> dict[str, Any]:
    """Return the section's values as Optuna's parameters."""
    section_values = section.model_dump(mode="json")
    return {key: _as_param(dimension, section_values[key]) for key, dimension in space.items()}


def optuna_distributions(space: Space, section: ModelSection) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's distributions of a space.

    Choices are JSON texts, as Optuna stores no lists.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    distribution_by_key: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, dimension in space.items():
        if dimension.choices is not None:
            distribution_by_key[key] = CategoricalDistribution([_text(value) for value in dimension.choices])
        elif is_whole(section, key):
            assert dimension.low is not None and dimension.high is not None
            distribution_by_key[key] = IntDistribution(
                int(dimension.low), int(dimension.high), log=dimension.log, step=int(dimension.step or 1)
            )
        else:
            assert dimension.low is not None and dimension.high is not None
            distribution_by_key[key] = FloatDistribution(
                float(dimension.low), float(dimension.high), log=dimension.log, step=dimension.step
            )
    return distribution_by_key


def section_changes(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed keys and values of a section for Optuna's parameters."""
    changes: dict[str, Any] = {}
    for key, dimension in space.items():
        value = params[key]
        if dimension.choices is not None:
            changes[key] = json.loads(value)
        elif isinstance(value, float):
            assert dimension.low is not None and dimension.high is not None
            changes[key] = min(max(float(f"{value:.{_DIGITS}g}"), dimension.low), dimension.high)
        else:
            changes[key] = value
    return changes


def _default_space(section: ModelSection) -> Space:
    return kind_of(section.kind).tuning.space


def _widen(spec_key: str, dimension: Dimension, section: ModelSection, key: str) -> Dimension:
    """Return a dimension widened to contain the section's value, with choices in the section's form."""
    section_value = section.model_dump(mode="json")[key]
    if dimension.choices is not None:
        choice_values = (
            apply_section_changes(section, {key: value}).model_dump(mode="json")[key] for value in dimension.choices
        )
        texts = dict.fromkeys(_text(value) for value in (section_value, *choice_values))
        return dimension.model_copy(update={"choices": tuple(map(json.loads, texts))})
    low, high, step = dimension.low, dimension.high, dimension.step
    assert low is not None and high is not None
    if section_value is None or (
        dimension.log and section_value <= 0
    ):  # no place between the bounds: some numbers of them, and its own
        spread = np.geomspace if dimension.log else np.linspace
        numbers = dict.fromkeys(float(f"{number:.2g}") for number in spread(low, high, _POINTS))
        value_inside = [int(bound) if is_whole(section, key) else bound for bound in numbers if low <= bound <= high]
        return Dimension(choices=(section_value, *dict.fromkeys(value_inside)))
    if step is None:
        return dimension.model_copy(update={"low": min(low, section_value), "high": max(high, section_value)})
    steps = round((section_value - low) / step)
    if not low <= section_value <= high or not isclose(low + steps * step, section_value):
        raise ShortlistError(
            f"{spec_key}: the section's own value, {section_value}, is none of {low}, {low + step}, ... {high};"
            " declare bounds and a step that have it"
        )
    return dimension.model_copy(update={"high": low + int((high - low) / step + 1e-9) * step})


def _as_param(dimension: Dimension, value: Any) -> Any:
    return _text(value) if dimension.choices is not None else value


def _text(value: Any) -> str:
    return json.dumps(value)
