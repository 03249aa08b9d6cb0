"""The whole spec, and the checks across its sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from shortlist.contracts import did_you_mean, label_column
from shortlist.spec.base import Check, DisagreementError, Section, find_problems
from shortlist.spec.data import Data, FileSource, GeneratedSource, RowClock, Slates, Source
from shortlist.spec.features import CandidateComparison, Feature, FeatureReader, Features, declared_column
from shortlist.spec.filters import Filters
from shortlist.spec.gates import Gates, gate_column_checks
from shortlist.spec.models import Models, ModelSection, check_members, with_baselines
from shortlist.spec.monitoring import Monitoring, Schedule
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval, columns_without_candidates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving, check_guards
from shortlist.spec.tune import Tune
from shortlist.system.registry import resolve_address


class Spec(Section):
    """The declaration of a recommender: data, features, models, release, serving and monitoring."""

    model_config = ConfigDict(defer_build=True)  # the kinds of models are loaded when a spec is validated

    version: Literal[1]
    """Version of this format."""
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")
    """Names the MLflow experiment, the registered models and the Feast project."""
    data: Data
    """The log."""
    features: Features
    """Features of the models."""
    models: Models
    """Models to train, by name; several may be of one kind."""
    retrieval: Retrieval | None = None
    """Sources of candidates; null: clients send their own."""
    filters: Filters | None = None
    """Which candidates may be shown; null: all. Needs `retrieval`."""
    ordering: Ordering | None = None
    """How scored candidates become a slate; null: best score first. Needs `retrieval`."""
    gates: Gates = Gates()
    """Limits for promotion."""
    serving: Serving = Serving()
    """Serving and rollout."""
    monitoring: Monitoring = Monitoring()
    """Monitoring of live traffic, and triggers of retraining."""
    schedule: Schedule = Schedule()
    """Scheduled runs."""
    tune: Tune = Tune()
    """Search for better settings of the models."""
    runtime: Runtime = Runtime()
    """Engine, memory, stores and target."""

    @field_validator("models")
    @classmethod
    def _with_baselines(cls, declared: dict[str, ModelSection]) -> dict[str, ModelSection]:
        return with_baselines(declared)

    @property
    def reference_baseline(self) -> str:
        """Name of the baseline that candidates have to beat: the declared one, else the first of such a kind."""
        reference_baselines = (
            name for name, model in self.models.items() if model.reference_baseline and model.role == "baseline"
        )
        return self.gates.baseline or next(reference_baselines)

    @property
    def search(self) -> Tune:
        """The `tune` section, with the gates' metric where it names none."""
        return self.tune.model_copy(update={"metric": self.tune.metric or self.gates.metric})

    @model_validator(mode="after")
    def _apply_worker_limits(self) -> Self:
        for name in self.runtime.cluster.workers.keys() & self.models.keys():
            self.models[name] = self.models[name].by_workers
        return self

    @property
    def notices(self) -> tuple[str, ...]:
        """Declarations of a valid spec without the effect that they seem to have, one sentence each."""
        return (*self._feature_notices, *self._candidate_notices, *self._filter_notices)

    @property
    def _feature_notices(self) -> tuple[str, ...]:
        candidates = [model for model in self.models.values() if model.role == "candidate"]
        read = {
            name for model in candidates if model.reads for name in match_features(model.reads, self.features.names)
        }
        for feature in reversed(self.features.columns):  # a feature reads those that are declared before it
            if isinstance(feature, FeatureReader) and read.intersection(feature.outputs):
                read.update(feature.reads_features)
        unread = [name for name in self.features.names if name not in read]
        if not candidates or not unread:
            return ()
        names = ", ".join(f"'{name}'" for name in unread)
        return (
            f"features: no candidate reads {names}, computed, stored and compared in every run: list them in the"
            " `features` of a model, or leave them out",
        )

    @property
    def _candidate_notices(self) -> tuple[str, ...]:
        if self.retrieval is None:
            return ()
        read = [name for feature in self.features.columns for name in feature.inputs]
        names = columns_without_candidates(self.retrieval, self.data, read)
        if not names:
            return ()
        columns = ", ".join(f"'{name}'" for name in names)
        return (
            f"retrieval: features read {columns}, of which a request for recommendations sends one value for all"
            " candidates, or none: list what the item determines in retrieval.item_columns (or move it to a table of"
            " items), and what the request determines in retrieval.context",
        )

    @property
    def _filter_notices(self) -> tuple[str, ...]:
        if self.filters is None or not self.runtime.target.is_remote:
            return ()
        return tuple(
            f"filters.rules.{number}: '{rule.name}' removes what a user was shown, and a server of target:"
            f" {self.runtime.target.kind} knows only of its own answers, until their log is shipped: others may show an"
            " item again"
            for number, rule in enumerate(self.filters.rules)
            if rule.remembers is not None
        )

    @model_validator(mode="after")
    def _check_sections_agree(self) -> Self:
        if messages := find_problems(self._agreement_checks()):
            raise DisagreementError(messages)
        return self

    def _agreement_checks(self) -> Iterator[Check]:
        """Yield the checks across sections; none depends on another one."""
        log, features, models = self.data, self.features, self.models
        yield partial(_check_slates, self)
        yield from (partial(feature.check, log) for feature in features.columns)
        for name, model in models.items():
            distributed = name in self.runtime.cluster.workers
            yield partial(_check_reads, name, model, features)
            yield partial(model.check_data, name, log)
            yield partial(model.check_features, name, features, distributed=distributed)
        yield partial(_check_label_columns, log, features)
        yield partial(check_guards, self.serving.canary, log.labels)
        yield partial(check_members, models)
        yield from (partial(_check_buckets, feature, models) for feature in features.columns)
        yield from (partial(_check_workers, name, models) for name in self.runtime.cluster.workers)
        yield partial(_check_baseline, self.gates.baseline, models)
        yield partial(_check_streaming, self)
        yield partial(self.tune.check, models)
        if log.user is None:
            yield partial(_check_no_gauc, {"gates": self.gates.metric, "tune": self.tune.metric})
        yield from (
            partial(declared_column, name, log, "monitoring.drift.ignore") for name in self.monitoring.drift.ignore
        )
        yield from gate_column_checks(self.gates, log)
        yield partial(_check_source, log.source)
        yield partial(_check_max_rows, log.slate, self.serving)
        yield partial(_check_split, log)
        if self.runtime.target.is_remote:
            yield partial(_check_placement, self.serving.placement.device, self.runtime.cluster.serving.gpus)
        yield partial(_check_feature_engine, self.runtime)


