"""The step that writes the page and the summary of a run."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl


def report(
    name: str,
    gates: str,
    runtime: str,
    stores: str,
    log: dict,
    cause: dict,
    code: str,
    started: str,
    version: str,
    baseline_step: str,
    registered: str,
    raw_log: dsl.Input[dsl.Dataset],
    valid_log: dsl.Input[dsl.Dataset],
    quarantine: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    table: dsl.Input[dsl.Dataset],
    skew: dsl.Input[dsl.Dataset],
    champion: dsl.Input[dsl.Dataset],
    verdict: dsl.Input[dsl.Dataset],
    models: dsl.Input[List[dsl.Model]],  # noqa: UP006
    scores: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    validations: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    page: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Dataset],
    comparison: dsl.Output[dsl.Dataset],
    retrieval: dsl.Input[dsl.Dataset] = None,
    release: dsl.Input[dsl.Dataset] = None,
    slates: dsl.Input[List[dsl.Dataset]] = None,  # noqa: UP006
    ensembles: dsl.Input[dsl.Model] = None,
) -> None:
    """Write the page, the machine-readable summary, and the comparison of models; end the run in MLflow."""
    from pathlib import Path

    from shortlist.deployment.registration import record_run
    from shortlist.report.assembly import write_run
    from shortlist.tracking.artefact_metadata import artefacts_by_model, read_metadata
    from shortlist.tracking.lineage import run_lineage
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.ensembles import ensemble_artefacts

    with step("report", page=page.path, summary=summary.path, comparison=comparison.path):
        trained = artefacts_by_model(models + ensemble_artefacts(ensembles, "model"))
        scored = artefacts_by_model(scores + ensemble_artefacts(ensembles, "scores"))
        checks = artefacts_by_model(validations + ensemble_artefacts(ensembles, "export_validation"))
        single_outputs = raw_log, fitted, skew, retrieval, release, champion, ensembles
        write_run(
            {"spec": name, "gates": gates, "runtime": runtime, "started": started, "version": version},
            run_lineage(log, cause, code), [baseline_step, registered],
            {"valid_log": valid_log, "quarantine": quarantine, "table": table, "verdict": verdict},
            [*filter(None, single_outputs), *checks.values(), *(slates or ())],
            trained,
            {model: (artefact, checks[model]) for model, artefact in scored.items()},
            (page.path, summary.path, comparison.path),
        )  # fmt: skip
        runs = {model: read_metadata(artefact, "mlflow_run") for model, artefact in trained.items()}
        record_run(RunContext(name=name, stores=stores), Path(summary.path), Path(page.path), runs)
