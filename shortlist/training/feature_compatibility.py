"""Whether the numbers and ids that an earlier model reads still mean what they meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from models.ranker import IncompatibleModelError
from shortlist.contracts import Files
from shortlist.features.columns import DeclaredColumns
from shortlist.features.kinds.base import kinds_of
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.storage.artefacts import read_json


def check_feature_compatibility(features: Sequence[str], before: Path, now: Path) -> None:
    """Refuse to go on from weights whose inputs are made otherwise now.

    Ids may have been appended, and the means of standardised numbers may have moved a little with the new days.

    Args:
        features: What the earlier model reads.
        before: The preprocessing that it was trained with.
        now: What features are fitted to now.

    Raises:
        MisfitError: Names the first difference.
    """
    then, declared = (read_json(folder / Files.FEATURES) for folder in (before, now))
    for name in declared["data"].keys() - _NOT_MEANING:
        if then["data"].get(name) != declared["data"][name]:
            raise IncompatibleModelError(f"data.{name} is declared otherwise than for the earlier model")
    made_then, made_now = _operations(then["features"]), _operations(declared["features"])
    counted = _counted_columns(declared)
    for name in features:
        if made_now.get(name) != made_then.get(name):
            raise IncompatibleModelError(f"feature '{name}' is declared otherwise than for the earlier model")
        if counted[name]:
            _check_stable_ids(name, Path("vocabularies") / f"{counted[name]}.parquet", before, now)


def _check_stable_ids(name: str, file: Path, before: Path, now: Path) -> None:
    known, grown = pl.read_parquet(before / file), pl.read_parquet(now / file)
    if not grown.head(known.height).equals(known):
        raise IncompatibleModelError(
            f"ids of '{name}' mean other values than for the earlier model: its log had other days or rows"
        )


def _counted_columns(saved: dict[str, Any]) -> dict[str, str]:
    """Return the column whose vocabulary gives each feature its ids; empty for the others."""
    declared = DeclaredColumns(Data.model_validate(saved["data"]))
    found = {}
    for operation in kinds_of(Features.model_validate(saved["features"])):
        for number, name in enumerate(operation.outputs):
            ids = operation.declared_ids(number, declared)
            found[name] = ids.counted_column if ids is not None else ""
    return found


def _operations(features: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what makes each feature, by the feature's name."""
    made, declared = {}, Features.model_validate(features)
    for operation in declared.columns:
        columns = getattr(operation, "each", (None,) * len(operation.outputs))
        for name, column in zip(operation.outputs, columns, strict=True):
            made[name] = operation.model_dump(mode="json", exclude={"each", *_NOT_VALUES}) | {"column": column}
            if operation.streamed:
                made[name]["streaming"] = declared.streaming and declared.streaming.delay
    return made


_NOT_MEANING = {"source", "rules", "split"}
"""Keys of the data section that do not change what a row means."""
_NOT_VALUES = {"admit_after", "evict_after_days"}
"""Keys of a feature that do not change its values, only how a DLRM learns them."""
