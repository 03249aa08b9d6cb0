"""Kubeflow wrapper of models.training; one task per kind of model."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def train(
    kind: str,
    section: str,
    name: str,
    runtime: str,
    input_digest: str,
    stores: str,
    trigger: str,
    reasons: list,
    key: str,
    until: str,
    earlier: str,
    cluster: str,
    code: str,
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    scores: dsl.Output[dsl.Dataset],
) -> None:
    """Train one kind of model, track it, and score the validation and test days; nothing when it is not declared."""
    from pathlib import Path

    from models.training import Origin, train_and_track
    from shortlist.config.runtime import Runtime
    from shortlist.tracking.lineage import Cause
    from shortlist.tracking.steps import step

    with step(f"train_{kind}") as this:
        inputs = Path(fitted.path), Path(table.path)
        outputs = Path(model.path), Path(scores.path)
        cause = Cause.parse(trigger, key, reasons, until)
        made_of = {"input_digest": input_digest, "code": code, "cause": cause, "earlier": earlier}
        origin = Origin(name=name, stores=stores, cluster=cluster, **made_of)
        done = train_and_track(kind, section, Runtime.model_validate_json(runtime), origin, *inputs, *outputs)
        this.rows = done.rows
    model.metadata.update({"step": this.record, "mlflow_run": done.run, "begun": done.begun})
