"""The space of a search: what may change, in the terms of Optuna's trials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isclose
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from models.registry import kind_of
from shortlist.contracts import ShortlistError
from shortlist.spec.models import ModelSection
from shortlist.spec.spec import Spec
from shortlist.spec.tune import Dimension, Tune, apply_section_changes, is_whole

if TYPE_CHECKING:
    import optuna

_DIGITS: Final = 4
"""Of a fraction that a search proposes: what is trained is what the patch says."""

_POINTS: Final = 6
"""Of numbers between bounds, where they have to become choices."""

Space = Mapping[str, Dimension]


def space_of(tune: Tune, model: str, section: ModelSection) -> Space:
    """Return what a search changes of a model: what the spec declares, else what is usual for the kind.

    The section's own values are in it, so that the search can compare with them.

    Args:
        tune: The spec's section.
        model: Name of the model.
        section: Its section.

    Raises:
        ShortlistError: There is nothing to change, or a section's own value cannot be in a declared space.
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
    return {key: _widened(f"tune.models.{model}.{key}", dimension, section, key) for key, dimension in space.items()}


def tunable(spec: Spec) -> list[str]:
    """Return the models that can be searched over, candidates first."""
    able = [name for name, section in spec.models.items() if spec.tune.models.get(name) or _usual(section)]
    return sorted(able, key=lambda name: spec.models[name].role != "candidate")


def shipped_params(space: Space, section: ModelSection) -> dict[str, Any]:
    """Return the section's own values as Optuna's parameters."""
    own = section.model_dump(mode="json")
    return {key: _as_param(dimension, own[key]) for key, dimension in space.items()}


def distributions(space: Space, section: ModelSection) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's distributions of a space.

    Choices are texts of JSON: Optuna keeps nothing else that can hold lists.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, one in space.items():
        if one.choices is not None:
            found[key] = CategoricalDistribution([_text(value) for value in one.choices])
        elif is_whole(section, key):
            assert one.low is not None and one.high is not None
            found[key] = IntDistribution(int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
        else:
            assert one.low is not None and one.high is not None
            found[key] = FloatDistribution(float(one.low), float(one.high), log=one.log, step=one.step)
    return found


def changes_of(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys and values of a section that Optuna's parameters stand for."""
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


def _usual(section: ModelSection) -> Space:
    return kind_of(section.kind).tuning.space


def _widened(where: str, dimension: Dimension, section: ModelSection, key: str) -> Dimension:
    """Return a dimension that also has the section's own value, with choices as the section holds them."""
    own = section.model_dump(mode="json")[key]
    if dimension.choices is not None:
        held = (
            apply_section_changes(section, {key: value}).model_dump(mode="json")[key] for value in dimension.choices
        )
        texts = dict.fromkeys(_text(value) for value in (own, *held))
        return dimension.model_copy(update={"choices": tuple(map(json.loads, texts))})
    low, high, step = dimension.low, dimension.high, dimension.step
    assert low is not None and high is not None
    if own is None or (dimension.log and own <= 0):  # no place between the bounds: some numbers of them, and its own
        spread = np.geomspace if dimension.log else np.linspace
        numbers = dict.fromkeys(float(f"{number:.2g}") for number in spread(low, high, _POINTS))
        within = [int(one) if is_whole(section, key) else one for one in numbers if low <= one <= high]
        return Dimension(choices=(own, *dict.fromkeys(within)))
    if step is None:
        return dimension.model_copy(update={"low": min(low, own), "high": max(high, own)})
    steps = round((own - low) / step)
    if not low <= own <= high or not isclose(low + steps * step, own):
        raise ShortlistError(
            f"{where}: the section's own value, {own}, is none of {low}, {low + step}, ... {high}; declare bounds and a"
            " step that have it"
        )
    return dimension.model_copy(update={"high": low + int((high - low) / step + 1e-9) * step})


def _as_param(dimension: Dimension, value: Any) -> Any:
    return _text(value) if dimension.choices is not None else value


def _text(value: Any) -> str:
    return json.dumps(value)
