"""Kubeflow wrapper of shortlist.collecting.collector: served rows whose outcomes are due become part of the log."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def collect(name: str, data: str, serving: str, runtime: str, stores: str, code: str) -> int:
    """Publish what is due as batches of rows, exactly once; return the rows, 0 where the spec collects nothing."""
    from shortlist.collecting.collector import Collector
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.steps import note, step

    with step("collect") as this:
        declared = Data.model_validate_json(data)
        if not declared.live.collect:
            return 0
        chunk_rows = Runtime.model_validate_json(runtime).chunk_rows
        found = Collector(name, stores, declared, Serving.model_validate_json(serving), chunk_rows).collect()
        note("\n".join(found.lines))
        this.rows = found.rows
    return found.rows
