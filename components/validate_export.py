"""Kubeflow wrapper of shortlist.serving.validation: what the exported model does on a real Triton."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def validate_export(
    gates: str,
    serving: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    scores: dsl.Input[dsl.Dataset],
    proof: dsl.Output[dsl.Dataset],
) -> None:
    """Score test rows in-process, by the exported file and by a real Triton, and put it under load.

    A baseline is never served: there is nothing to do.
    """
    from pathlib import Path

    from shortlist.serving.validation.validate_export import validate_export
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.steps import step

    about = {name: model.metadata[name] for name in ("model", "kind", "role")}
    if about["role"] != "candidate":
        Path(proof.path).mkdir(parents=True, exist_ok=True)
        proof.metadata.update(about)
        return
    with step(f"validate_export_{about['model']}") as this:
        inputs = Path(model.path), Path(scores.path), Path(valid_log.path), Path(fitted.path)
        limits, section = Gates.model_validate_json(gates), Serving.model_validate_json(serving)
        found = validate_export(*inputs, limits, section, Runtime.model_validate_json(runtime).seed, Path(proof.path))
        this.rows = found.parity.triton.rows if found is not None and found.parity is not None else None
    proof.metadata.update({**about, "step": this.record})
