"""Kubeflow wrapper of shortlist.evaluation.evaluate_gates: all gates for all candidates, and one verdict."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def evaluate_gates(
    gates: str,
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
    slates: dsl.Input[dsl.Dataset] = None,
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
    from shortlist.training.ensembles import ensemble_artefacts

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
        stages = (Path(artefact.path) if artefact else None for artefact in (retrieval, slates))
        blessed = evaluate_gates(limits, seed, candidates, *evidence, Path(verdict.path), *stages)
    write_metadata(verdict, step=running_step.record, blessed=blessed or "none")
    show_metrics(metrics, verdict_numbers(Path(verdict.path)))
    return blessed or "none"
