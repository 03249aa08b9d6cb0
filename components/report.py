"""Kubeflow wrapper of shortlist.evaluation.assembly: everything a person or a program wants to see of a run."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def report(
    name: str,
    gates: str,
    runtime: str,
    lineage: dict,
    started: str,
    version: str,
    found: str,
    registered: str,
    raw_log: dsl.Input[dsl.Dataset],
    valid_log: dsl.Input[dsl.Dataset],
    quarantine: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    skew: dsl.Input[dsl.Dataset],
    champion: dsl.Input[dsl.Dataset],
    xgboost_proof: dsl.Input[dsl.Dataset],
    dlrm_proof: dsl.Input[dsl.Dataset],
    verdict: dsl.Input[dsl.Dataset],
    xgboost: dsl.Input[dsl.Model],
    dlrm: dsl.Input[dsl.Model],
    popularity: dsl.Input[dsl.Model],
    logistic: dsl.Input[dsl.Model],
    logistic_scores: dsl.Input[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Dataset],
) -> None:
    """Write the page and the machine-readable summary of the run."""
    from shortlist.evaluation.assembly import write_run
    from shortlist.tracking.steps import step

    with step("report", page=page.path, summary=summary.path):
        write_run(
            {"spec": name, "gates": gates, "runtime": runtime, "started": started, "version": version},
            lineage,
            [found, registered],
            {"valid_log": valid_log, "quarantine": quarantine, "table": table, "verdict": verdict},
            [raw_log, fitted, skew, champion, xgboost_proof, dlrm_proof],
            {"xgboost": xgboost, "dlrm": dlrm, "popularity": popularity, "logistic": logistic},
            {"logistic": logistic_scores},
            (page.path, summary.path),
        )
