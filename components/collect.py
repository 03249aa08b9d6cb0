"""Kubeflow wrapper of shortlist.collecting.collector: served rows are added to the log when their outcomes are due."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def collect(name: str, data: str, serving: str, runtime: str, stores: str, code: str) -> int:
    """Publish rows that are due in batches, exactly once; return their number, 0 where the spec collects nothing."""
    from shortlist.collecting.collector import Collector
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.steps import note, step

    with step("collect") as running_step:
        declared = Data.model_validate_json(data)
        if not declared.live.collect:
            return 0
        chunk_rows = Runtime.model_validate_json(runtime).chunk_rows
        collected = Collector(name, stores, declared, Serving.model_validate_json(serving), chunk_rows).collect()
        note("\n".join(collected.lines))
        running_step.rows = collected.rows
    return collected.rows
