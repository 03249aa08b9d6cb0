"""From a raw log to a blessed model in front of users: the training graph."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.build_reference_profile import build_reference_profile
from components.build_retrieval import build_retrieval
from components.evaluate_gates import evaluate_gates
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
    ) -> None:
        """Run every step; each takes just the sections it reads: a changed section re-runs no more than it must.

        Args:
            name: Name of the spec.
            data: The spec's section, as canonical JSON.
            features: Likewise.
            models: The models, each a text (`models.base.DeclaredModel`): numbers in a list would come back as floats.
            gates: The spec's section, with the name of the baseline.
            slices: Columns the gates slice by (part of gates; on its own because the feature table carries them).
            skew_rows: Rows compared with Feast (part of gates).
            monitoring: The spec's section.
            serving: Likewise.
            runtime: Likewise, but for its `cluster`, which is told to nobody whom it does not concern.
            cluster: That part.
            location: Where the user's files are.
            input_digest: Digest of those files.
            stores: Where MLflow and Feast keep theirs.
            code: Digest of this package.
            now: ISO 8601 moment against which freshness is judged; empty: the validating step's own clock.
            trigger: What started the run: `manual`, `schedule` or `drift`. This and the next two are lineage: no step
                that makes data sees them.
            reasons: Of the decision that started it.
            key: Of that decision.
            until: ISO 8601 moment from which on no step after validation has a row; empty: there is none.
            previous: Path of earlier fitted features, whose days need not be counted again; `newest` for those that the
                store was last filled from; empty: every day is counted.
            retrieval: The spec's section; empty: there is none.
        """
        closing = (
            finalize_run(name=name, stores=stores, key=key).set_display_name("finalize_run").set_caching_options(False)
        )
        with dsl.ExitHandler(closing):
            cause = {"trigger": trigger, "reasons": reasons, "key": key, "until": until}
            # Told what leads to the verdict; slices and rows compared with Feast are parts of `gates`. What is left out
            # can change the candidates' files alone, and on them score_champion hangs.
            found = find_champion(
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
            found.set_display_name("find_champion").set_caching_options(False)
            common = {"data": data, "runtime": runtime, "code": code}
            collected = found.outputs["collected"]
            files, moments = {"location": location, "input_digest": input_digest}, {"now": now, "until": until}
            if wide:
                log = log_over_groups(common, files, collected, moments, found, cluster)
            else:
                log = log_in_one_pod(common, files, collected, moments, found)
            declared = {**common, "features": features, "slices": slices}
            rows = {"previous": found.outputs["previous"], "valid_log": log.valid_log}
            made = over_groups_of_days(declared, cluster=cluster, **rows) if wide else in_one_pod(declared, **rows)
            features_of = {"valid_log": log.valid_log, "fitted": made.fitted}

            candidates = build_retrieval(
                declared=retrieval, data=data, runtime=runtime, code=code, valid_log=log.valid_log
            )
            skew = materialize_features(
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
                trained = train(
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
                proven = validate_export(
                    gates=gates,
                    serving=serving,
                    runtime=runtime,
                    code=code,
                    **features_of,
                    model=trained.outputs["model"],
                    scores=trained.outputs["scores"],
                )
            # Kubeflow changes what it is given: every reader gets lists of its own.
            lists = {"models": trained.outputs["model"], "scores": trained.outputs["scores"]}
            lists["proofs"] = proven.outputs["proof"]

            def all_of(*names: str) -> dict[str, Any]:
                return {name: dsl.Collected(lists[name]) for name in names}

            combined = train_ensembles(
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
            champion = score_champion(
                version=found.outputs["version"],
                name=name,
                stores=stores,
                **declared,
                **features_of,
                **all_of("models"),
                ensembles=ensembles,
            )
            judged = evaluate_gates(
                gates=gates,
                runtime=runtime,
                code=code,
                valid_log=log.valid_log,
                skew=skew.outputs["skew"],
                champion=champion.outputs["champion"],
                retrieval=candidates.outputs["retrieval"],
                **all_of("models", "scores", "proofs"),
                ensembles=ensembles,
            )
            frozen = build_reference_profile(
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
                registered = register(
                    **books,
                    **standing,
                    trained=dsl.Collected(trained.outputs["Output"]),
                    reference=frozen.outputs["reference"],
                    retrieval=candidates.outputs["retrieval"],
                )
            with dsl.Else(name="held"):
                held = record_gate_failures(**books, trained=dsl.Collected(trained.outputs["Output"]))
            version = dsl.OneOf(registered.outputs["version"], held.outputs["version"])
            page = (
                report(
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
                    champion=champion.outputs["champion"],
                    verdict=judged.outputs["verdict"],
                    **all_of("models", "scores", "proofs"),
                    ensembles=ensembles,
                )
                .set_display_name("report")
                .set_caching_options(False)
            )
            rolled = roll_out(
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
            rolled.set_display_name("roll_out").set_caching_options(False).after(page)

    graph: Callable[..., Any] = training
    return graph


training = training_graph(wide=False)
training_wide = training_graph(wide=True)
