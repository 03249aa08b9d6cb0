from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from models.catboost.section import CatBoostModel
from models.dcn.section import DCNModel
from models.dlrm.export import export_torchscript
from models.dlrm.section import DLRMModel
from models.finalnet.section import FinalNetModel
from models.lightgbm.section import LightGBMModel
from models.wide_deep.section import WideDeepModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.evaluation.gates.integrity import verify_model_folder
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.fil import write_fil_repository
from shortlist.serving.export.graph_builder import ExportError
from shortlist.serving.export.onnx_session import create_session, null_inputs, open_scorer, warm_up_graph
from shortlist.serving.export.program.scorers import TreeScorer
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import Signature
from shortlist.serving.export.triton_config import from_text
from shortlist.spec.serving import Batching
from shortlist.storage.artefacts import (
    IntegrityError,
    folder_digest,
    read_json,
    verify_manifest,
    write_json,
    write_manifest,
)
from shortlist.training.export import export

DLRM = DLRMModel(
    features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8, 4), epochs=1, batch_size=64, dropout=0.1
)
# What neither Float32 nor a tree's histogram can take is left out: numbers of 10 ** 15, lists of ids.
TAME = (
    "*_log",
    "*_age",
    "hour_*",
    "weekday_*",
    "*_rate",
    "*_seen*",
    "*_away",
    "*_watched",
    "*_seconds",
    "*_vector",
    "fit",
    "follows",
)
SINGLE_IDS = ("page_*", "number_*", "code_*", "price_cut", "city_*", "user_id_id")


@pytest.fixture(scope="module")
def trained(all_features: Any) -> Callable[[str], Path]:
    """Return a function that returns the folder of an exported model of a kind."""
    ids: dict[str, Any] = {"features": (*TAME, "*_id", "*_hash", "*_x_*"), "embedding_dim": 4, "epochs": 1}
    sections = {
        "xgboost": XGBoostModel(features=(*TAME, "page_*", "number_id"), rounds=40, max_depth=4, min_child_weight=1),
        "dlrm": DLRM.model_copy(update={"features": (*TAME, "*_id", "*_hash", "*_x_*")}),
        "lightgbm": LightGBMModel(features=(*TAME, "page_*", "number_id"), rounds=40, min_data_in_leaf=5),
        "catboost": CatBoostModel(
            features=(*TAME, *SINGLE_IDS), rounds=40, depth=4, max_ctr_complexity=2, one_hot_max_size=4
        ),
        "dcn": DCNModel(cross_rank=None, deep_mlp=(8,), **ids),
        "wide_deep": WideDeepModel(deep_mlp=(8,), **ids),
        "finalnet": FinalNetModel(mlp=(8, 4), **ids),
    }
    model_by_kind: dict[str, Path] = {}

    def give(kind: str) -> Path:
        if kind not in model_by_kind:
            model_by_kind[kind] = all_features.trained(kind, sections[kind], f"scores-{kind}")
            export(model_by_kind[kind], "shop")
        return model_by_kind[kind]

    return give


