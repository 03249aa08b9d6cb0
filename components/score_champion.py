"""Kubeflow wrapper of shortlist.training.champion: the serving model on this run's rows."""

from typing import List  # noqa: UP035 - Kubeflow reads this spelling alone

from kfp import dsl

from components.image import PIPELINE_IMAGE


@dsl.component(base_image=PIPELINE_IMAGE, install_kfp_package=False)
def score_champion(
    version: str,
    name: str,
    data: str,
    features: str,
    slices: list,
    runtime: str,
    stores: str,
    code: str,
    retrieval: str,
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
    from shortlist.training.champion import score_champion, serving_version

    with step("score_champion") as running_step:
        paths = Path(valid_log.path), Path(fitted.path), Path(champion.path)
        declared, options = DeclaredSections.parse(data, features, slices), load_runtime(runtime)
        context = RunContext(name=name, stores=stores)
        score_champion(serving_version(context), context, declared, options, *paths, slates=bool(retrieval))
    write_metadata(champion, step=running_step.record)
