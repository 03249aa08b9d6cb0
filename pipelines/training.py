"""From a raw log to a blessed model in front of users: the training graph."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.build_reference_profile import build_reference_profile
from components.build_release import build_release
from components.build_retrieval import build_retrieval
from components.evaluate_gates import evaluate_gates
from components.evaluate_slates import evaluate_slates
from components.finalize_run import finalize_run
from components.find_champion import find_champion
from components.materialize_features import materialize_features
from components.record_gate_failures import record_gate_failures
from components.register import register
from components.report import report
from components.roll_out import roll_out
from components.score_champion import score_champion
from components.train import train
from components.train_ensembles import train_ensembles
from components.validate_export import validate_export
from pipelines.feature_steps import in_one_pod, over_groups_of_days
from pipelines.log_steps import log_in_one_pod, log_over_groups
from pipelines.steps import add_step


def training_graph(*, wide: bool) -> Callable[..., Any]:
    """Return the training graph.

    Args:
        wide: Whether the log is read over groups of files, and validated, counted and turned into features over groups
            of days, in pods of their own, and put together.
    """

    @dsl.pipeline(
        name="shortlist-training-wide" if wide else "shortlist-training",
        description="From a raw log to a blessed model in front of users",
    )
    def training(
        name: str,
        data: str,
        features: str,
        models: list,
        gates: str,
        slices: list,
        skew_rows: int,
        monitoring: str,
        serving: str,
        runtime: str,
        cluster: str,
        location: str,
        input_digest: str,
        stores: str,
        code: str,
        now: str = "",
        trigger: str = "manual",
        reasons: list = [],  # noqa: B006 - Kubeflow reads the default, nobody changes it
        key: str = "",
        until: str = "",
        previous: str = "",
        retrieval: str = "",
        filters: str = "",
        ordering: str = "",
        lists: str = "",
    ) -> None:
        """Run every step; each takes just the sections it reads: a changed section re-runs no more than it must.

        Args:
            name: Name of the spec.
            data: Section `data` of the spec, as canonical JSON.
            features: Section `features` of the spec, as canonical JSON.
            models: The declared models, each as a JSON text.
            gates: Section `gates` of the spec, as canonical JSON, with the name of the baseline.
            slices: Columns by which the gates slice scores: a part of `gates` that the feature table needs too.
            skew_rows: Rows that are compared with Feast: a part of `gates` that no gate reads.
            monitoring: Section `monitoring` of the spec, as canonical JSON.
            serving: Section `serving` of the spec, as canonical JSON.
            runtime: Section `runtime` of the spec, as canonical JSON, without its part `cluster`.
            cluster: Part `cluster` of section `runtime`, as canonical JSON.
            location: Where the user's files are; empty for a generated log.
            input_digest: Digest of those files; empty when only the run looks at them.
            stores: Where MLflow, Feast and the records of monitoring are kept.
            code: Digest of the source code: results of other code are not reused.
            now: Moment (ISO 8601) against which freshness is judged; empty for the validating step's own clock.
            trigger: What started the run: `manual`, `schedule` or `drift`.
            reasons: Reasons of the decision that started the run.
            key: Key of the decision that started the run.
            until: Moment (ISO 8601) from which on no row is read; empty for none.
            previous: Path of earlier fitted features whose days are not counted again, or `newest`; empty for none.
            retrieval: Section `retrieval` of the spec, as canonical JSON; empty for none.
            filters: Section `filters` of the spec, as canonical JSON; empty for none.
            ordering: Section `ordering` of the spec, as canonical JSON; empty for none.
            lists: Digest of the files that filters read; empty for none.
        """
        closing = add_step(finalize_run, cached=False, name=name, stores=stores, key=key)
        with dsl.ExitHandler(closing):
            cause: dict[str, Any] = {"trigger": trigger, "reasons": reasons, "key": key, "until": until}
            # Told what leads to the verdict; slices and rows compared with Feast are parts of `gates`. What is left out
            # can change the candidates' files alone, and on them score_champion hangs.
            found = add_step(
                find_champion,
                cached=False,
                name=name,
                data=data,
                features=features,
                models=models,
                gates=gates,
                serving=serving,
                runtime=runtime,
                code=code,
                now=now,
                location=location,
                input_digest=input_digest,
                stores=stores,
                previous=previous,
                **cause,
            )
            common = {"data": data, "runtime": runtime, "code": code}
            collected = found.outputs["collected"]
            files, moments = {"location": location, "input_digest": input_digest}, {"now": now, "until": until}
            if wide:
                log = log_over_groups(common, files, collected, moments, found, cluster)
            else:
                log = log_in_one_pod(common, files, collected, moments, found)
            declared: dict[str, Any] = {**common, "features": features, "slices": slices}
            rows = {"previous": found.outputs["previous"], "valid_log": log.valid_log}
            made = over_groups_of_days(declared, cluster=cluster, **rows) if wide else in_one_pod(declared, **rows)
            features_of: dict[str, Any] = {"valid_log": log.valid_log, "fitted": made.fitted}

            candidates = add_step(
                build_retrieval, declared=retrieval, data=data, runtime=runtime, code=code, valid_log=log.valid_log
            )
            released = add_step(
                build_release,
                filters=filters,
                ordering=ordering,
                lists=lists,
                data=data,
                location=location,
                code=code,
                valid_log=log.valid_log,
                retrieval=candidates.outputs["retrieval"],
            )
            skew = add_step(
                materialize_features,
                name=name,
                runtime=runtime,
                skew_rows=skew_rows,
                stores=stores,
                code=code,
                table=made.table,
                **features_of,
            )
            # One after another where this runs here; on a cluster all at once (`shortlist.kubeflow.cluster_graph`).
            with dsl.ParallelFor(items=found.outputs["Output"], name="models", parallelism=1) as declared_model:
                trained = add_step(
                    train,
                    declared=declared_model,
                    name=name,
                    runtime=runtime,
                    input_digest=input_digest,
                    stores=stores,
                    **cause,
                    code=code,
                    fitted=made.fitted,
                    table=made.table,
                )
                proven = add_step(
                    validate_export,
                    gates=gates,
                    serving=serving,
                    runtime=runtime,
                    code=code,
                    **features_of,
                    model=trained.outputs["model"],
                    scores=trained.outputs["scores"],
                )
            # Kubeflow changes what it is given: every reader gets lists of its own.
            per_model = {"models": trained.outputs["model"], "scores": trained.outputs["scores"]}
            per_model["proofs"] = proven.outputs["proof"]

            def all_of(*names: str) -> dict[str, Any]:
                return {name: dsl.Collected(per_model[name]) for name in names}

            combined = add_step(
                train_ensembles,
                declared=models,
                name=name,
                gates=gates,
                serving=serving,
                runtime=runtime,
                input_digest=input_digest,
                stores=stores,
                **cause,
                code=code,
                **features_of,
                table=made.table,
                **all_of("models", "scores"),
            )
            ensembles = combined.outputs["ensembles"]
            champion = add_step(
                score_champion,
                version=found.outputs["version"],
                name=name,
                stores=stores,
                retrieval=retrieval,
                **declared,
                **features_of,
                **all_of("models"),
                ensembles=ensembles,
            )
            seen = add_step(
                evaluate_slates,
                data=data,
                runtime=runtime,
                code=code,
                **features_of,
                release=released.outputs["release"],
                **all_of("models"),
                ensembles=ensembles,
            )
            judged = add_step(
                evaluate_gates,
                gates=gates,
                runtime=runtime,
                code=code,
                valid_log=log.valid_log,
                skew=skew.outputs["skew"],
                champion=champion.outputs["champion"],
                retrieval=candidates.outputs["retrieval"],
                slates=seen.outputs["slates"],
                **all_of("models", "scores", "proofs"),
                ensembles=ensembles,
            )
            frozen = add_step(
                build_reference_profile,
                name=name,
                data=data,
                features=features,
                monitoring=monitoring,
                code=code,
                **features_of,
                **all_of("scores"),
                ensembles=ensembles,
            )
            books = {"name": name, "stores": stores, "code": code, "verdict": judged.outputs["verdict"]}
            books["ensembles"] = combined.outputs["Output"]
            with dsl.If(judged.outputs["Output"] != "none", name="blessed"):
                standing = {"against": found.outputs["version"], "made_from": found.outputs["made_from"]}
                registered = add_step(
                    register,
                    **books,
                    **standing,
                    trained=dsl.Collected(trained.outputs["Output"]),
                    reference=frozen.outputs["reference"],
                    release=released.outputs["release"],
                )
            with dsl.Else(name="held"):
                held = add_step(record_gate_failures, **books, trained=dsl.Collected(trained.outputs["Output"]))
            version = dsl.OneOf(registered.outputs["version"], held.outputs["version"])
            page = add_step(
                report,
                cached=False,
                name=name,
                gates=gates,
                runtime=runtime,
                stores=stores,
                lineage={
                    "input_digest": input_digest,
                    "code": code,
                    "log": location,
                    "trigger": trigger,
                    "decision": key,
                    "until": until,
                },
                version=version,
                started=found.outputs["started"],
                found=found.outputs["step"],
                registered=dsl.OneOf(registered.outputs["step"], held.outputs["step"]),
                raw_log=log.raw_log,
                valid_log=log.valid_log,
                quarantine=log.quarantine,
                fitted=made.fitted,
                table=made.table,
                skew=skew.outputs["skew"],
                retrieval=candidates.outputs["retrieval"],
                release=released.outputs["release"],
                champion=champion.outputs["champion"],
                slates=seen.outputs["slates"],
                verdict=judged.outputs["verdict"],
                **all_of("models", "scores", "proofs"),
                ensembles=ensembles,
            )
            rolled = add_step(
                roll_out,
                cached=False,
                version=version,
                name=name,
                serving=serving,
                gates=gates,
                runtime=runtime,
                cluster=cluster,
                stores=stores,
                key=key,
                code=code,
            )
            rolled.after(page)

    graph: Callable[..., Any] = training
    return graph


training = training_graph(wide=False)
training_wide = training_graph(wide=True)