@pytest.fixture
def copied(trained: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that returns a copy of such a folder."""
    return lambda kind: Path(shutil.copytree(trained(kind), tmp_path / kind))


def scored(folder: Path, fitted: Any) -> np.ndarray:
    """The graph's scores of looked-up rows."""
    signature = Signature.read(folder / "serving")
    tensors = encode(fitted.looked_up, signature, fitted.transformer.plan.declared)
    (scores,) = create_session(folder / "serving").run(["score"], tensors)
    assert scores.dtype == np.float32 and scores.shape == (fitted.looked_up.height, 1)
    return np.asarray(scores[:, 0])


def predicted(folder: Path, fitted: Any) -> np.ndarray:
    return load_ranker(folder).predict(fitted.transformer.compute(fitted.looked_up))


@pytest.mark.parametrize("kind", ["xgboost", "dlrm", "lightgbm", "catboost", "dcn", "wide_deep", "finalnet"])
def test_the_exported_file_has_the_scores_of_the_model(
    trained: Callable[[str], Path], all_features: Any, kind: str
) -> None:
    folder = trained(kind)
    scores = scored(folder, all_features)
    np.testing.assert_allclose(scores, predicted(folder, all_features), atol=1e-6)
    assert np.unique(scores).size > 100
    assert verify_model_folder(folder).keys() > {"serving/model.onnx", "serving/signature.json"}
    signature = Signature.read(folder / "serving")
    assert (signature.model, signature.kind) == ("shop", kind)
    scorer = open_scorer(folder / "serving")
    assert isinstance(scorer, TreeScorer) == (kind in {"xgboost", "lightgbm", "catboost"})
    tensors = encode(all_features.looked_up, signature, all_features.transformer.plan.declared)
    np.testing.assert_allclose(scorer.scores(tensors)[:, 0], scores, atol=1e-6)


@pytest.mark.parametrize(
    "spec", ["demo", *(pytest.param(spec_name, marks=pytest.mark.long) for spec_name in ("kuairand", "criteo"))]
)
@pytest.mark.parametrize("kind", ["xgboost", "dlrm"])
def test_models_of_the_shipped_specs_are_exported_to_one_file(
    fitted_spec: Callable[[str], Any], spec: str, kind: str
) -> None:
    fitted, tables = fitted_spec(spec), ("*_log", "*_rate")
    if kind == "xgboost":
        folder = fitted.trained(kind, XGBoostModel(features=tables, rounds=10, min_child_weight=1), kind)
    else:
        folder = fitted.trained(kind, DLRM.model_copy(update={"features": (*tables, "*_id")}), kind)
    export(folder, spec)
    np.testing.assert_allclose(scored(folder, fitted), predicted(folder, fitted), atol=1e-6)


def test_a_model_of_ids_alone_has_no_numbers(all_features: Any) -> None:
    folder = all_features.trained("dlrm", DLRM.model_copy(update={"features": ("words_id", "page_id")}), "ids")
    export(folder, "shop")
    signature = Signature.read(folder / "serving")
    assert (signature.numbers, signature.codes, len(signature.lists)) == ((), ("page",), 1)
    np.testing.assert_allclose(scored(folder, all_features), predicted(folder, all_features), atol=1e-6)


def test_a_model_of_one_list_alone_is_scored(all_features: Any) -> None:
    folder = all_features.trained("dlrm", DLRM.model_copy(update={"features": ("words_id",)}), "list")
    export(folder, "shop")
    np.testing.assert_allclose(scored(folder, all_features), predicted(folder, all_features), atol=1e-6)


@pytest.mark.parametrize("kind", ["xgboost", "dlrm"])
def test_the_same_model_gives_the_same_bytes(copied: Callable[[str], Path], kind: str) -> None:
    folder = copied(kind)
    old_digest = folder_digest(folder)
    export(folder, "shop")
    assert folder_digest(folder) == old_digest


@pytest.mark.parametrize("rows", [1, 7])
def test_scores_do_not_depend_on_the_number_of_rows(
    trained: Callable[[str], Path], all_features: Any, rows: int
) -> None:
    for kind in ("xgboost", "dlrm"):
        folder = trained(kind) / "serving"
        tensors = encode(all_features.looked_up, Signature.read(folder), all_features.transformer.plan.declared)
        (all_scores,) = create_session(folder).run(["score"], tensors)
        (first_scores,) = create_session(folder).run(
            ["score"], {name: values[:rows] for name, values in tensors.items()}
        )
        np.testing.assert_allclose(first_scores, all_scores[:rows], rtol=1e-6)


def test_large_weights_are_stored_beside_the_graph(copied: Callable[[str], Path], all_features: Any) -> None:
    folder = copied("dlrm")
    inside = scored(folder, all_features)
    export(folder, "shop", external_bytes=10_000)
    assert "serving/model.onnx.data" in verify_model_folder(folder)
    assert (folder / "serving" / "model.onnx").stat().st_size < 100_000
    np.testing.assert_array_equal(scored(folder, all_features), inside)
    old_digest = folder_digest(folder)
    export(folder, "shop", external_bytes=10_000)
    assert folder_digest(folder) == old_digest


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x80\x04\x95pickled", "does not begin as exported weights do"),
        (b"PK\x03\x04zipped and longer", "does not begin as exported weights do"),
        (b"", "does not begin as exported weights do"),
    ],
)
def test_a_weights_file_with_other_content_is_refused(
    copied: Callable[[str], Path], content: bytes, problem: str
) -> None:
    folder = copied("dlrm")
    export(folder, "shop", external_bytes=10_000)
    (folder / "serving" / "model.onnx.data").write_bytes(content)
    write_manifest(folder)
    with pytest.raises(IntegrityError, match=f"serving/model.onnx.data: {problem}"):
        verify_model_folder(folder)


def test_weights_without_their_graph_are_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("xgboost")
    (folder / "other.onnx.data").write_bytes(bytes(64))
    write_manifest(folder)
    with pytest.raises(IntegrityError, match=r"other\.onnx\.data: weights without their graph; wanted other\.onnx"):
        verify_model_folder(folder)


