"""Scores of further labels: heads over a shared body, separate models, calibration and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from models.dlrm.network import DLRMRanker
from models.dlrm.section import DLRMModel
from models.embedding.network.heads import MixtureOfExperts
from shortlist.contracts import DataError
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.ranking.ranker import IncompatibleModelError, Ranker
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable
from shortlist.training.scores import score

NETWORK: dict[str, Any] = {"features": ("*",), "embedding_dim": 8, "batch_size": 200, "epochs": 3}
TREES: dict[str, Any] = {"features": ("user_id", "item_id", "age", "text"), "rounds": 20}
SECTIONS: dict[str, dict[str, Any]] = {
    "shared bottom": {"kind": "dlrm", **NETWORK},
    "mmoe": {"kind": "dlrm", **NETWORK, "sharing": "mmoe", "experts": 3},
    "network refitted": {"kind": "dlrm", **NETWORK, "refit": True, "calibration": "platt"},
    "dcn": {"kind": "dcn", **NETWORK, "sharing": "mmoe", "deep_mlp": (16,)},
    "wide_deep": {"kind": "wide_deep", **NETWORK},
    "finalnet": {"kind": "finalnet", **NETWORK},
    "xgboost": {"kind": "xgboost", **TREES},
    "xgboost refitted": {"kind": "xgboost", **TREES, "refit": True},
    "lightgbm": {"kind": "lightgbm", **TREES},
    "popularity": {"kind": "popularity"},
    "logistic": {
        "kind": "logistic",
        "features": ("user_id", "item_id", "age"),
        "epochs": 2,
        "bins": (0,),
        "l2": (1e-5,),
    },
}


def ranker_of(name: str, **changed: Any) -> Ranker[Any]:
    section = {**SECTIONS[name], "labels": ("like",), **changed}
    ranker: Ranker[Any] = kind_of(section["kind"]).load("ranker")(
        kind_of(section["kind"]).section.model_validate(section)
    )
    return ranker


def measured(rows: pl.DataFrame, scores: np.ndarray, label: str) -> float:
    return auc(rows[label].to_numpy().astype(float), scores.astype(float))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_kind_learns_and_keeps_a_score_per_label(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    ranker = ranker_of(name)
    ranker.fit(table, runtime)
    main, further = ranker.predict(test_rows), ranker.predict_further(test_rows)
    assert list(further) == ["like"]
    assert measured(test_rows, further["like"], "label_like") > 0.65
    # The two labels depend on different things: a copy of the label's score would order likes worse.
    if name != "popularity":  # of which both scores depend on the item alone
        assert measured(test_rows, further["like"], "label_like") > measured(test_rows, main, "label_like")
    assert further["like"].mean() == pytest.approx(test_rows["label_like"].mean(), abs=0.15)
    ranker.save(tmp_path / "model")
    loaded = load_ranker(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(test_rows), main)
    np.testing.assert_array_equal(loaded.predict_further(test_rows)["like"], further["like"])


@pytest.mark.parametrize("name", ["xgboost", "lightgbm", "logistic", "popularity"])
def test_a_separate_model_of_a_further_label_changes_no_other_score(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, name: str
) -> None:
    alone, with_further_label = ranker_of(name, labels=()), ranker_of(name)
    alone.fit(table, runtime)
    with_further_label.fit(table, runtime)
    np.testing.assert_array_equal(alone.predict(test_rows), with_further_label.predict(test_rows))


@pytest.mark.parametrize("name", ["mmoe", "xgboost"])
def test_every_label_has_a_separate_calibration(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    plain, calibrated = ranker_of(name), ranker_of(name, calibration="platt")
    plain.fit(table, runtime)
    calibrated.fit(table, runtime)
    assert not np.array_equal(plain.predict_further(test_rows)["like"], calibrated.predict_further(test_rows)["like"])
    calibrated.save(tmp_path / "model")
    files = {
        str(path.parent.relative_to(tmp_path / "model")) for path in (tmp_path / "model").rglob("calibration.json")
    }
    assert files == {".", "heads/like"}
    scores = load_ranker(tmp_path / "model").predict_further(test_rows)
    np.testing.assert_array_equal(scores["like"], calibrated.predict_further(test_rows)["like"])
    (tmp_path / "model/heads/like/calibration.json").unlink()
    with pytest.raises(IntegrityError, match=r"heads/like/calibration\.json"):
        load_ranker(tmp_path / "model")


@pytest.mark.parametrize("name", ["shared bottom", "network refitted", "xgboost refitted"])
def test_the_scores_file_holds_labels_and_scores_of_every_head(
    table: DayTable, runtime: Runtime, tmp_path: Path, name: str
) -> None:
    ranker = ranker_of(name)
    ranker.fit(table, runtime)
    frame = pl.read_parquet(score(ranker, table, tmp_path / "scores"))
    assert {"score_like", "label_like"} <= set(frame.columns)
    assert "label_never" not in frame.columns
    test = frame.filter(pl.col("split") == "test")
    assert measured(test, test["score_like"].to_numpy(), "label_like") > 0.7
    validation = frame.filter(pl.col("split") == "validation")
    if name == "xgboost refitted":  # scores from before these rows were learnt, of both models
        head = ranker.heads["like"].held_out
        assert head is not None
        np.testing.assert_allclose(validation["score_like"].to_numpy(), head, rtol=1e-6)
    if name == "network refitted":  # likewise, of the same network before
        unrefitted = ranker_of(name, refit=False)
        unrefitted.fit(table, runtime)
        rows = pl.concat([frame for day, frame in table.frames() if str(day) in table.notes["split"]["validation"]])
        np.testing.assert_array_equal(validation["score_like"].to_numpy(), unrefitted.predict_further(rows)["like"])
        now = pl.concat([frame for day, frame in table.frames() if str(day) in table.notes["split"]["test"]])
        assert not np.array_equal(test["score_like"].to_numpy(), unrefitted.predict_further(now)["like"])


def test_a_refitted_network_is_one_that_learnt_all_days_for_every_label(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame
) -> None:
    split = table.notes["split"]
    learnt = {**split, "train": [*split["train"], *split["validation"]], "validation": split["test"], "test": []}
    every_day = table.model_copy(update={"notes": {**table.notes, "split": learnt}})
    refitted, at_once = (ranker_of("mmoe", epochs=1, refit=refit) for refit in (True, False))
    refitted.fit(table, runtime)
    at_once.fit(every_day, runtime)
    np.testing.assert_array_equal(refitted.predict(test_rows), at_once.predict(test_rows))
    np.testing.assert_array_equal(
        refitted.predict_further(test_rows)["like"], at_once.predict_further(test_rows)["like"]
    )


def test_trees_of_every_label_are_grown_anew_in_the_same_number(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    changed = {"refit": True, "retrain": "refit", "rounds": 60, "early_stopping_rounds": 3, "learning_rate": 0.3}
    searched = ranker_of("xgboost", **changed)
    searched.fit(table, runtime)
    searched.save(tmp_path / "champion")
    assert searched.record.rounds != searched.heads["like"].record.rounds
    refitted = ranker_of("xgboost", **changed)
    refitted.fit(table, runtime, champion=tmp_path / "champion")
    assert refitted.heads["like"].record.rounds == searched.heads["like"].record.rounds
    # The same days, the same trees, of both labels; and nothing was searched for.
    np.testing.assert_array_equal(refitted.predict(test_rows), searched.predict(test_rows))
    further = refitted.predict_further(test_rows)["like"]
    np.testing.assert_array_equal(further, searched.predict_further(test_rows)["like"])
    assert len(refitted.heads["like"].record.history) <= 1 < len(searched.heads["like"].record.history)
    # A label that the earlier model did not have gets a search of its own, and what it learnt says so.
    alone = ranker_of("xgboost", labels=(), **changed)
    alone.fit(table, runtime)
    alone.save(tmp_path / "alone")
    added = ranker_of("xgboost", **changed)
    added.fit(table, runtime, champion=tmp_path / "alone")
    assert len(added.heads["like"].record.history) > 1
    np.testing.assert_array_equal(added.predict_further(test_rows)["like"], further)
    score(added, table, tmp_path / "scores")
    validation = pl.read_parquet(tmp_path / "scores/scores.parquet").filter(pl.col("split") == "validation")
    assert validation["learnt"].all()


@pytest.mark.parametrize("name", ["shared bottom", "xgboost", "popularity"])
def test_a_label_that_never_varies_is_refused_before_training(table: DayTable, runtime: Runtime, name: str) -> None:
    with pytest.raises(DataError, match=r"label 'never' is 0 on all 3000 rows of the training days .*never varies"):
        ranker_of(name, labels=("like", "never")).fit(table, runtime)


def test_a_table_without_the_label_asks_for_a_new_table(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(DataError, match=r"has no column 'label_share'; write the feature table again"):
        ranker_of("xgboost", labels=("share",)).fit(table, runtime)


def test_heads_that_learnt_other_labels_are_not_gone_on_from(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    champion = ranker_of("shared bottom")
    champion.fit(table, runtime)
    now = DLRMModel.model_validate({**SECTIONS["shared bottom"], "labels": ("share",)})
    with pytest.raises(IncompatibleModelError, match=r"earlier heads are of \['like'\], the spec now says \['share'\]"):
        DLRMRanker.check_previous_model(champion.record, now)
    DLRMRanker.check_previous_model(champion.record, now.model_copy(update={"labels": ("like",)}))


def test_the_history_has_the_quality_of_every_head(table: DayTable, runtime: Runtime) -> None:
    record = ranker_of("shared bottom").fit(table, runtime)
    assert {"validation_log_loss", "validation_auc", "validation_log_loss_like", "validation_auc_like"} <= set(
        record.history[0]
    )


def test_an_expert_mixture_is_a_weighted_sum_of_experts() -> None:
    mixture = MixtureOfExperts((1, 1, 2), 0.0, experts=2)
    with torch.no_grad():
        for expert, slope in zip(mixture.experts, (2.0, 5.0), strict=True):
            expert[0].weight.fill_(slope)  # type: ignore[index] # a Sequential
            expert[0].bias.zero_()  # type: ignore[index]
        mixture.gates.weight.zero_()
        mixture.gates.bias.copy_(torch.tensor([0.0, 0.0, 50.0, -50.0]))  # half of each; the first expert alone
        mixture.towers.weight.copy_(torch.tensor([[1.0], [10.0]]))
        mixture.towers.bias.copy_(torch.tensor([0.5, 0.0]))
    assert mixture(torch.tensor([[3.0]])).tolist() == [[(6 + 15) / 2 + 0.5, 10 * 6]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compile": "on"}, "compile: on is not for a network with further labels"),
        (
            {"objective": "pairwise", "calibration": "platt"},
            "objective: pairwise is not for a network with further labels",
        ),
        ({"labels": (), "sharing": "mmoe"}, "sharing: mmoe is between several labels"),
    ],
)
def test_a_network_refuses_what_heads_do_not_learn(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DLRMModel.model_validate({**SECTIONS["shared bottom"], "labels": ("like",), **changed})


def test_experts_need_a_hidden_layer(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(ValueError, match=r"sharing: mmoe makes an expert of the hidden layers .* none is declared"):
        ranker_of("mmoe", top_mlp=()).fit(table, runtime)
