"""Kubeflow wrapper of models.champion: the serving model on this run's rows."""

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
    valid_log: dsl.Input[dsl.Dataset],
    fitted: dsl.Input[dsl.Dataset],
    champion: dsl.Output[dsl.Dataset],
) -> None:
    """Score the validation and test rows with the champion; say so when there is none or it cannot."""
    from pathlib import Path

    from models.champion import score_champion
    from models.training import Origin
    from shortlist.config.declared import Declared
    from shortlist.config.runtime import Runtime
    from shortlist.tracking.steps import step

    with step("score_champion") as this:
        paths = Path(valid_log.path), Path(fitted.path), Path(champion.path)
        declared, options = Declared.parse(data, features, slices), Runtime.model_validate_json(runtime)
        score_champion(version, Origin(name=name, stores=stores), declared, options, *paths)
    champion.metadata["step"] = this.record
