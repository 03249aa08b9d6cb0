"""Kubeflow wrapper of shortlist.data.validate.validate_days."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def validate_days(
    data: str,
    runtime: str,
    group: str,
    code: str,
    raw_log: dsl.Input[dsl.Dataset],
    part: dsl.Output[dsl.Dataset],
) -> None:
    """Split the rows of some days into valid and quarantined ones."""
    import json
    from pathlib import Path

    from shortlist.data.until import parse_until
    from shortlist.data.validate import validate_days
    from shortlist.spec.data import Data
    from shortlist.spec.runtime import Runtime
    from shortlist.storage.groups import read
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("validate_days") as this:
        declared, settings = Data.model_validate_json(data), Runtime.model_validate_json(runtime)
        own = json.loads(group)
        paths = Path(raw_log.path), read(own["days"]), Path(part.path)
        this.rows = validate_days(declared, *paths, settings, parse_until(own["until"]))
    write_metadata(part, step=this.record)