def test_a_changed_graph_is_detected(copied: Callable[[str], Path]) -> None:
    folder = copied("xgboost")
    with (folder / "serving" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError, match=r"serving/model\.onnx: changed after it was written"):
        verify_manifest(folder)


def test_nan_stays_nan(copied: Callable[[str], Path], all_features: Any) -> None:
    folder = copied("dlrm")
    weights = load_file(folder / "weights.safetensors")
    weights["network.top.0.bias"][:] = np.nan
    save_file(weights, folder / "weights.safetensors")
    write_manifest(folder)
    export(folder, "shop")
    assert np.isnan(scored(folder, all_features)).all()


def test_scores_are_clipped_like_the_models(copied: Callable[[str], Path], all_features: Any) -> None:
    folder = copied("dlrm")
    weights = load_file(folder / "weights.safetensors")
    for bias, bound in ((1e4, np.float32(1) - np.float32(1e-7)), (-1e4, np.float32(1e-7))):
        weights[max(name for name in weights if name.startswith("network.top") and name.endswith("bias"))][:] = bias
        save_file(weights, folder / "weights.safetensors")
        write_manifest(folder)
        export(folder, "shop")
        scores = scored(folder, all_features)
        assert set(scores.tolist()) == {float(bound)}
        np.testing.assert_array_equal(scores, predicted(folder, all_features))


def test_an_unchanged_model_is_only_exported(copied: Callable[[str], Path]) -> None:
    folder = copied("xgboost")
    (folder / "model.ubj").write_bytes(b"{")
    with pytest.raises(IntegrityError, match=r"model\.ubj: changed after it was written"):
        export(folder, "shop")


def test_a_model_that_does_not_fit_its_preprocessing_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("dlrm")
    record = read_json(folder / "model.json")
    sized = next(feature for feature in record["features"] if feature["name"] == "page_id")
    sized["size"] += 1
    write_json(folder / "model.json", record)
    write_manifest(folder)
    with pytest.raises(ExportError, match=r"the model reads 'page_id' as .*, its preprocessing makes .*Train again"):
        export(folder, "shop")


def test_a_kind_that_is_never_served_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("xgboost")
    write_json(folder / "model.json", {**read_json(folder / "model.json"), "kind": "popularity"})
    write_manifest(folder)
    with pytest.raises(ExportError, match="kind 'popularity' cannot be served; declare role: baseline"):
        export(folder, "shop")


def test_a_graph_that_does_not_run_is_removed(copied: Callable[[str], Path]) -> None:
    folder = copied("xgboost") / "serving"
    signature = Signature.read(folder)
    signature.model_copy(update={"numbers": (*signature.numbers, "one more")}).write(folder)
    with pytest.raises(ExportError, match="the exported graph does not run"):
        warm_up_graph(folder, "score")


def test_any_onnxruntime_of_the_last_years_reads_the_file(trained: Callable[[str], Path]) -> None:
    model = onnx.load(trained("dlrm") / "serving" / "model.onnx")
    assert model.ir_version == 8
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 17, "ai.onnx.ml": 3}


def test_lists_of_no_column_at_all_are_empty(trained: Callable[[str], Path]) -> None:
    folder = trained("dlrm") / "serving"
    tensors = null_inputs(Signature.read(folder), 3)
    narrow = {name: values[:, :0] if name.startswith("list_") else values for name, values in tensors.items()}
    (padded,), (empty,) = (create_session(folder).run(["score"], list_tensor) for list_tensor in (tensors, narrow))
    np.testing.assert_array_equal(padded, empty)


def test_unknown_and_rare_values_share_an_id(trained: Callable[[str], Path], all_features: Any) -> None:
    unknown_rows = all_features.looked_up.with_columns(pl.lit("never seen").alias("page"))
    null = all_features.looked_up.with_columns(pl.lit(None, pl.String).alias("page"))
    names = ["page_id"]
    compute = all_features.transformer.compute
    assert compute(unknown_rows).select(names).equals(compute(null).select(names))


FURTHER: dict[str, dict[str, Any]] = {
    "xgboost": {"features": TAME, "rounds": 20, "min_child_weight": 1},
    "lightgbm": {"features": TAME, "rounds": 20, "min_data_in_leaf": 5},
    "catboost": {"features": (*TAME, *SINGLE_IDS), "rounds": 20, "depth": 4},
    "dlrm": {"features": (*TAME, "*_id"), "embedding_dim": 4, "epochs": 1, "calibration": "isotonic"},
    "dcn": {"features": (*TAME, "*_id"), "embedding_dim": 4, "epochs": 1, "deep_mlp": (8,), "sharing": "mmoe"},
    "wide_deep": {"features": (*TAME, "*_id"), "embedding_dim": 4, "epochs": 1, "deep_mlp": (8, 4), "sharing": "mmoe"},
    "finalnet": {"features": (*TAME, "*_id"), "embedding_dim": 4, "epochs": 1, "mlp": (8, 4)},
}


