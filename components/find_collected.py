"""Kubeflow wrapper of shortlist.data.collected: the rows collected from live traffic until now."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_collected(name: str, data: str, stores: str, code: str) -> NamedTuple(  # type: ignore[valid-type]
    "Collected", [("collected", str), ("now", str)]
):
    """Return the batches collected until now, empty where the spec collects nothing, and the current time.

    The time is the reference of freshness rules, empty where no rule needs it.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.spec.data import Data
    from shortlist.tracking.steps import step

    with step("find_collected"):
        rows = Data.model_validate_json(data)
        return (CollectedRows.describe_newest(rows, stores, name), freshness_moment(rows, datetime.now(UTC)))
