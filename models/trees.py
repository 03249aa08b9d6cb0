"""What kinds of boosted trees share: which features they read, and which of them matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from models.inputs import FeatureColumn, LearningTable, chosen
from models.matrix import float_names
from models.objective_section import ObjectiveSection
from models.objectives import learning_lists
from shortlist.contracts import Columns, ShortlistError
from shortlist.storage.tables import DayTable


def trees_learn_from(table: DayTable, section: ObjectiveSection, name: str) -> LearningTable:
    """Return the columns and days that trees learn from.

    Args:
        table: The feature table.
        section: With the patterns of the features, and the objective.
        name: What the user calls the model.

    Raises:
        ShortlistError: One of the features is a list of ids.
    """
    features = chosen(table, section.reads)
    lists = [feature.name for feature in features if feature.kind == "ids"]
    if lists:
        raise ShortlistError(
            f"models.{name}.features: {', '.join(lists)}: trees cannot read lists of ids;"
            " leave them out, or declare a target or count of the tags column"
        )
    return learning_lists(table, features, section)


def gain_shares(gains: Mapping[str, float], features: Sequence[FeatureColumn]) -> dict[str, float]:
    """Return every feature's share of the total gain, largest first; a vector's components add up.

    Args:
        gains: By name of a float, see `float_names`.
        features: What the model reads.
    """
    by_feature = {one.name: sum(gains.get(name, 0.0) for name in float_names([one])) for one in features}
    total = sum(by_feature.values()) or 1.0
    return {name: gain / total for name, gain in sorted(by_feature.items(), key=lambda item: -item[1])}


def labels_of(frame: pl.DataFrame) -> Any:
    """Return the labels of rows."""
    return frame[Columns.LABEL].to_numpy()
