"""Kubeflow wrapper of shortlist.training.tuning.batches: the batches of trials that run in parallel."""

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
