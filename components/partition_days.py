"""Kubeflow wrapper of shortlist.features.fan_out.share_counting: the days to count, in groups."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def partition_days(
    data: str,
    features: str,
    slices: list,
    runtime: str,
    cluster: str,
    previous: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
) -> NamedTuple("Sharing", [("Output", list), ("previous", str), ("partitions", int)]):  # type: ignore[valid-type]
    """Share out the days that `previous` has not counted; return the groups, `previous` if it fits, how many may be.

    The groups are named Output because kfp.local loops over no other name. A group says `slices` too; see
    `join_raw_log`.
    """
    import json
    from pathlib import Path

    from shortlist.features.fan_out import group_uncounted_days
    from shortlist.spec.cluster import Cluster
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.steps import step

    with step("partition_days"):
        partitions = Cluster.model_validate_json(cluster).partitions
        declared, options = DeclaredSections.parse(data, features, slices), Runtime.model_validate_json(runtime)
        sharing = group_uncounted_days(declared, options, Path(valid_log.path), partitions, previous)
    groups = [json.dumps({"days": group, "slices": slices}) for group in sharing.groups]
    return (groups, sharing.previous, partitions)
