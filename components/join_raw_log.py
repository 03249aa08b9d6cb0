"""Kubeflow wrapper of shortlist.data.join_raw_log."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def join_raw_log(
    data: str,
    runtime: str,
    collected: str,
    until: str,
    partitions: int,
    code: str,
    parts: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    raw_log: dsl.Output[dsl.Dataset],
) -> list:
    """Make one raw log of what was read in groups, and of what was collected; return the groups of days to validate.

    A group says `until` too: kfp.local gives a task in a loop no other step's parameters.
    """
    import json
    from pathlib import Path

    from shortlist.data.collected import CollectedRows
    from shortlist.data.join_raw_log import join_raw_log
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.storage.groups import groups_of, written
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("join_raw_log") as this:
        declared, settings = Data.model_validate_json(data), Runtime.model_validate_json(runtime)
        groups = [Path(part.path) for part in parts]
        table = join_raw_log(declared, groups, Path(raw_log.path), settings, CollectedRows.parse(collected))
        this.rows = table.rows
    ends = [str(part.day) for part in (*table.days[:1], *table.days[-1:])]
    write_metadata(raw_log, step=this.record, rows=table.rows, days="..".join(ends))
    return [json.dumps({"days": written(one), "until": until}) for one in groups_of(table.days, partitions) or [[]]]
