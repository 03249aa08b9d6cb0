"""Kubeflow wrapper of shortlist.evaluation.judge: every gate, every candidate, one verdict."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def judge(
    gates: str,
    runtime: str,
    code: str,
    valid_log: dsl.Input[dsl.Dataset],
    skew: dsl.Input[dsl.Dataset],
    champion: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    xgboost_scores: dsl.Input[dsl.Dataset],
    xgboost_proof: dsl.Input[dsl.Dataset],
    dlrm: dsl.Input[dsl.Model],
    dlrm_scores: dsl.Input[dsl.Dataset],
    dlrm_proof: dsl.Input[dsl.Dataset],
    popularity_scores: dsl.Input[dsl.Dataset],
    verdict: dsl.Output[dsl.Dataset],
) -> str:
    """Return the blessed kind of model, or "none"; the verdict folder holds every gate's reason and the blessing."""
    from pathlib import Path

    from shortlist.config.gates import Gates
    from shortlist.config.runtime import Runtime
    from shortlist.evaluation.judge import Candidate, judge
    from shortlist.tracking.steps import step

    with step("judge") as this:
        candidates = {"xgboost": (xgboost, xgboost_scores, xgboost_proof), "dlrm": (dlrm, dlrm_scores, dlrm_proof)}
        paths = {kind: Candidate(*(Path(one.path) for one in left)) for kind, left in candidates.items()}
        evidence = Path(valid_log.path), Path(skew.path), Path(champion.path), Path(popularity_scores.path)
        limits = Gates.model_validate_json(gates), Runtime.model_validate_json(runtime).seed
        blessed = judge(*limits, paths, *evidence, Path(verdict.path))
    verdict.metadata["step"] = this.record
    return blessed or "none"
