"""Steps from a valid log to the feature table: each in one pod, or over groups of days."""

from typing import Any, NamedTuple

from kfp import dsl

from components.build_days import build_days
from components.build_table import build_table
from components.count_days import count_days
from components.fit_features import fit_features
from components.join_table import join_table
from components.merge_features import merge_features
from components.partition_days import partition_days
from pipelines.steps import add_step


class FeatureArtefacts(NamedTuple):
    """Artefacts that later steps read."""

    fitted: Any
    """Statistics, vocabularies, views."""
    table: Any
    """The feature table."""


def features_in_one_pod(declared: dict[str, Any], previous: Any, valid_log: Any) -> FeatureArtefacts:
    """Add the steps that read the whole log each.

    Args:
        declared: Parameters that define the table.
        previous: Path of earlier fitted features.
        valid_log: The artefact of the valid log.
    """
    fitted = add_step(fit_features, **declared, previous=previous, valid_log=valid_log).outputs["fitted"]
    table = add_step(build_table, **declared, valid_log=valid_log, fitted=fitted)
    return FeatureArtefacts(fitted, table.outputs["table"])


def over_groups_of_days(declared: dict[str, Any], previous: Any, valid_log: Any, cluster: Any) -> FeatureArtefacts:
    """Add the steps that read some days each, and those that put together what they wrote: the same artefacts.

    Args:
        declared: Parameters that say what the table holds.
        previous: Path of earlier fitted features.
        valid_log: Artefact.
        cluster: Says how many groups there may be.
    """
    # The earlier features that it found may be gone when the same question is asked again.
    grouping_inputs = {"cluster": cluster, "previous": previous, "valid_log": valid_log}
    grouped = add_step(partition_days, cached=False, **declared, **grouping_inputs)
    sections = {name: section for name, section in declared.items() if name != "slices"}  # a group of days says them
    with dsl.ParallelFor(items=grouped.outputs["Output"], name="count") as group:
        counted = add_step(count_days, **sections, group=group, valid_log=valid_log)
    merged = add_step(
        merge_features,
        **declared,
        previous=grouped.outputs["previous"],
        partitions=grouped.outputs["partitions"],
        valid_log=valid_log,
        counted=dsl.Collected(counted.outputs["counted"]),
    )
    fitted = merged.outputs["fitted"]
    with dsl.ParallelFor(items=merged.outputs["Output"], name="build") as group:
        built = add_step(build_days, **sections, group=group, valid_log=valid_log, fitted=fitted)
    parts = dsl.Collected(built.outputs["part"])
    joined = add_step(join_table, code=declared["code"], valid_log=valid_log, parts=parts)
    return FeatureArtefacts(fitted, joined.outputs["table"])
