"""Kubeflow wrapper of shortlist.training.tuning.batches: the best settings of all batches, as a patch."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
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
        tracker = RunContext(name=name, stores=stores, code=code).tracker
        return choose_best_trials([Path(study.path) for study in studies], name, tracker, Path(outcome.path))
