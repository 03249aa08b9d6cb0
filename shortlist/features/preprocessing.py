"""What features were fitted to, statistics left out: the part that a model keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shortlist.artefacts import read_json
from shortlist.config.data import Data
from shortlist.config.features import Cross, Feature, Features, Hash, Vector, Vocabulary
from shortlist.config.gates import Gates
from shortlist.contracts import Files
from shortlist.features.moments import Moments
from shortlist.features.plan import Plan, plan
from shortlist.features.vocabulary import ValueIds


@dataclass(frozen=True)
class Preprocessing:
    """The declaration of features, with the ids, means and widths that they were fitted to."""

    plan: Plan
    moments: Mapping[str, Moments]
    """Mean and deviation of what is standardised, by feature name."""
    widths: Mapping[str, int]
    """Width of every vector column that is read."""
    vocabularies: Mapping[str, ValueIds]
    """By column."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return what `fit` left in a folder, or what a model folder keeps of it.

        Raises:
            IntegrityError: There is no `features.json`.
        """
        saved = read_json(folder / Files.FEATURES)
        planned = plan(
            Data.model_validate(saved["data"]),
            Features.model_validate(saved["features"]),
            Gates.model_validate(saved["gates"]) if saved["gates"] else None,
        )
        columns = [feature.each[0] for feature in planned.vocabularies]
        return cls(
            plan=planned,
            moments={name: Moments(**values) for name, values in saved["moments"].items()},
            widths=saved["widths"],
            vocabularies={name: ValueIds(folder / "vocabularies" / f"{name}.parquet") for name in columns},
        )

    def columns(self) -> list[dict[str, Any]]:
        """Return name, kind, size (ids, 0 among them) and width of every feature, in order.

        Those whose ids are buckets of a hash have `hashed`, and what is declared of learning them, beside.
        """
        shapes: dict[str, tuple[int | None, int | None]] = {}
        for feature in self.plan.features:
            for number, name in enumerate(feature.outputs):
                match feature:
                    case Vocabulary():
                        shapes[name] = (self.vocabularies[feature.each[number]].size, None)
                    case Hash() | Cross():
                        shapes[name] = (feature.buckets, None)
                    case Vector():
                        shapes[name] = (None, self.widths[feature.each[number]])
                    case _:
                        shapes[name] = (None, None)
        hashed = {name: _learning(feature) for feature in self.plan.features for name in feature.outputs}
        outputs = ((output, *shapes[output.name]) for output in self.plan.outputs)
        return [
            {"name": each.name, "kind": each.kind, "size": size, "width": width} | hashed[each.name]
            for each, size, width in outputs
        ]


def _learning(feature: Feature) -> dict[str, Any]:
    """Return what a trainer is told of the buckets of a feature; nothing when it has none."""
    if isinstance(feature, Hash):
        return {"hashed": True, "admit_after": feature.admit_after, "evict_after_days": feature.evict_after_days}
    return {"hashed": True} if isinstance(feature, Cross) else {}
