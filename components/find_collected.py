"""Kubeflow wrapper of shortlist.data.collected: the rows of live traffic that there are now."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def find_collected(name: str, data: str, stores: str, code: str) -> str:
    """Return which batches were collected until now; empty where the spec collects nothing."""
    from shortlist.data.collected import CollectedRows
    from shortlist.spec.data import Data
    from shortlist.tracking.steps import step

    with step("find_collected"):
        return CollectedRows.newest(Data.model_validate_json(data), stores, name)
