"""Vectors of several modalities: each has a norm and a projection of its own, in networks and in sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.section import DLRMModel
from models.modalities import Modalities, item_vectors
from shortlist.contracts import Columns, DataError
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.runtime import Runtime
from shortlist.spec.vector_inputs import VectorInputs
from shortlist.storage.tables import DayTable

WIDTHS = {"text": 2, "image": 4}
NETWORK: dict[str, Any] = {"features": ("user_id", "item_id", "age"), "embedding_dim": 8, "batch_size": 200}


def modalities(**changes: Any) -> Modalities:
    declared = VectorInputs.model_validate({"of": ["text", "image"], "width": 3, **changes})
    module = Modalities(declared, WIDTHS, 8)
    for layer in module.projections:
        assert isinstance(layer, torch.nn.Linear)
        torch.nn.init.ones_(layer.weight)  # every number of a projection is the sum of the vector's
    return module


def test_a_layer_norm_has_mean_0_and_l2_has_length_1() -> None:
    module = modalities(norms={"image": "l2"}, combine="concat")
    norm = module.norms[0]
    assert isinstance(norm, torch.nn.LayerNorm)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 3.0]))
        combined = module([torch.tensor([[4.0, 8.0]]), torch.tensor([[3.0, 0.0, 4.0, 0.0]])])
    # (4, 8) has mean 6 and deviation 2: (-1, 1), of which the second counts three times. (3, 0, 4, 0) has length 5.
    np.testing.assert_allclose(combined.numpy(), [[2.0] * 3 + [7 / 5] * 3], atol=1e-5)


def test_a_sum_is_as_wide_as_one_projection() -> None:
    vectors = [torch.tensor([[4.0, 8.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0, 4.0, 0.0], [0.0] * 4])]
    with torch.no_grad():
        combined = modalities(norm="l2")(vectors)
    np.testing.assert_allclose(combined.numpy(), [[12 / 80**0.5 + 7 / 5] * 3, [0.0] * 3], atol=1e-5)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"of": ["text"], "norms": {"txt": "l2"}}, r"norms: 'txt' is not among `of`; did you mean 'text'\?"),
        ({"of": ["text", "text"]}, r"of: names a vector twice"),
        ({"of": []}, r"at least 1 item"),
    ],
)
def test_a_declaration_that_fits_no_vector_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VectorInputs.model_validate(declared)


@pytest.mark.parametrize("kind", ["dlrm", "dcn", "wide_deep", "finalnet"])
@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_networks_learn_from_normed_vectors_and_are_saved(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path, kind: str, combine: str
) -> None:
    section = {"kind": kind, **NETWORK, "epochs": 1, "vectors": {"of": ["text"], "combine": combine, "width": 4}}
    ranker: Ranker[Any] = kind_of(kind).load("ranker")(kind_of(kind).section.model_validate(section))
    ranker.fit(table, runtime)
    scores = ranker.predict(test_rows)
    turned = ranker.predict(test_rows.with_columns(pl.Series("text", -test_rows["text"].to_numpy())))
    assert np.abs(scores - turned).max() > 1e-4  # the vector is read, though `features` does not name it
    longer = ranker.predict(test_rows.with_columns(pl.Series("text", 10 * test_rows["text"].to_numpy())))
    np.testing.assert_allclose(longer, scores, atol=0.01)  # a norm: only the direction counts
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(load_ranker(tmp_path / "model").predict(test_rows), scores)


def test_vectors_help_where_they_tell_rows_apart(table: DayTable, runtime: Runtime, test_rows: pl.DataFrame) -> None:
    aucs = []
    for vectors in (None, {"of": ["text"], "norm": "l2"}):
        section = DLRMModel.model_validate({**NETWORK, "epochs": 4, "vectors": vectors})
        ranker: Ranker[Any] = kind_of("dlrm").load("ranker")(section)
        ranker.fit(table, runtime)
        aucs.append(auc(test_rows[Columns.LABEL].to_numpy().astype(float), ranker.predict(test_rows).astype(float)))
    assert aucs[1] > aucs[0] + 0.003


def test_the_layers_are_as_wide_as_what_is_projected() -> None:
    section = DLRMModel.model_validate({**NETWORK, "vectors": {"of": ["text", "image"], "combine": "concat"}})
    assert section.inner_floats(7, WIDTHS) == 7 - 2 - 4 + 2 * 8
    assert section.reads == ("user_id", "item_id", "age", "text", "image")
    assert DLRMModel.model_validate(NETWORK).inner_floats(7, WIDTHS) == 7


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], r"vector column 'text': vectors of 2 and of 3 numbers; wanted one length"),
        ([[1.0, 2.0], [1.0, float("nan")]], r"the vectors of 1 items hold NaN or infinity, first that of item_id 8;"),
        ([[float("inf"), 2.0], None], r"the vectors of 1 items hold NaN or infinity, first that of item_id 7;"),
        ([None, None], r"no item of the catalogue has a vector in column 'text'"),
    ],
)
def test_vectors_that_nothing_can_be_learnt_from_are_named(vectors: list[Any], message: str) -> None:
    items = pl.DataFrame({"item_id": [7, 8], "text": vectors}, schema_overrides={"text": pl.List(pl.Float32)})
    with pytest.raises(DataError, match=message):
        item_vectors(items, "text")


def test_an_item_without_a_vector_has_zeros() -> None:
    items = pl.DataFrame({"item_id": [7, 8], "text": [[1.0, 2.0], None]})
    assert item_vectors(items, "text").tolist() == [[1.0, 2.0], [0.0, 0.0]]
