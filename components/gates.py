"""Steps that measure candidates and decide which of them may be released."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl


def validate_export(
    export_limits: str,
    serving: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    scores: dsl.Input[dsl.Dataset],
    export_validation: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
) -> None:
    """Score test rows in-process, by the exported file and by a real Triton, and put it under load.

    Draws the ROC curve and the confusion matrix of the test rows. A baseline, which is never served, gets only those.
    """
    from pathlib import Path

    from shortlist.report.kubeflow_artefacts import export_numbers, show_classification, show_metrics
    from shortlist.serving.validation.validate_export import validate_export
    from shortlist.spec.gates import ExportLimits
    from shortlist.spec.runtime import Runtime
    from shortlist.spec.serving import Serving
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.steps import step

    model_metadata = {name: read_metadata(model, name) for name in ("model", "kind", "role")}
    limits = ExportLimits.model_validate_json(export_limits)
    show_classification(classification, Path(scores.path), limits.decision_threshold)
    if model_metadata["role"] != "candidate":
        show_metrics(metrics, {})
        Path(export_validation.path).mkdir(parents=True, exist_ok=True)
        write_metadata(export_validation, **model_metadata)
        return
    with step(f"validate_export_{model_metadata['model']}") as running_step:
        inputs = Path(model.path), Path(scores.path), Path(valid_log.path), Path(fitted.path)
        section, seed = Serving.model_validate_json(serving), Runtime.model_validate_json(runtime).seed
        validation = validate_export(*inputs, limits, section, seed, Path(export_validation.path))
    show_metrics(metrics, export_numbers(validation))
    write_metadata(export_validation, **model_metadata, step=running_step.record)


def score_champion(
    version: str,
    name: str,
    data: str,
    features: str,
    slices: list,
    runtime: str,
    stores: str,
    code: str,
    slates: bool,
    log: dict,
    until: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    champion: dsl.Output[dsl.Dataset],
    ensembles: dsl.Input[dsl.Model] = None,
) -> None:
    """Score the validation and test rows with the champion; record when there is none or it cannot score them.

    A cached result is valid for the same version to beat and the same models' files only, which are inputs for this
    reason. The step scores the version that serves when it runs (see shortlist.training.champion_cache).
    """
    from pathlib import Path

    from shortlist.spec.declared import DeclaredSections
    from shortlist.spec.engine import load_runtime
    from shortlist.tracking.artefact_metadata import write_metadata
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.champion import score_champion, version_to_beat
    from shortlist.training.earlier_log import LogSource

    with step("score_champion") as running_step:
        paths = Path(valid_log.path), Path(fitted.path), Path(champion.path)
        declared, options = DeclaredSections.parse(data, features, slices), load_runtime(runtime)
        context = RunContext(name=name, stores=stores)
        source = LogSource(log["location"], until)
        score_champion(version_to_beat(context), context, declared, options, *paths, slates=slates, source=source)
    write_metadata(champion, step=running_step.record)


def evaluate_gates(
    gates: str,
    gate_code: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    skew: dsl.Input[dsl.Dataset],
    champion: dsl.Input[dsl.Dataset],
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    validations: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    verdict: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
    retrieval: dsl.Input[dsl.Dataset] = None,
    slates: dsl.Input[List[dsl.Dataset]] = None,  # noqa: UP006
    ensembles: dsl.Input[dsl.Model] = None,
) -> str:
    """Return the name of the blessed model, or "none"; the verdict folder holds every reason and the blessing."""
    from pathlib import Path

    from shortlist.evaluation.evaluate_gates import Candidate, evaluate_gates
    from shortlist.report.kubeflow_artefacts import show_metrics, verdict_numbers
    from shortlist.spec.gates import Gates
    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.artefact_metadata import artefacts_by_model, read_metadata, write_metadata
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts, find_slate_folders

    with step("evaluate_gates") as running_step:
        limits, seed = Gates.model_validate_json(gates), Runtime.model_validate_json(runtime).seed
        scored = artefacts_by_model(scores + ensemble_artefacts(ensembles, "scores"))
        validated = artefacts_by_model(validations + ensemble_artefacts(ensembles, "export_validation"))
        trained = artefacts_by_model(models, "candidate") | artefacts_by_model(ensemble_artefacts(ensembles, "model"))
        members = {model: tuple(read_metadata(artefact, "members", ())) for model, artefact in trained.items()}
        candidates = {
            model: Candidate(Path(artefact.path), Path(scored[model].path), Path(validated[model].path), members[model])
            for model, artefact in trained.items()
        }
        evidence = Path(valid_log.path), Path(skew.path), Path(champion.path), Path(scored[limits.baseline or ""].path)
        stages = Path(retrieval.path) if retrieval else None, find_slate_folders(slates or [], ensembles)
        blessed = evaluate_gates(limits, seed, candidates, *evidence, Path(verdict.path), *stages)
    write_metadata(verdict, step=running_step.record, blessed=blessed or "none")
    show_metrics(metrics, verdict_numbers(Path(verdict.path)))
    return blessed or "none"


def build_reference_profile(
    name: str,
    data: str,
    features: str,
    monitoring: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    reference: dsl.Output[dsl.Dataset],
    ensembles: dsl.Input[dsl.Model] = None,
    release: dsl.Input[dsl.Dataset] = None,
) -> None:
    """Build the distributions of the training data, and every candidate's scores and quality on its test days.

    With a release, also those of what it would show for requests of the newest days.
    """
    from pathlib import Path

    from monitoring.reference.reference import build_reference
    from monitoring.reference.shown_slates import ReplayedRelease
    from shortlist.slates.step import RELEASE
    from shortlist.spec.data import Data
    from shortlist.spec.features import Features
    from shortlist.spec.monitoring import Monitoring
    from shortlist.tracking.artefact_metadata import artefacts_by_model, write_metadata
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts

    with step("build_reference_profile") as running_step:
        declared = Data.model_validate_json(data), Features.model_validate_json(features)
        scored = artefacts_by_model(scores + ensemble_artefacts(ensembles, "scores"), "candidate")
        scores_by_model = {model: Path(artefact.path) for model, artefact in scored.items()}
        settings = Monitoring.model_validate_json(monitoring)
        inputs = Path(valid_log.path), Path(fitted.path)
        replayed = None
        if release and (Path(release.path) / RELEASE).is_dir():
            candidates = artefacts_by_model(models, "candidate")
            candidates |= artefacts_by_model(ensemble_artefacts(ensembles, "model"))
            folders = {model: Path(artefact.path) for model, artefact in candidates.items()}
            replayed = ReplayedRelease(Path(release.path) / RELEASE, folders)
        build_reference(name, *declared, settings, *inputs, scores_by_model, Path(reference.path), release=replayed)
    write_metadata(reference, step=running_step.record)
