"""Vectors of later items, computed without torch, are those of the trained network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models.modalities import ItemModalities
from shortlist.contracts import DataError
from shortlist.slates.retrieval.vector_content import VectorContent
from shortlist.spec.vector_inputs import VectorInputs

ITEMS = pl.DataFrame(
    {"item": [1, 2, 3], "text": [[1.0, 2.0, 4.0], None, [-3.0, 0.5, 0.0]], "image": [[0.0, 2.0], [1.0, 1.0], None]}
)


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"norm": "l2"},
        {"norms": {"image": "l2"}, "width": 5},
        {"combine": "concat"},
        {"combine": "concat", "width": 2},
    ],
)
def test_vectors_of_items_are_those_of_the_network(declared: dict[str, Any], tmp_path: Path) -> None:
    inputs = VectorInputs.model_validate({"of": ["text", "image"], **declared})
    learnt = ItemModalities.from_catalogue(inputs, ITEMS, 4)
    assert learnt is not None
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learnt.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
        expected = learnt(torch.arange(3)).numpy()
    learnt.to_vector_content().write(tmp_path)
    assert VectorContent.read(tmp_path).vectors(ITEMS) == pytest.approx(expected, abs=1e-5)
    assert np.abs(expected).max() > 0.1


def test_a_later_vector_of_another_width_is_refused() -> None:
    learnt = ItemModalities.from_catalogue(VectorInputs(of=["text"]), ITEMS, 4)
    assert learnt is not None
    with pytest.raises(DataError, match="'text': 2 numbers per row; the fitted features have 3"):
        learnt.to_vector_content().vectors(pl.DataFrame({"text": [[1.0, 2.0]]}))
