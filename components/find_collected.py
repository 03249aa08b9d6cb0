"""Kubeflow wrapper of shortlist.data.collected: the rows of live traffic that there are now."""

from typing import NamedTuple

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_collected(name: str, data: str, stores: str, code: str) -> NamedTuple(  # type: ignore[valid-type]
    "Collected", [("collected", str), ("now", str)]
):
    """Return which batches were collected until now, empty where the spec collects nothing; and the present moment.

    The moment is that against which freshness is judged, empty where no rule asks for it.
    """
    from datetime import UTC, datetime

    from shortlist.data.collected import CollectedRows
    from shortlist.data.until import freshness_moment
    from shortlist.spec.data import Data
    from shortlist.tracking.steps import step

    with step("find_collected"):
        rows = Data.model_validate_json(data)
        return (CollectedRows.describe_newest(rows, stores, name), freshness_moment(rows, datetime.now(UTC)))
