"""Kubeflow wrapper of shortlist.training.tuning.batches: the trials of one batch, one after another."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def run_trials(
    batch: str,
    name: str,
    runtime: str,
    stores: str,
    code: str,
    table: dsl.Input[dsl.Dataset],
    study: dsl.Output[dsl.Dataset],
) -> int:
    """Run a batch's trials; return their number. The folder holds the study and its outcome."""
    from pathlib import Path

    from shortlist.spec.runtime import Runtime
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.tuning.batches import TrialBatch, run_trial_batch

    with step("run_trials"):
        tracker = RunContext(name=name, stores=stores, code=code).tracker
        arguments = TrialBatch.model_validate_json(batch), Runtime.model_validate_json(runtime)
        batch_study = run_trial_batch(*arguments, Path(table.path), tracker, Path(study.path))
    return len(batch_study.trials)
