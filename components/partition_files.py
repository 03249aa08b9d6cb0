"""Kubeflow wrapper of shortlist.data.file_groups.partition_files: the log's files, in groups."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def partition_files(
    data: str,
    runtime: str,
    cluster: str,
    log: dict,
    code: str,
) -> NamedTuple("Sharing", [("Output", list), ("partitions", int)]):  # type: ignore[valid-type]
    """Share out the files of the log; return the groups, and how many groups there may be.

    The groups are named Output because kfp.local loops over no other name.
    """
    from functools import partial

    from shortlist.data.file_groups import needed_to_partition, partition_files
    from shortlist.data.reading.remote_input import fetch_input
    from shortlist.spec.cluster import Cluster
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.steps import step

    declared = Data.model_validate_json(data)
    with step("partition_files"), fetch_input(log["location"], partial(needed_to_partition, declared)) as files:
        partitions = Cluster.model_validate_json(cluster).partitions
        groups = partition_files(declared, files, Runtime.model_validate_json(runtime), partitions)
    return ([group.model_dump_json() for group in groups], partitions)
