"""Whether the numbers and ids that an earlier model reads still mean what they meant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from models.ranker import MisfitError
from shortlist.artefacts import read_json
from shortlist.config.features import Features
from shortlist.contracts import Files


def refuse_other_meaning(features: Sequence[str], before: Path, now: Path) -> None:
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
            raise MisfitError(f"data.{name} is declared otherwise than for the earlier model")
    made_then, made_now = _operations(then["features"]), _operations(declared["features"])
    for name in features:
        if made_now.get(name) != made_then.get(name):
            raise MisfitError(f"feature '{name}' is declared otherwise than for the earlier model")
        if made_now[name]["kind"] == "vocabulary":
            _refuse_moved_ids(name, Path("vocabularies") / f"{made_now[name]['column']}.parquet", before, now)


def _refuse_moved_ids(name: str, file: Path, before: Path, now: Path) -> None:
    known, grown = pl.read_parquet(before / file), pl.read_parquet(now / file)
    if not grown.head(known.height).equals(known):
        raise MisfitError(
            f"ids of '{name}' mean other values than for the earlier model: its log had other days or rows"
        )


def _operations(features: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what makes each feature, by the feature's name."""
    made = {}
    for operation in Features.model_validate(features).columns:
        columns = getattr(operation, "each", (None,) * len(operation.outputs))
        for name, column in zip(operation.outputs, columns, strict=True):
            made[name] = operation.model_dump(mode="json", exclude={"each", *_NOT_VALUES}) | {"column": column}
    return made


_NOT_MEANING = {"source", "rules", "split"}
"""Keys of the data section that do not change what a row means."""
_NOT_VALUES = {"admit_after", "evict_after_days"}
"""Keys of a feature that do not change its values, only how a DLRM learns them."""
