"""Kubeflow wrapper of shortlist.features.fan_out.merge_groups."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def merge_features(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    previous: str,
    partitions: int,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    counted: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    fitted: dsl.Output[dsl.Dataset],
) -> list:
    """Make vocabularies and Feast views of what the groups counted; return the groups in which the table is built.

    A group says `slices` too; see `join_raw_log`.
    """
    import json
    from pathlib import Path

    from shortlist.contracts import Files
    from shortlist.features.fan_out import merge_groups
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.groups import groups_of, written
    from shortlist.storage.tables import DayTable
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("merge_features") as this:
        log, groups = Path(valid_log.path), [Path(group.path) for group in counted]
        declared, options = DeclaredSections.parse(data, features, slices), load_runtime(runtime)
        merge_groups(declared, options, log, groups, previous, Path(fitted.path))
        table = DayTable.open(log, Files.LOG)
        this.rows = table.rows
    write_metadata(fitted, step=this.record)
    return [json.dumps({"days": written(group), "slices": slices}) for group in groups_of(table.days, partitions)]
