"""What there is to know of a kind of model, and what the pipeline says about one declared model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from shortlist.contracts import ShortlistError
from shortlist.serving.export.signature import RunsAs
from shortlist.spec.models import ModelSection
from shortlist.spec.tune import Dimension


@dataclass(frozen=True)
class Tuning:
    """How a search for better settings treats a kind of model.

    Attributes:
        space: What it changes where the spec declares no space, by key of the section.
        pace: Key by which rounds of training are compared: two trials at the same number of rounds times this value
            have got equally far. Empty: at the same number of rounds.
    """

    space: Mapping[str, Dimension] = field(default_factory=dict)
    pace: str = ""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model.

    Whatever is slow to load (torch, XGBoost) is named as `module:attribute` and imported when it is used.

    Attributes:
        section: Its section of a spec; the default of `kind` is the kind's name.
        ranker: Its subclass of `models.ranker.Ranker`.
        export: Function that adds a trained model to an ONNX graph (see `shortlist.training.export`); empty: it is
            never served.
        runs_as: What Triton runs of the exported graph; `graph`: ONNX Runtime runs all of it.
        forms: Further forms in which a registered version leaves for other servers: name -> function (see
            `shortlist.deployment.release`).
        plan: Function (spec, name, cardinalities, fitted sizes) -> `models.planning.plan_inputs.Shape`, for
            `shortlist plan`; empty: there is nothing to plan.
        diagnosis: Function (table, section, runtime, steps) that finds the bottleneck of a training and gives its
            `lines`, for `shortlist diagnose`; likewise.
        tuning: What `shortlist tune` searches over.
    """

    section: type[ModelSection]
    ranker: str
    export: str = ""
    runs_as: RunsAs = "graph"
    forms: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    diagnosis: str = ""
    tuning: Tuning = Tuning()

    @property
    def name(self) -> str:
        """The value of `kind`."""
        return str(self.section.model_fields["kind"].default)

    def load(self, part: Literal["ranker", "export", "plan", "diagnosis"]) -> Any:
        """Return the class or function that one of the fields names.

        Raises:
            ShortlistError: The kind has none.
        """
        where: str = getattr(self, part)
        if not where:
            raise ShortlistError(f"kind {self.name}: has no {part}")
        return resolve_name(where)


class DeclaredModel(BaseModel):
    """One entry of the training graph's list of models; its JSON is the parameter of that model's `train` step."""

    model_config = ConfigDict(frozen=True)

    name: str
    """What the user calls it."""
    section: dict[str, Any]
    """Its section of the spec."""
    cluster: str = ""
    """`runtime.cluster` as JSON, where several processes train it; empty: one does."""
    earlier: str = ""
    """MLflow run of the model to go on from; empty: none."""
    members: tuple[str, ...] = ()
    """Names of the models that it is made of, which are trained before it; empty: it learns from the table alone."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the entry that a graph's parameter holds."""
        return cls.model_validate_json(text)

    @property
    def text(self) -> str:
        """The entry as a graph's parameter; the same declaration gives the same text."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.section["kind"])

    @property
    def role(self) -> str:
        """Candidate or baseline."""
        return str(self.section["role"])
