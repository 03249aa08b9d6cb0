"""From a raw log to a patch with better settings: the tuning graph."""

from kfp import dsl

from components.choose_settings import choose_settings
from components.find_collected import find_collected
from components.ingest import ingest
from components.plan_trials import plan_trials
from components.run_trials import run_trials
from components.validate import validate
from pipelines.feature_steps import in_one_pod


@dsl.pipeline(name="shortlist-tuning", description="From a raw log to a patch with better settings")
def tuning(
    name: str,
    data: str,
    features: str,
    models: list,
    tune: str,
    slices: list,
    runtime: str,
    location: str,
    input_digest: str,
    stores: str,
    code: str,
    now: str = "",
    until: str = "",
    previous: str = "",
) -> None:
    """Make the feature table as a training does, then fan out the trials, and choose among them.

    Steps that a training has made are found in the cache. The parameters are those of the training graph, and `tune`,
    the spec's section as canonical JSON. Nothing is trained for serving, registered or applied.
    """
    common = {"data": data, "runtime": runtime, "code": code}
    # As a training would read them: all trials of this run read the same batches, whatever is collected meanwhile.
    collected = find_collected(name=name, data=data, stores=stores, code=code)
    collected.set_display_name("find_collected").set_caching_options(False)
    log = ingest(**common, location=location, input_digest=input_digest, collected=collected.output)
    valid = validate(**common, now=now, until=until, raw_log=log.outputs["raw_log"])
    made = in_one_pod(
        {**common, "features": features, "slices": slices}, previous=previous, valid_log=valid.outputs["valid_log"]
    )
    own = {"name": name, "stores": stores, "code": code}
    planned = plan_trials(**own, models=models, tune=tune, runtime=runtime, table=made.table)
    # Trials depend on how fast the machine is: asking again makes others.
    planned.set_display_name("plan_trials").set_caching_options(False)
    with dsl.ParallelFor(items=planned.output, name="batches") as batch:
        tried = run_trials(**own, batch=batch, runtime=runtime, table=made.table)
        tried.set_display_name("run_trials").set_caching_options(False)
    chosen = choose_settings(**own, studies=dsl.Collected(tried.outputs["study"]))
    chosen.set_display_name("choose_settings").set_caching_options(False)
