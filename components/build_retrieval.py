"""Kubeflow wrapper of shortlist.slates.retrieval.step: the sources of candidates with their index and metrics."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def build_retrieval(
    declared: str,
    data: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    retrieval: dsl.Output[dsl.Dataset],
) -> bool:
    """Fit and evaluate the declared sources; return whether there are any.

    Without the section the folder stays empty, and requests name their candidates.
    """
    from pathlib import Path

    out = Path(retrieval.path)
    if not declared:
        out.mkdir(parents=True, exist_ok=True)
        return False

    from shortlist.slates.retrieval.step import build_retrieval
    from shortlist.spec.data import Data
    from shortlist.spec.engine import load_runtime
    from shortlist.spec.retrieval import Retrieval
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.steps import step

    with step("build_retrieval") as running_step:
        sections = Retrieval.model_validate_json(declared), Data.model_validate_json(data)
        running_step.rows = build_retrieval(*sections, Path(valid_log.path), out, load_runtime(runtime).seed)
    write_metadata(retrieval, step=running_step.record)
    return True
