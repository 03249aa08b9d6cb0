"""The tuning graph: from a raw log to a patch with better settings."""

from kfp import dsl

from components.choose_settings import choose_settings
from components.find_collected import find_collected
from components.plan_trials import plan_trials
from components.run_trials import run_trials
from pipelines.feature_steps import add_feature_steps
from pipelines.log_steps import add_log_steps
from pipelines.parameters import describe_parameters
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-tuning", description="From a raw log to a patch with better settings")
@describe_parameters
def tuning(
    name: str,
    data: str,
    features: str,
    models: list,
    tune: str,
    slices: list,
    runtime: str,
    log: dict,
    stores: str,
    code: str,
) -> None:
    """Build the feature table as a training does, run the trials in parallel, and choose the best settings.

    Steps of an earlier training are found in the cache. Nothing is trained for serving, registered or applied.
    """
    common = {"data": data, "runtime": runtime, "code": code}
    # As in a training: all trials of this run read the same batches, whatever is collected meanwhile.
    collected = add_step(find_collected, cached=False, name=name, data=data, stores=stores, code=code)
    moments = {"now": collected.outputs["now"], "until": ""}
    read = add_log_steps(common, log, collected.outputs["collected"], moments)
    feature_artefacts = add_feature_steps(
        {**common, "features": features, "slices": slices}, previous="", valid_log=read.valid_log
    )
    tracking_inputs = {"name": name, "stores": stores, "code": code}
    # Trials depend on the speed of the machine: a repeated step plans others.
    planned = add_step(
        plan_trials,
        cached=False,
        **tracking_inputs,
        models=models,
        tune=tune,
        runtime=runtime,
        table=feature_artefacts.table,
    )
    with dsl.ParallelFor(items=planned.output, name="batches") as batch:
        trials = add_step(
            run_trials, cached=False, **tracking_inputs, batch=batch, runtime=runtime, table=feature_artefacts.table
        )
    add_step(choose_settings, cached=False, **tracking_inputs, studies=dsl.Collected(trials.outputs["study"]))