def match_features(patterns: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the feature names that any pattern matches, in declared order.

    Raises:
        ValueError: A pattern matches nothing.

    >>> match_features(("*_id",), ("user_id", "hour", "item_id"))
    ('user_id', 'item_id')
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no feature matches '{pattern}'{did_you_mean(pattern, names)}")
    return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _check_slates(spec: Spec) -> None:
    """Refuse filters and an ordering without candidates, or that do not fit these."""
    retrieval = spec.retrieval
    for name in ("filters", "ordering"):
        if getattr(spec, name) is not None and retrieval is None:
            raise ValueError(
                f"{name}: is for the candidates that `retrieval` finds, and the spec has no such section; declare"
                " retrieval.sources, or leave it out"
            )
    if retrieval is None:
        return
    retrieval.check(spec.data)
    if retrieval.candidates > spec.serving.max_rows:
        raise ValueError(
            f"retrieval.candidates {retrieval.candidates} is above serving.max_rows {spec.serving.max_rows},"
            " the most that are scored at once; declare fewer, or a larger limit"
        )
    comparing = (feature for feature in spec.features.columns if isinstance(feature, CandidateComparison))
    names = [name for feature in comparing for name in feature.outputs]
    if names:
        listed = ", ".join(f"'{name}'" for name in names)
        raise ValueError(
            f"features: {listed} compare{'s' if len(names) == 1 else ''} the candidates of a request; with `retrieval`"
            f" these are up to {retrieval.candidates}, and the log holds the few that were shown, so that training"
            " would see other values than serving. Leave such features out, or `retrieval`, and have clients send"
            " what they show"
        )
    if spec.filters is not None or spec.ordering is not None:
        sections = spec.filters or Filters(), spec.ordering or Ordering()
        resolve_address("check_slates")(spec.data, retrieval, *sections)
        resolve_address("check_scores")(sections[1], spec.data, spec.models)


def _check_reads(name: str, model: ModelSection, features: Features) -> None:
    if not model.reads:
        return
    try:
        match_features(model.reads, features.names)
    except ValueError as error:
        raise ValueError(f"models.{name}.features: {error}") from None


def _check_source(source: Source) -> None:
    if isinstance(source, FileSource) and source.format == "npz":
        raise ValueError("data.source.format: npz is for side tables only")


def _check_max_rows(slate: Slates | None, serving: Serving) -> None:
    if slate is not None and serving.max_rows > slate.max_rows:
        raise ValueError(
            f"serving.max_rows {serving.max_rows} is above data.slate.max_rows {slate.max_rows}:"
            " requests would be larger than any slate that was learnt from. Declare the same limit for both"
        )


def _check_label_columns(data: Data, features: Features) -> None:
    for label in data.labels:
        if label_column(label) in features.names:
            raise ValueError(
                f"features: '{label_column(label)}' is the column of data.labels.{label}; give the feature another name"
            )


def _check_split(data: Data) -> None:
    """Refuse a split with more days than declared; the days of a log with a time column are counted during ingest."""
    day_source = data.source if isinstance(data.source, GeneratedSource) else data.clock
    days = day_source.days if isinstance(day_source, GeneratedSource | RowClock) else None
    split = data.split
    min_days = split.warmup_days + 1 + split.validation_days + split.test_days
    if days is not None and days < min_days:
        raise ValueError(
            f"data.split: needs {min_days} days ({split.warmup_days} to warm up, at least 1 to train,"
            f" {split.validation_days} to validate, {split.test_days} to test); the log has {days}"
        )


def _check_streaming(spec: Spec) -> None:
    """Refuse streaming counts that would differ from those of training."""
    key_path = "features.streaming"
    if spec.features.streaming is None:
        return
    if isinstance(spec.data.clock, RowClock):
        raise ValueError(
            f"{key_path}: rows of this log have no times of their own; declare data.clock: {{kind: column}}"
        )
    if spec.runtime.target.is_remote:
        raise ValueError(
            f"{key_path}: servers count what reaches their own machine, and each server of target:"
            f" {spec.runtime.target.kind} would count only its share; leave it and the features of kind current out,"
            " and declare features.tile: 10m and schedule.refresh: '*/10 * * * *', so that"
            " statistics of complete tiles are served within minutes"
        )
    if spec.serving.log.sampling < 1:
        raise ValueError(
            f"{key_path}: servers count every answer, and serving.log.sampling {spec.serving.log.sampling} keeps a part"
            " of them as training data; declare 1"
        )
    if (missing_outcome := spec.data.live.missing_outcome) != "negative":
        raise ValueError(
            f"{key_path}: servers count every candidate of an answer, and data.live.missing_outcome: {missing_outcome}"
            " keeps a part of them as training data; declare negative"
        )


def _check_no_gauc(metrics: Mapping[str, str | None]) -> None:
    for section_key, metric in metrics.items():
        if metric == "gauc":
            raise ValueError(
                f"{section_key}.metric: gauc is measured within each user, and data.user names no column; declare it,"
                " or metric: auc"
            )


def _check_feature_engine(runtime: Runtime) -> None:
    if runtime.engine == "gpu" and (job := runtime.features.job) is not None:
        raise ValueError(
            f"runtime.engine: gpu, but features are made by a {job.kind}, whose pods have no GPU. Declare engine: auto,"
            " with which trainings still use the GPUs of their pods, or runtime.features.address, a cluster whose"
            " machines have GPUs"
        )


def _check_placement(device: str, gpus: int) -> None:
    if device == "gpu" and gpus == 0:
        raise ValueError(
            "serving.placement.device: gpu, but runtime.cluster.serving.gpus is 0: its pod would get no GPU. Declare 1"
        )
    if device == "cpu" and gpus:
        raise ValueError(
            f"runtime.cluster.serving.gpus is {gpus}, but serving.placement.device is cpu: nothing would use them."
            " Declare device: gpu"
        )


def _check_buckets(feature: Feature, models: Mapping[str, ModelSection]) -> None:
    """Refuse learning settings of a feature's ids that no model uses."""
    declared = feature.declared_learning_keys
    readers = [
        model for model in models.values()
        if any(fnmatchcase(name, pattern) for name in feature.outputs for pattern in model.reads)
    ]  # fmt: skip
    followed = {key for model in readers for key in model.id_settings}
    if "admit_after" in declared and "admit_after" not in followed:
        raise ValueError(
            f"{feature.title}: admit_after is for models that learn ids, and none of them reads it; leave it out"
        )
    if "evict_after_days" in declared and "evict_after_days" not in followed:
        raise ValueError(
            f"{feature.title}: evict_after_days is for models that learn ids and keep them (retrain: warm), and none of"
            " them reads it; leave it out"
        )


def _check_workers(name: str, models: Mapping[str, ModelSection]) -> None:
    key_path = f"runtime.cluster.workers.{name}"
    if name not in models:
        raise ValueError(f"{key_path}: no model is called '{name}'{did_you_mean(name, models)}")
    if not models[name].distributed:
        raise ValueError(f"{key_path}: a model of kind {models[name].kind} is trained by one process; leave it out")
    if models[name].labels:
        raise ValueError(
            f"{key_path}: models.{name} declares labels, which one process learns; declare one or the other"
        )


def _check_baseline(name: str | None, models: Mapping[str, ModelSection]) -> None:
    baselines = [model_name for model_name, model in models.items() if model.role == "baseline"]
    if name is not None and name not in baselines:
        raise ValueError(
            f"gates.baseline: '{name}' is no baseline of this spec{did_you_mean(name, baselines)}"
            f" (there are {', '.join(baselines)})"
        )
