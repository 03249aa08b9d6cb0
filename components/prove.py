"""Kubeflow wrapper of shortlist.serving.proof: what the exported model does on a real Triton."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def prove(
    kind: str,
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
    """Score test rows in-process, by the exported file and by a real Triton, and put it under load."""
    from pathlib import Path

    from shortlist.config.gates import Gates
    from shortlist.config.runtime import Runtime
    from shortlist.config.serving import Serving
    from shortlist.serving.proof.prove import prove
    from shortlist.tracking.steps import step

    with step(f"prove_{kind}") as this:
        inputs = Path(model.path), Path(scores.path), Path(valid_log.path), Path(fitted.path)
        limits, section = Gates.model_validate_json(gates), Serving.model_validate_json(serving)
        found = prove(*inputs, limits, section, Runtime.model_validate_json(runtime).seed, Path(proof.path))
        this.rows = found.parity.triton.rows if found is not None and found.parity is not None else None
    proof.metadata["step"] = this.record
