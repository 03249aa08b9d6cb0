"""The section of a spec that declares a blend of other models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shortlist.spec.data import Data
from shortlist.spec.models import ModelName, ModelSection


class BlendModel(ModelSection):
    """Logistic regression on the scores of other declared models."""

    kind: Literal["blend"] = "blend"
    """Logistic regression on the scores of other declared models."""
    role: Literal["candidate"] = "candidate"
    """It is served; a baseline is made of one model."""
    calibration: Literal["none"] = "none"
    """The logistic regression is fitted on the validation days, so its scores are calibrated there."""
    models: tuple[ModelName, ...] = Field(min_length=2, max_length=16)
    """Members: names of candidates of this spec, none of them a blend. They may read different features."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members."""
        return self.models

    def check_data(self, name: str, data: Data) -> None:
        """Refuse weights of rows and further labels: a blend reads only the members' scores of the label."""
        if self.weights is not None:
            raise ValueError(
                f"models.{name}.weights: a blend learns from its members' scores of the validation days; leave weights"
                " out, and declare them for its members"
            )
        if self.labels:
            raise ValueError(
                f"models.{name}.labels: a blend gives the score of the label alone; leave it out, and name labels on a"
                " model that is served by itself"
            )
