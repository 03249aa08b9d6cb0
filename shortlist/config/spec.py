"""A whole spec, and the checks that need more than one of its sections."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal, Self

from pydantic import Field, model_validator

from shortlist.config.base import Section
from shortlist.config.data import Column, Data, FileSource, SideTable
from shortlist.config.features import (
    Age,
    Count,
    Cross,
    Feature,
    Features,
    Hash,
    Lag,
    Numeric,
    Similarity,
    Target,
    Vector,
    Vocabulary,
)
from shortlist.config.gates import Gates
from shortlist.config.models import DLRMModel, Models
from shortlist.config.monitoring import Monitoring, Schedule
from shortlist.config.runtime import Runtime
from shortlist.config.serving import Serving
from shortlist.contracts import did_you_mean


class Spec(Section):
    """The production life of a ranking model."""

    version: Literal[1]
    """Version of this format."""
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")
    """Names the MLflow experiment, the registered models and the Feast project."""
    data: Data
    """The log."""
    features: Features
    """What models read."""
    models: Models
    """What is trained."""
    gates: Gates = Gates()
    """What may ship."""
    serving: Serving = Serving()
    """How it reaches traffic."""
    monitoring: Monitoring = Monitoring()
    """How it is watched there, and when it is trained again."""
    schedule: Schedule = Schedule()
    """What runs by the clock."""
    runtime: Runtime = Runtime()
    """Where it runs."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        for feature in self.features.columns:
            _check_feature(feature, self.data)
        for model in (self.models.xgboost, self.models.dlrm, self.models.logistic):
            if model is not None:
                select(model.features, self.features.names)
        for feature in self.features.columns:
            if isinstance(feature, Hash):
                _check_buckets(feature, self.models.dlrm)
        if self.models.dlrm is not None and "dlrm" in self.runtime.cluster.workers:
            _check_alone(self.models.dlrm, self.features)
        for name in self.monitoring.drift.ignore:
            _column(name, self.data, "monitoring.drift.ignore")
        for name in self.gates.slices:
            _column(name, self.data, "gates.slices")
        if isinstance(self.data.source, FileSource) and self.data.source.format == "npz":
            raise ValueError("data.source.format: npz is for side tables only")
        if self.runtime.target == "kserve":
            _check_placement(self.serving.placement.device, self.runtime.cluster.serving.gpus)
        return self


def select(patterns: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the feature names that any pattern matches, in declared order.

    Raises:
        ValueError: A pattern matches nothing.

    >>> select(("*_id",), ("user_id", "hour", "item_id"))
    ('user_id', 'item_id')
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no feature matches '{pattern}'{did_you_mean(pattern, names)}")
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _column(name: str, data: Data, where: str) -> Column:
    if name not in data.by_name:
        raise ValueError(f"{where}: '{name}' is not a declared column{did_you_mean(name, data.by_name)}")
    return data.by_name[name]


_TYPES: dict[type, tuple[str, ...]] = {
    Numeric: ("integer", "number", "hex"),
    Vocabulary: ("integer", "string", "hex", "tags"),
    Hash: ("integer", "string", "hex", "tags"),
    Cross: ("integer", "string", "hex"),
    Vector: ("vector",),
    Age: ("date",),
}


def _check_feature(feature: Feature, data: Data) -> None:
    where = f"features: {feature.kind} '{feature.outputs[0]}'"
    for name in feature.inputs:
        column = _column(name, data, where)
        if column.known == "after" or name == data.label:
            raise ValueError(
                f"{where}: '{name}' is known only after the impression; a feature of the same row would leak"
                " the label. A target or lag over earlier days may use it."
            )
        wanted = _TYPES.get(type(feature))
        if wanted is not None and column.type not in wanted:
            raise ValueError(f"{where}: '{name}' is of type {column.type}; wanted {' or '.join(wanted)}")
    if isinstance(feature, Target | Lag):
        value = feature.of if isinstance(feature, Target) else feature.column
        if value is not None and _column(value, data, where).type not in ("integer", "number"):
            raise ValueError(f"{where}: '{value}' is of type {data.by_name[value].type}; wanted integer or number")
    if isinstance(feature, Count | Similarity):
        history = feature.of if isinstance(feature, Count) else feature.list
        if history is not None:
            _check_history(history, data, where)
    if isinstance(feature, Similarity):
        owner = _owner(feature.vector, data)
        if owner is None or owner.key != data.item or data.by_name[feature.vector].type != "vector":
            raise ValueError(f"{where}: '{feature.vector}' must be a vector column of the item's side table")


def _check_placement(device: str, gpus: int) -> None:
    if device == "gpu" and gpus == 0:
        raise ValueError(
            "serving.placement.device: gpu, but runtime.cluster.serving.gpus is 0: its pod would get no GPU. Declare 1"
        )
    if device == "cpu" and gpus:
        raise ValueError(
            f"runtime.cluster.serving.gpus is {gpus}, but serving.placement.device is cpu: nothing would use them."
            " Declare device: gpu"
        )


def _check_buckets(feature: Hash, dlrm: DLRMModel | None) -> None:
    """Refuse to be told how buckets are learnt that nobody learns, or not in that way."""
    where = f"features: hash '{feature.outputs[0]}'"
    patterns = dlrm.features if dlrm is not None else ()
    is_read = any(fnmatchcase(name, pattern) for name in feature.outputs for pattern in patterns)
    if feature.admit_after > 1 and not is_read:
        raise ValueError(f"{where}: admit_after is for models.dlrm, which does not read it; leave it out")
    if feature.evict_after_days is not None and (dlrm is None or not is_read or dlrm.retrain != "warm"):
        raise ValueError(f"{where}: evict_after_days is for a models.dlrm that reads it, with retrain: warm alone")


def _check_alone(dlrm: DLRMModel, features: Features) -> None:
    """Refuse what only a training by one process does."""
    declared = [
        f"hash '{feature.outputs[0]}' declares {key}"
        for feature in features.columns if isinstance(feature, Hash)
        for key in ("admit_after", "evict_after_days") if getattr(feature, key) != Hash.model_fields[key].default
    ]  # fmt: skip
    if dlrm.cached_rows is not None:
        declared.append("models.dlrm declares cached_rows")
    if declared:
        raise ValueError(
            f"runtime.cluster.workers.dlrm: {declared[0]}, which needs the embedding table in one process; several"
            " spread it by rows. Declare one or the other."
        )


def _owner(name: str, data: Data) -> SideTable | None:
    return next((table for table in data.side_tables if name in {column.name for column in table.columns}), None)


def _check_history(name: str, data: Data, where: str) -> None:
    column = _column(name, data, where)
    owner = _owner(name, data)
    if column.type != "tags" or owner is None or data.user is None or owner.key != data.user or data.item is None:
        raise ValueError(
            f"{where}: '{name}' must be a tags column, holding item keys, of a side table keyed by the user"
        )
