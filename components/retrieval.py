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
    slates: dsl.Output[dsl.Dataset],
    model: dsl.Input[dsl.Model] = None,
    ensembles: dsl.Input[dsl.Model] = None,
) -> bool:
    """Make the slates of a sample of the test days' users with a model, or all ensembles; return whether any were made.

    Where no sources are declared the folder stays empty, and requests name their candidates; so it does for a baseline.
    """
    from pathlib import Path

    from shortlist.slates.step import RELEASE

    out, stages = Path(slates.path), Path(release.path) / RELEASE
    out.mkdir(parents=True, exist_ok=True)

    from shortlist.tracking.artefact_metadata import artefacts_by_model, read_metadata, write_metadata

    if model:
        model_metadata = {name: read_metadata(model, name) for name in ("model", "kind", "role")}
        write_metadata(slates, **model_metadata)
    if not stages.is_dir() or (model and model_metadata["role"] != "candidate"):
        return False

    from shortlist.serving.validation.slates import evaluate_candidates
    from shortlist.spec.data import Data
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts

    with step(f"evaluate_slates_{model_metadata['model']}" if model else "evaluate_slates") as running_step:
        candidate_artefacts = artefacts_by_model([model] if model else ensemble_artefacts(ensembles, "model"))
        candidates = {name: Path(artefact.path) for name, artefact in candidate_artefacts.items()}
        paths = Path(valid_log.path), Path(fitted.path), out
        evaluate_candidates(stages, Data.model_validate_json(data), candidates, *paths, load_runtime(runtime).seed)
    write_metadata(slates, step=running_step.record)
    return True
