"""From a raw log to a patch with better settings: the tuning graph."""

from kfp import dsl

from components.choose_settings import choose_settings
from components.find_collected import find_collected
from components.plan_trials import plan_trials
from components.run_trials import run_trials
from pipelines.feature_steps import in_one_pod
from pipelines.log_steps import log_in_one_pod
from pipelines.parameters import described
from pipelines.steps import add_step


@dsl.pipeline(name="shortlist-tuning", description="From a raw log to a patch with better settings")
@described
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
    """Make the feature table as a training does, then fan out the trials, and choose among them.

    Steps that a training has made are found in the cache. Nothing is trained for serving, registered or applied.
    """
    common = {"data": data, "runtime": runtime, "code": code}
    # As a training would read them: all trials of this run read the same batches, whatever is collected meanwhile.
    found = add_step(find_collected, cached=False, name=name, data=data, stores=stores, code=code)
    moments = {"now": found.outputs["now"], "until": ""}
    read = log_in_one_pod(common, log, found.outputs["collected"], moments)
    made = in_one_pod({**common, "features": features, "slices": slices}, previous="", valid_log=read.valid_log)
    own = {"name": name, "stores": stores, "code": code}
    # Trials depend on how fast the machine is: asking again makes others.
    planned = add_step(plan_trials, cached=False, **own, models=models, tune=tune, runtime=runtime, table=made.table)
    with dsl.ParallelFor(items=planned.output, name="batches") as batch:
        tried = add_step(run_trials, cached=False, **own, batch=batch, runtime=runtime, table=made.table)
    add_step(choose_settings, cached=False, **own, studies=dsl.Collected(tried.outputs["study"]))
