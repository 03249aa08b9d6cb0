"""The part of a fit that a model keeps: ids, means, widths and trained models, without the statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from shortlist.contracts import Files
from shortlist.features.counts.moments import NumberMoments
from shortlist.features.counts.vocabulary import ValueIds
from shortlist.features.declared.feature_interfaces import (
    ID_FORMS,
    EventListFeature,
    IdOutputs,
    MeanVectorFeature,
    SlateComparison,
    TrainedFeature,
    VectorOutputs,
)
from shortlist.features.declared.feature_kind import FeatureKind, Fitted
from shortlist.features.declared.plan import Plan, plan
from shortlist.features.declared.training_log import LEARNT
from shortlist.spec.data import Data
from shortlist.spec.features import FeatureReader, Features, LearningSettings
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


@dataclass(frozen=True)
class Preprocessing:
    """The declaration of features, with the ids, means and widths that they were fitted to."""

    plan: Plan
    moments: Mapping[str, NumberMoments]
    """Mean and deviation of what is standardised, by feature name."""
    widths: Mapping[str, int]
    """Width of every vector column that is read."""
    vocabularies: Mapping[str, ValueIds]
    """Ids of values, by column."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """Models of trained features, by the name of the feature's first output."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the preprocessing in the folder of a fit or of a model.

        Raises:
            IntegrityError: There is no `features.json`.
        """
        saved = read_json(folder / Files.FEATURES)
        planned = plan(
            Data.model_validate(saved["data"]),
            Features.model_validate(saved["features"]),
            Gates.model_validate(saved["gates"]) if saved["gates"] else None,
        )
        columns = [limits.column for limits in planned.vocabularies]
        return cls(
            plan=planned,
            moments={name: NumberMoments(**values) for name, values in saved["moments"].items()},
            widths=saved["widths"],
            vocabularies={name: ValueIds(folder / "vocabularies" / f"{name}.parquet") for name in columns},
            trained={
                feature.outputs[0]: feature.load_trained(folder / LEARNT / feature.outputs[0])
                for feature in planned.features
                if isinstance(feature, TrainedFeature)
            },
        )

    def columns(self) -> list[dict[str, Any]]:
        """Return name, kind, size (ids, 0 among them) and width of every feature, in order.

        Columns whose ids are hash buckets have `hashed`, and the declared settings of learning them; `history` says
        whether a feature looks up statistics of earlier days, and `events` is the length of the longest list in order
        of time.
        """
        fitted, columns = self.fitted, []
        for feature, forms in ((operation, operation.forms(fitted.declared)) for operation in self.plan.features):
            history = self._looks_back(feature)
            for number, (name, form) in enumerate(zip(feature.outputs, forms, strict=True)):
                size = feature.id_count(number, fitted) if isinstance(feature, IdOutputs) and form in ID_FORMS else None
                vectors = feature if isinstance(feature, VectorOutputs) and form == "vector" else None
                width = vectors.width(number, fitted) if vectors is not None else None
                columns.append({"name": name, "kind": form, "size": size, "width": width, "history": history})
                columns[-1] |= feature.learning if isinstance(feature, LearningSettings) else {}
                events = feature.max_events(number) if isinstance(feature, EventListFeature) else None
                if events is not None:
                    columns[-1]["events"] = events
        return columns

    def _looks_back(self, feature: FeatureKind) -> bool:
        if isinstance(feature, SlateComparison):  # the compared value may itself be looked up
            return True
        names = feature.reads_features if isinstance(feature, FeatureReader) else ()
        if any(self._looks_back(self.fitted.feature(name)[0]) for name in names):
            return True
        mean_views = feature.mean_views(self.plan.declared) if isinstance(feature, MeanVectorFeature) else ()
        return any(True for _ in (*feature.views(self.plan.declared), *mean_views))

    @property
    def fitted(self) -> Fitted:
        """The part that kinds of features read."""
        return Fitted(
            self.plan.declared, self.moments, self.widths, self.vocabularies, self.trained, self.plan.features
        )