@pytest.mark.parametrize("kind", FURTHER)
def test_the_exported_file_has_the_models_scores_of_every_label(all_features: Any, kind: str) -> None:
    section = kind_of(kind).section.model_validate({"kind": kind, "labels": ("long", "read"), **FURTHER[kind]})
    folder = all_features.trained(kind, section, f"further-{kind}")
    export(folder, "shop")
    signature = Signature.read(folder / "serving")
    assert (signature.scores, signature.runs_as) == (("score", "score_long", "score_read"), "graph")
    tensors = encode(all_features.looked_up, signature, all_features.transformer.plan.declared)
    (scores,) = create_session(folder / "serving").run(["score"], tensors)
    ranker, rows = load_ranker(folder), all_features.transformer.compute(all_features.looked_up)
    further = ranker.predict_further(rows)
    expected = np.stack([ranker.predict(rows), further["long"], further["read"]], axis=1)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert not np.allclose(scores[:, 1], scores[:, 2], atol=1e-3)
    assert verify_model_folder(folder)
    write_repository(folder / "serving", 1, Batching(), folder.parent / "repository")
    config = from_text((folder.parent / "repository/shop/config.pbtxt").read_text())
    assert [list(tensor.dims) for tensor in config.output] == [[3]]


def test_forms_with_one_score_refuse_further_labels(all_features: Any, tmp_path: Path) -> None:
    trees = XGBoostModel(features=TAME, rounds=2, min_child_weight=1, labels=("long",))
    folder = all_features.trained("xgboost", trees, "further-fil")
    export(folder, "shop")
    with pytest.raises(ShortlistError, match=r"the model has further labels \(long\), and the FIL backend runs one"):
        write_fil_repository(folder / "serving", 1, Batching(), tmp_path / "fil")
    network = DLRM.model_copy(update={"features": TAME, "labels": ("long",)})
    folder = all_features.trained("dlrm", network, "further-torchscript")
    with pytest.raises(ExportError, match=r"further labels, which its TorchScript form does not answer"):
        export_torchscript(folder, tmp_path / "model.pt")


def test_attention_over_a_sequence_has_the_scores_of_the_model(all_features: Any) -> None:
    section = kind_of("din").section.model_validate(
        {
            "kind": "din", "features": (*TAME, "words_id"), "history": "user_numbers", "target": "number_id",
            "embedding_dim": 4, "epochs": 2, "attention_mlp": (8,),
        }
    )  # fmt: skip
    folder = all_features.trained("din", section, "attention")
    export(folder, "shop")
    scores = scored(folder, all_features)
    np.testing.assert_allclose(scores, predicted(folder, all_features), atol=1e-6)
    signature = Signature.read(folder / "serving")
    assert signature.runs_as == "network"
    assert "border_history" in signature.border
    # The history counts: without it, rows that have one are scored otherwise.
    past = all_features.transformer.compute(all_features.looked_up)
    no_history = past.with_columns(pl.lit([], dtype=past.schema["user_numbers"]).alias("user_numbers"))
    has_past = (past["user_numbers"].list.len() > 0).to_numpy()
    changed = np.abs(load_ranker(folder).predict(no_history) - scores) > 1e-6
    assert has_past.sum() > 50
    assert changed[has_past].mean() > 0.9
    assert not changed[~has_past].any()
    write_repository(folder / "serving", 1, Batching(), folder.parent / "repository")
    assert (folder.parent / "repository/shop/1/network.onnx").exists()
    # Two requests that Triton joins: a history is looked up once for all rows of each.
    features = onnxruntime.InferenceSession(folder.parent / "repository/shop/1/features.onnx")
    lists = past["user_numbers"].to_list()
    first, changed_row = 0, next(number for number, history in enumerate(lists) if history != lists[0])
    rows = [*[first] * 30, *[changed_row] * 10]
    declared = all_features.transformer.plan.declared
    tensors = {name: values[rows] for name, values in encode(all_features.looked_up, signature, declared).items()}
    border_tensors = dict(zip(signature.border, features.run(list(signature.border), tensors), strict=True))
    assert len(border_tensors["border_history"]) == 2
    assert border_tensors["border_run"].ravel().tolist() == [0] * 30 + [1] * 10
    (joined,) = create_session(folder / "serving").run(["score"], tensors)
    np.testing.assert_allclose(joined[:, 0], scores[rows], atol=1e-6)
