"""The section of a spec that declares a deep interest network."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from models.dlrm.section import DLRMModel
from models.embedding_section import check_widths
from shortlist.contracts import did_you_mean
from shortlist.spec.features import Features


class DINModel(DLRMModel):
    """DLRM with attention of the item over the user's last items (deep interest network; Zhou et al., KDD 2018)."""

    kind: Literal["din"] = "din"  # type: ignore[assignment] # a kind of its own
    """Deep network with attention of the item to be scored over a sequence of past ones."""
    history: str = Field(min_length=1)
    """Feature of kind `sequence`: the past items. It need not be among `features`."""
    target: str = Field(min_length=1)
    """Feature of kind `vocabulary`: the id of the item to be scored, of the column that the sequence lists. Both look
    up one table."""
    attention_mlp: tuple[int, ...] = (32,)
    """Hidden widths of the network that weighs past items; one output is appended."""

    @model_validator(mode="after")
    def _attention_has_units(self) -> Self:
        check_widths(attention_mlp=self.attention_mlp)
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """Patterns of the features that the network reads, the sequence and the item included."""
        return (*super().reads, self.history, self.target)

    def perceptrons(self, floats: int, tables: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the widths of the bottom and the top perceptron; the attention is one more vector."""
        return super().perceptrons(floats, tables + 1)

    def check_features(self, name: str, features: Features, *, distributed: bool) -> None:
        """Refuse a history that is no sequence, and a target that is no id of the column that the history lists."""
        super().check_features(name, features, distributed=distributed)
        owners = {output: feature for feature in features.columns for output in feature.outputs}
        sequences = [feature.outputs[0] for feature in features.columns if feature.kind == "sequence"]
        if self.history not in sequences:
            raise ValueError(
                f"models.{name}.history: '{self.history}' is no feature of kind sequence"
                f"{did_you_mean(self.history, sequences)}; declare {{kind: sequence, of: <item>, key: <user>}}"
            )
        target_feature, sequence_column = owners.get(self.target), getattr(owners[self.history], "of", "")
        column_by_output = (
            dict(zip(target_feature.outputs, getattr(target_feature, "each", ()), strict=False))
            if target_feature is not None
            else {}
        )
        if (
            target_feature is None
            or target_feature.kind != "vocabulary"
            or column_by_output.get(self.target) != sequence_column
        ):
            raise ValueError(
                f"models.{name}.target: '{self.target}' is no id of '{sequence_column}', which '{self.history}' lists;"
                f" declare {{kind: vocabulary, each: {sequence_column}}} and name '{sequence_column}_id'"
            )
