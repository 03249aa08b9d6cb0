"""The section of a spec that declares a blend of other models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
    """Its members: names of candidates of this spec, none of them a blend. They may read different features."""

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members."""
        return self.models
