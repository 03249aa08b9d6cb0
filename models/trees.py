"""The features that boosted trees read, and their importance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from models.objective_section import ObjectiveSection
from models.objectives import learning_lists
from shortlist.contracts import Columns, ShortlistError
from shortlist.ranking.inputs import LearningTable, TableFeature, features_matching
from shortlist.ranking.matrix import float_names
from shortlist.storage.tables import DayTable


def tree_learning_table(table: DayTable, section: ObjectiveSection, name: str) -> LearningTable:
    """Return the columns and days that trees learn from.

    Args:
        table: The feature table.
        section: The section, with the patterns of the features and the objective.
        name: Key of the model in the spec.

    Raises:
        ShortlistError: One of the features is a list of ids.
    """
    features = features_matching(table, section.reads)
    lists = [feature.name for feature in features if feature.kind == "ids"]
    if lists:
        raise ShortlistError(
            f"models.{name}.features: {', '.join(lists)}: trees cannot read lists of ids;"
            " leave them out, or declare a target or count of the tags column"
        )
    return learning_lists(table, features, section)


def gain_shares(gains: Mapping[str, float], features: Sequence[TableFeature]) -> dict[str, float]:
    """Return every feature's share of the total gain, largest first; the components of a vector are summed.

    Args:
        gains: Gain by name of a float, see `float_names`.
        features: The features that the model reads.
    """
    by_feature = {feature.name: sum(gains.get(name, 0.0) for name in float_names([feature])) for feature in features}
    total = sum(by_feature.values()) or 1.0
    return {name: gain / total for name, gain in sorted(by_feature.items(), key=lambda item: -item[1])}


def labels_of(frame: pl.DataFrame) -> Any:
    """Return the labels of a frame."""
    return frame[Columns.LABEL].to_numpy()
