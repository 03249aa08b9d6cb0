"""Kubeflow wrapper of shortlist.features.fan_out.count_group."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def count_days(
    data: str,
    features: str,
    runtime: str,
    group: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    counted: dsl.Output[dsl.Dataset],
) -> None:
    """Count the statistics of a group of days."""
    import json
    from pathlib import Path

    from shortlist.features.fan_out import count_group
    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.storage.groups import read
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("count_days") as this:
        own = json.loads(group)
        declared, options = DeclaredSections.parse(data, features, own["slices"]), load_runtime(runtime)
        this.rows = count_group(declared, options, Path(valid_log.path), read(own["days"]), Path(counted.path))
    write_metadata(counted, step=this.record)
