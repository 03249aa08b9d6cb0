"""Kubeflow wrapper of shortlist.evaluation.evaluate_gates: every gate, every candidate, one verdict."""

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
    from shortlist.tracking.artefact_metadata import read_metadata, write_metadata
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts as parts_of

    with step("evaluate_gates") as this:
        limits, seed = Gates.model_validate_json(gates), Runtime.model_validate_json(runtime).seed
        both = scores + parts_of(ensembles, "scores"), validations + parts_of(ensembles, "export_validation")
        scored, validated = ({read_metadata(one, "model"): Path(one.path) for one in left} for left in both)
        named = {read_metadata(one, "model"): one for one in models if read_metadata(one, "role") == "candidate"}
        named |= {read_metadata(one, "model"): one for one in parts_of(ensembles, "model")}
        candidates = {
            name: Candidate(Path(one.path), scored[name], validated[name], tuple(read_metadata(one, "members", ())))
            for name, one in named.items()
        }
        evidence = Path(valid_log.path), Path(skew.path), Path(champion.path), scored[limits.baseline or ""]
        stages = (Path(one.path) if one else None for one in (retrieval, slates))
        blessed = evaluate_gates(limits, seed, candidates, *evidence, Path(verdict.path), *stages)
    write_metadata(verdict, step=this.record, blessed=blessed or "none")
    show_metrics(metrics, verdict_numbers(Path(verdict.path)))
    return blessed or "none"
