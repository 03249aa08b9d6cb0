"""From a raw log to a patch with better settings: the tuning graph."""

from kfp import dsl

from components.choose_settings import choose_settings
from components.find_collected import find_collected
from components.plan_trials import plan_trials
from components.run_trials import run_trials
from pipelines.feature_steps import in_one_pod
from pipelines.log_steps import log_in_one_pod
from pipelines.steps import add_step


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

    Steps that a training has made are found in the cache. Nothing is trained for serving, registered or applied.

    Args:
        name: Name of the spec.
        data: Section `data` of the spec, as canonical JSON.
        features: Section `features` of the spec, as canonical JSON.
        models: The declared models, each as a JSON text.
        tune: Section `tune` of the spec, as canonical JSON.
        slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
        runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
        location: Where the user's files are; empty for a generated log.
        input_digest: Digest of those files; empty when only the run looks at them.
        stores: Where MLflow, Feast and the records of monitoring are kept.
        code: Digest of the source code: results of other code are not reused.
        now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
        until: Moment (ISO 8601) from which on no row is read; empty for none.
        previous: Path of earlier fitted features whose days are not counted again, or `newest`; empty for none.
    """
    common = {"data": data, "runtime": runtime, "code": code}
    # As a training would read them: all trials of this run read the same batches, whatever is collected meanwhile.
    collected = add_step(find_collected, cached=False, name=name, data=data, stores=stores, code=code)
    files, moments = {"location": location, "input_digest": input_digest}, {"now": now, "until": until}
    log = log_in_one_pod(common, files, collected.output, moments)
    made = in_one_pod({**common, "features": features, "slices": slices}, previous=previous, valid_log=log.valid_log)
    own = {"name": name, "stores": stores, "code": code}
    # Trials depend on how fast the machine is: asking again makes others.
    planned = add_step(plan_trials, cached=False, **own, models=models, tune=tune, runtime=runtime, table=made.table)
    with dsl.ParallelFor(items=planned.output, name="batches") as batch:
        tried = add_step(run_trials, cached=False, **own, batch=batch, runtime=runtime, table=made.table)
    add_step(choose_settings, cached=False, **own, studies=dsl.Collected(tried.outputs["study"]))
