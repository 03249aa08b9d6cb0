"""Steps that fit the sources of candidates and evaluate the slates made of them."""

from kfp import dsl


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


def evaluate_slates(
    data: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    release: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    slates: dsl.Output[dsl.Dataset],
) -> None:
    """Make the slates of a sample of the test days' users with a candidate.

    Where no sources are declared the folder stays empty, and requests name their candidates; so it does for a baseline.
    """
    from pathlib import Path

    from shortlist.slates.step import RELEASE
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata

    out, stages = Path(slates.path), Path(release.path) / RELEASE
    out.mkdir(parents=True, exist_ok=True)
    model_metadata = {name: read_metadata(model, name) for name in ("model", "kind", "role")}
    write_metadata(slates, **model_metadata)
    if not stages.is_dir() or model_metadata["role"] != "candidate":
        return

    from shortlist.serving.validation.slates import evaluate_slates_of_model
    from shortlist.spec.data import Data
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.steps import step

    with step(f"evaluate_slates_{model_metadata['model']}") as running_step:
        paths = Path(model.path), Path(valid_log.path), Path(fitted.path), out / model_metadata["model"]
        evaluate_slates_of_model(stages, Data.model_validate_json(data), *paths, load_runtime(runtime).seed)
    write_metadata(slates, step=running_step.record)
