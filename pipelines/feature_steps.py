"""Steps from a valid log to the feature table."""

from typing import Any, NamedTuple

from components.build_table import build_table
from components.fit_features import fit_features
from pipelines.steps import add_step


class FeatureArtefacts(NamedTuple):
    """Artefacts that later steps read."""

    fitted: Any
    """Statistics, vocabularies, views."""
    table: Any
    """The feature table."""


def add_feature_steps(declared: dict[str, Any], previous: Any, valid_log: Any) -> FeatureArtefacts:
    """Add the steps that count statistics and build the feature table.

    Args:
        declared: Parameters that define the table.
        previous: Path of earlier fitted features.
        valid_log: The artefact of the valid log.
    """
    fitted = add_step(fit_features, **declared, previous=previous, valid_log=valid_log).outputs["fitted"]
    table = add_step(build_table, **declared, valid_log=valid_log, fitted=fitted)
    return FeatureArtefacts(fitted, table.outputs["table"])
