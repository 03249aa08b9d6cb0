"""Steps that search for better settings of models."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl


def plan_trials(
    name: str, models: list, tune: str, runtime: str, stores: str, code: str, table: dsl.Input[dsl.Dataset]
) -> list:
    """Return the batches of trials, each a text that `run_trials` reads."""
    from pathlib import Path

    from shortlist.spec.runtime import Runtime
    from shortlist.spec.tune import Tune
    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.tuning.batches import plan_batches

    with step("plan_trials"):
        tracker = RunContext(name=name, stores=stores, code=code).tracker
        limits = Tune.model_validate_json(tune), Runtime.model_validate_json(runtime)
        return plan_batches(models, *limits, Path(table.path), tracker)


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
        context = RunContext(name=name, stores=stores, code=code)
        arguments = TrialBatch.model_validate_json(batch), Runtime.model_validate_json(runtime)
        batch_study = run_trial_batch(*arguments, Path(table.path), context, Path(study.path))
    return len(batch_study.trials)


def choose_settings(
    name: str,
    stores: str,
    code: str,
    studies: dsl.Input[List[dsl.Dataset]],  # noqa: UP006
    outcome: dsl.Output[dsl.Dataset],
) -> str:
    """Write patch, trials and page of every model; return the best trial of each, as JSON. Nothing is applied."""
    from pathlib import Path

    from shortlist.tracking.run_context import RunContext
    from shortlist.tracking.steps import step
    from shortlist.training.tuning.batches import choose_best_trials

    with step("choose_settings", outcome=outcome.path):
        context = RunContext(name=name, stores=stores, code=code)
        return choose_best_trials([Path(study.path) for study in studies], context, Path(outcome.path))
