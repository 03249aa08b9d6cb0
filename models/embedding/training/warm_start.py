"""Warm start: copies the champion's weights; rows of new ids keep their fresh values."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.reading.layout import Layout
from shortlist.ranking.ranker import IncompatibleModelError


@torch.no_grad()
def copy_champion_weights(model: EmbeddingModel, layout: Layout, champion_layout: Layout, weights: Path) -> None:
    """Copy the champion's networks, standardisation, embedding rows and accumulators into a fresh model.

    Args:
        model: The fresh model; ids appended since the champion keep their fresh rows.
        layout: Layout of the model.
        champion_layout: The champion's layout.
        weights: The champion's verified safetensors file.

    Raises:
        IncompatibleModelError: The champion reads other features, has more ids, or has other widths.
    """
    _check_features(layout, champion_layout, weights)
    tensors = load_file(weights)
    for name, parameter in model.network.state_dict().items():
        champion_parameter = tensors.get(f"network.{name}")
        if champion_parameter is None:
            raise _incompatible_error(
                weights, f"it has no '{name}', of which the spec makes shape {tuple(parameter.shape)}"
            )
        if champion_parameter.shape != parameter.shape:
            raise _incompatible_error(
                weights,
                f"'{name}' has shape {tuple(champion_parameter.shape)}, the spec makes it {tuple(parameter.shape)}",
            )
        parameter.copy_(champion_parameter)
    if tensors["table.weight_RD"].shape[1:] != model.table.weight_RD.shape[1:]:
        raise _incompatible_error(weights, f"its embedding_dim is {tensors['table.weight_RD'].shape[1]}")
    for feature, start, old_start in zip(champion_layout.tables, layout.starts, champion_layout.starts, strict=True):
        rows = feature.size or 0
        champion_rows = (tensors[name][old_start : old_start + rows] for name in ("table.weight_RD", "table.squares_R"))
        model.table.take_rows(start, *champion_rows)


def _check_features(layout: Layout, champion_layout: Layout, weights: Path) -> None:
    for features, champion_features in ((layout.dense, champion_layout.dense), (layout.tables, champion_layout.tables)):
        signature, champion_signature = (
            [(feature.name, feature.kind, feature.width) for feature in columns]
            for columns in (features, champion_features)
        )
        if signature != champion_signature:
            raise _incompatible_error(
                weights,
                f"it reads {[name for name, *_ in champion_signature]}, the spec now says"
                f" {[name for name, *_ in signature]}",
            )
        for feature, champion_feature in zip(features, champion_features, strict=True):
            if (feature.size or 0) < (champion_feature.size or 0):
                raise _incompatible_error(
                    weights,
                    f"feature '{feature.name}' has {feature.size} ids and had {champion_feature.size};"
                    " ids never shrink",
                )


def _incompatible_error(weights: Path, reason: str) -> IncompatibleModelError:
    return IncompatibleModelError(
        f"{weights.parent}: training cannot start from this champion: {reason}. Train without it."
    )
