"""Starting from the champion's weights: its rows are copied, rows of ids that came later are fresh."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from models.embedding.embedding_model import EmbeddingModel
from models.embedding.layout import Layout
from models.ranker import IncompatibleModelError


@torch.no_grad()
def copy_champion_weights(model: EmbeddingModel, layout: Layout, before: Layout, weights: Path) -> None:
    """Copy the champion's networks, standardisation, embedding rows and accumulators into a fresh model.

    Args:
        model: Freshly drawn; ids appended since the champion keep their drawn rows.
        layout: Its layout.
        before: The champion's layout.
        weights: The champion's verified safetensors file.

    Raises:
        MisfitError: The champion reads other features, has more ids, or has other widths.
    """
    _check_features(layout, before, weights)
    tensors = load_file(weights)
    for name, own in model.network.state_dict().items():
        theirs = tensors.get(f"network.{name}")
        if theirs is None:
            raise _misfit(weights, f"it has no '{name}', of which the spec makes shape {tuple(own.shape)}")
        if theirs.shape != own.shape:
            raise _misfit(weights, f"'{name}' has shape {tuple(theirs.shape)}, the spec makes it {tuple(own.shape)}")
        own.copy_(theirs)
    if tensors["table.weight_RD"].shape[1:] != model.table.weight_RD.shape[1:]:
        raise _misfit(weights, f"its embedding_dim is {tensors['table.weight_RD'].shape[1]}")
    for feature, start, old_start in zip(before.tables, layout.starts, before.starts, strict=True):
        rows = feature.size or 0
        taken = (tensors[name][old_start : old_start + rows] for name in ("table.weight_RD", "table.squares_R"))
        model.table.take_rows(start, *taken)


def _check_features(layout: Layout, before: Layout, weights: Path) -> None:
    for now, then in ((layout.dense, before.dense), (layout.tables, before.tables)):
        named_now, named_then = ([(one.name, one.kind, one.width) for one in side] for side in (now, then))
        if named_now != named_then:
            raise _misfit(
                weights,
                f"it reads {[name for name, *_ in named_then]}, the spec now says {[name for name, *_ in named_now]}",
            )
        for own, old in zip(now, then, strict=True):
            if (own.size or 0) < (old.size or 0):
                raise _misfit(weights, f"feature '{own.name}' has {own.size} ids and had {old.size}; ids never shrink")


def _misfit(weights: Path, reason: str) -> IncompatibleModelError:
    return IncompatibleModelError(
        f"{weights.parent}: training cannot start from this champion: {reason}. Train without it."
    )
