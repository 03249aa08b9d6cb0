"""From a raw log to a blessed model in front of users: the training graph."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from components.close_run import close_run
from components.find_champion import find_champion
from components.freeze_reference import freeze_reference
from components.ingest import ingest
from components.judge import judge
from components.prove import prove
from components.record_hold import record_hold
from components.register import register
from components.report import report
from components.roll_out import roll_out
from components.score_champion import score_champion
from components.store_features import store_features
from components.train import train
from components.validate import validate
from pipelines.feature_steps import in_one_pod, over_groups_of_days

KINDS = ("xgboost", "dlrm", "logistic", "popularity")
SERVED = ("xgboost", "dlrm")


def training_graph(*, wide: bool) -> Callable[..., Any]:
    """Return the training graph.

    Args:
        wide: Whether statistics and features are made over groups of days, in pods of their own, and put together.
    """

    @dsl.pipeline(
        name="shortlist-training-wide" if wide else "shortlist-training",
        description="From a raw log to a blessed model in front of users",
    )
    def training(
        name: str,
        data: str,
        features: str,
        xgboost: str,
        dlrm: str,
        logistic: str,
        gates: str,
        slices: list,
        skew_rows: int,
        monitoring: str,
        serving: str,
        runtime: str,
        cluster: str,
        distributed: str,
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
    ) -> None:
        """Run every step; each takes just the sections it reads: a changed section re-runs no more than it must.

        Args:
            name: Name of the spec.
            data: The spec's section, as canonical JSON.
            features: Likewise.
            xgboost: Likewise; empty when it is not declared.
            dlrm: Likewise.
            logistic: Likewise; always given.
            gates: Likewise.
            slices: Columns the gates slice by (part of gates; on its own because the feature table carries them).
            skew_rows: Rows compared with Feast (part of gates).
            monitoring: The spec's section.
            serving: Likewise.
            runtime: Likewise, but for its `cluster`, which is told to nobody whom it does not concern.
            cluster: That part.
            distributed: The same where a model is trained by many processes; empty otherwise.
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
        """
        closing = close_run(name=name, stores=stores, key=key).set_display_name("close_run").set_caching_options(False)
        with dsl.ExitHandler(closing):
            cause = {"trigger": trigger, "reasons": reasons, "key": key, "until": until}
            served = {"xgboost": xgboost, "dlrm": dlrm}
            # Told what leads to the verdict; slices and rows compared with Feast are parts of `gates`. What is left out
            # can change the candidates' files alone, and on them score_champion hangs.
            found = find_champion(
                name=name,
                data=data,
                features=features,
                **served,
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
            log = ingest(**common, location=location, input_digest=input_digest).after(found)
            valid = validate(**common, now=now, until=until, raw_log=log.outputs["raw_log"])
            declared = {**common, "features": features, "slices": slices}
            rows = {"previous": found.outputs["previous"], "valid_log": valid.outputs["valid_log"]}
            made = over_groups_of_days(declared, cluster=cluster, **rows) if wide else in_one_pod(declared, **rows)
            features_of = {"valid_log": valid.outputs["valid_log"], "fitted": made.fitted}

            skew = store_features(
                name=name,
                runtime=runtime,
                skew_rows=skew_rows,
                stores=stores,
                code=code,
                table=made.table,
                **features_of,
            )
            sections = {**served, "logistic": logistic, "popularity": "{}"}
            earlier = {kind: found.outputs[kind] for kind in SERVED}
            trained = {}
            for kind in KINDS:
                trained[kind] = train(
                    kind=kind,
                    section=sections[kind],
                    name=name,
                    runtime=runtime,
                    input_digest=input_digest,
                    stores=stores,
                    **cause,
                    earlier=earlier.get(kind, ""),
                    cluster=distributed if kind in SERVED else "",
                    code=code,
                    fitted=made.fitted,
                    table=made.table,
                ).set_display_name(f"train_{kind}")
            candidates = {kind: trained[kind].outputs["model"] for kind in SERVED}
            champion = score_champion(
                version=found.outputs["version"], name=name, stores=stores, **declared, **features_of, **candidates
            )
            proofs = {}
            for kind in SERVED:
                proofs[f"{kind}_proof"] = (
                    prove(
                        kind=kind,
                        gates=gates,
                        serving=serving,
                        runtime=runtime,
                        code=code,
                        **features_of,
                        **trained[kind].outputs,
                    )
                    .set_display_name(f"prove_{kind}")
                    .outputs["proof"]
                )
            judged = judge(
                gates=gates,
                runtime=runtime,
                code=code,
                valid_log=valid.outputs["valid_log"],
                skew=skew.outputs["skew"],
                champion=champion.outputs["champion"],
                xgboost_scores=trained["xgboost"].outputs["scores"],
                dlrm_scores=trained["dlrm"].outputs["scores"],
                popularity_scores=trained["popularity"].outputs["scores"],
                **candidates,
                **proofs,
            )
            frozen = freeze_reference(
                name=name,
                data=data,
                features=features,
                monitoring=monitoring,
                code=code,
                **features_of,
                **{f"{kind}_scores": trained[kind].outputs["scores"] for kind in SERVED},
            )
            books = {"name": name, "stores": stores, "code": code, "verdict": judged.outputs["verdict"], **candidates}
            with dsl.If(judged.outputs["Output"] != "none", name="blessed"):
                standing = {"against": found.outputs["version"], "made_from": found.outputs["made_from"]}
                registered = register(**books, **standing, reference=frozen.outputs["reference"])
            with dsl.Else(name="held"):
                held = record_hold(**books)
            version = dsl.OneOf(registered.outputs["version"], held.outputs["version"])
            page = (
                report(
                    name=name,
                    gates=gates,
                    runtime=runtime,
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
                    raw_log=log.outputs["raw_log"],
                    valid_log=valid.outputs["valid_log"],
                    quarantine=valid.outputs["quarantine"],
                    fitted=made.fitted,
                    table=made.table,
                    skew=skew.outputs["skew"],
                    champion=champion.outputs["champion"],
                    verdict=judged.outputs["verdict"],
                    **candidates,
                    **proofs,
                    popularity=trained["popularity"].outputs["model"],
                    logistic=trained["logistic"].outputs["model"],
                    logistic_scores=trained["logistic"].outputs["scores"],
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
