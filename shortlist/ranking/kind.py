"""The description of a kind of model, and one declared model as a parameter of the training graph."""

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
    """How `shortlist tune` searches the settings of a kind of model.

    Attributes:
        space: The search space where the spec declares none, by key of the section.
        pace: Key of the section, such as the learning rate, that rounds are multiplied by before trials are compared.
            Empty: trials are compared at the same number of rounds.
    """

    space: Mapping[str, Dimension] = field(default_factory=dict)
    pace: str = ""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model.

    Whatever is slow to load (torch, XGBoost) is named as `module:attribute` and imported when it is used.

    Attributes:
        section: Its section of a spec; the default of `kind` is the kind's name.
        ranker: Its subclass of `shortlist.ranking.ranker.Ranker`.
        export: Function that adds a trained model to an ONNX graph (see `shortlist.training.export`); empty: the kind
            is never served.
        runs_as: What Triton runs of the exported graph; `graph`: ONNX Runtime runs all of it.
        forms: Further forms in which a registered version leaves for other servers: name -> function (see
            `shortlist.deployment.release`).
        plan: Function (spec, name, cardinalities, fitted sizes) -> `models.plan_inputs.Shape`, for
            `shortlist plan`; empty: the kind cannot be planned.
        tuning: Defaults of `shortlist tune`.
        packages: Packages that training needs and a run does not install: name of the module -> command that installs
            it.
    """

    section: type[ModelSection]
    ranker: str
    export: str = ""
    runs_as: RunsAs = "graph"
    forms: Mapping[str, str] = field(default_factory=dict)
    plan: str = ""
    tuning: Tuning = Tuning()
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kind's name, the value of `kind` in a spec."""
        return str(self.section.model_fields["kind"].default)

    def load(self, part: Literal["ranker", "export", "plan"]) -> Any:
        """Import and return the class or function that a field names.

        Raises:
            ShortlistError: The field is empty.
        """
        attribute_path: str = getattr(self, part)
        if not attribute_path:
            raise ShortlistError(f"kind {self.name}: has no {part}")
        return resolve_name(attribute_path)


class DeclaredModel(BaseModel):
    """One model of the training graph; its JSON is the parameter of that model's `train` step."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Key of the model in the spec."""
    section: dict[str, Any]
    """The model's section of the spec."""
    cluster: str = ""
    """`runtime.cluster` as JSON, where several processes train the model; empty: one process trains it."""
    previous_run: str = ""
    """MLflow run of the model to continue training from; empty: train from scratch."""
    members: tuple[str, ...] = ()
    """Names of the members of an ensemble, which are trained first; empty: the model is no ensemble."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the model that a graph's parameter declares."""
        return cls.model_validate_json(text)

    @property
    def text(self) -> str:
        """The model as a graph's parameter; the same declaration gives the same text."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))

    @property
    def kind(self) -> str:
        """Kind of the model."""
        return str(self.section["kind"])

    @property
    def role(self) -> str:
        """Candidate or baseline."""
        return str(self.section["role"])
