from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import catboost as cb
import numpy as np
import onnxruntime
import polars as pl
import pytest

from models.catboost.conversion import convert
from models.catboost.export import add_trees
from models.catboost.lookup import Combination, Lookup
from models.catboost.oblivious_trees import ObliviousTrees
from models.catboost.ranker import CatBoostRanker
from models.catboost.section import CatBoostModel
from shortlist.contracts import ShortlistError
from shortlist.ranking import registry
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.ranker import DivergedError
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import GraphBuilder, tensor_info
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.train import train

SECTION = CatBoostModel(features=("user_id", "item_id", "age", "text"), rounds=30, depth=4, refit=False)
SIZES = {"user": 60, "item": 25, "device": 4}
FEATURES = (
    TableFeature(name="user", kind="id", size=60),
    TableFeature(name="price", kind="dense"),
    TableFeature(name="item", kind="id", size=25),
    TableFeature(name="age", kind="dense"),
    TableFeature(name="device", kind="id", size=4),
)
PARAMS: dict[str, Any] = {
    "loss_function": "Logloss", "iterations": 40, "learning_rate": 0.3, "boost_from_average": True, "random_seed": 1,
    "thread_count": 1, "logging_level": "Silent", "allow_writing_files": False,
}  # fmt: skip


def fitted(table: DayTable, runtime: Runtime, **changes: Any) -> CatBoostRanker:
    ranker = CatBoostRanker(SECTION.model_copy(update=changes))
    ranker.fit(table, runtime)
    return ranker


def rows(count: int, seed: int, share_of_ids: float = 1.0) -> pl.DataFrame:
    """Rows with the lower share of all ids; few prices, so that some lie on borders; some ages are missing."""
    random = np.random.default_rng(seed)
    ids = {name: pl.Series(random.integers(0, int(size * share_of_ids), count), dtype=pl.UInt32)
           for name, size in SIZES.items()}  # fmt: skip
    price, age = random.integers(-4, 5, count) / 8, random.normal(0, 1, count)
    age[random.random(count) < 0.1] = np.nan
    floats = {"price": pl.Series(price, dtype=pl.Float32), "age": pl.Series(age, dtype=pl.Float32)}
    return pl.DataFrame({**ids, **floats}).with_columns(pl.col("age").fill_nan(None))


class Converted(NamedTuple):
    """A model of CatBoost, and the same trees without it."""

    model: cb.CatBoost
    trees: ObliviousTrees

    def predict(self, frame: pl.DataFrame) -> np.ndarray:
        """CatBoost's own log-odds."""
        return np.asarray(self.model.predict(pool_frame(frame), prediction_type="RawFormulaVal"))


def pool_frame(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("price", "age", "user", "item", "device")


def converted(folder: Path, rarely_unknown: frozenset[str] = frozenset(), **params: Any) -> Converted:
    frame = rows(4_000, seed=0, share_of_ids=0.8)
    effects = np.random.default_rng(1).normal(0, 1.5, (60, 25))
    users, items = frame["user"].to_numpy(), frame["item"].to_numpy()
    log_odds = effects[users, items] + frame["price"].to_numpy() * 3 + frame["age"].fill_null(2).to_numpy()
    labels = np.random.default_rng(2).random(4_000) < 1 / (1 + np.exp(-log_odds))
    pool = cb.Pool(pool_frame(frame), labels.astype(int), cat_features=["user", "item", "device"])
    model = cb.CatBoost(PARAMS | params).fit(pool)
    model.save_model(str(folder / "model.json"), format="json", pool=pool)
    content = json.loads((folder / "model.json").read_text())
    return Converted(model, convert(content, FEATURES, lambda: [frame], rarely_unknown))


def graph_scores(trees: ObliviousTrees, folder: Path, frame: pl.DataFrame) -> np.ndarray:
    """Log-odds by the exported nodes."""
    trees.write(folder)
    nodes = GraphBuilder()
    graph = SimpleNamespace(
        nodes=nodes, floats=lambda names: "floats", ids=lambda names: "ids", border=lambda tensor, *_: tensor
    )
    output = add_trees(cast(FeatureGraph, graph), cast(Any, SimpleNamespace(features=FEATURES)), folder)
    inputs = [tensor_info("floats", np.float32, 2), tensor_info("ids", np.int64, 3)]
    model = nodes.model(inputs, [tensor_info(output, np.float32, 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    floats = frame.select("price", "age").fill_null(np.nan).to_numpy().astype(np.float32)
    ids = frame.select("user", "item", "device").to_numpy().astype(np.int64)
    return np.asarray(session.run(None, {"floats": floats, "ids": ids})[0][:, 0])


IN_EVERY_WAY: dict[str, dict[str, Any]] = {
    "single ids": {"max_ctr_complexity": 1},
    "pairs, and ids with comparisons": {"max_ctr_complexity": 2, "one_hot_max_size": 2},
    "pairs, and ids with values of others": {"max_ctr_complexity": 2, "one_hot_max_size": 4, "iterations": 120},
    "values of ids": {"one_hot_max_size": 200},
    "the most frequent values": {"max_ctr_complexity": 2, "ctr_leaf_count_limit": 10},
    "one leaf": {"l2_leaf_reg": 1e9, "depth": 1, "iterations": 1},
}


@pytest.mark.parametrize("params", IN_EVERY_WAY.values(), ids=IN_EVERY_WAY)
def test_scores_of_known_and_unseen_ids_equal_those_of_catboost(tmp_path: Path, params: dict[str, Any]) -> None:
    by_catboost = converted(tmp_path, **params)
    for frame in (rows(4_000, seed=0, share_of_ids=0.8), rows(9_000, seed=5)):  # the training rows; a fifth is unseen
        expected = by_catboost.predict(frame)
        np.testing.assert_allclose(by_catboost.trees.log_odds(frame, FEATURES), expected, atol=3e-6)
        np.testing.assert_allclose(graph_scores(by_catboost.trees, tmp_path, frame), expected, atol=3e-6)
    assert np.unique(expected).size > (20 if params.get("depth") != 1 else 1)


def test_scores_on_and_beside_a_border_equal_those_of_catboost(tmp_path: Path) -> None:
    by_catboost = converted(tmp_path, max_ctr_complexity=2)
    trees = by_catboost.trees
    comparisons = [border for lookup in trees.lookups for _, border in lookup.combination.comparisons]
    borders = np.unique(np.append(trees.borders[trees.columns < 2], np.array(comparisons, np.float32)))
    borders = borders[borders > -1e30]  # a smaller one splits missing from present values
    sides = (np.nextafter(borders, np.float32(side)) for side in (-np.inf, np.inf))
    values = np.concatenate([borders, *sides])
    price, age = np.repeat(values, 5), np.resize(values[::-1], 5 * len(values))
    frame = rows(len(price), seed=4).with_columns(price=pl.Series(price), age=pl.Series(age))
    expected = by_catboost.predict(frame)
    np.testing.assert_allclose(trees.log_odds(frame, FEATURES), expected, atol=3e-6)
    np.testing.assert_allclose(graph_scores(trees, tmp_path, frame), expected, atol=3e-6)


def test_every_part_of_a_combination_occurs(tmp_path: Path) -> None:
    """Otherwise the test above would not test what it says."""
    lookups = converted(tmp_path, **IN_EVERY_WAY["pairs, and ids with values of others"]).trees.lookups
    combinations = [lookup.combination for lookup in lookups]
    assert any(len(combination.ids) == 2 for combination in combinations)
    assert any(combination.comparisons for combination in combinations)
    assert any(combination.matches for combination in combinations)
    assert any(combination.is_single for combination in combinations)


def test_a_key_is_its_parts() -> None:
    combination = Combination(("user", "item"), (60, 25), (("price", 0.5),), (("device", 3),))
    columns = {"user": np.array([7, 59]), "item": np.array([3, 24]), "device": np.array([3, 0]),
               "price": np.array([0.5, np.nan], np.float32)}  # fmt: skip
    keys = combination.keys(columns)
    assert keys.tolist() == [((7 * 25 + 3) * 2 + 0) * 2 + 1, ((59 * 25 + 24) * 2 + 0) * 2 + 0]
    assert [part.tolist() for part in combination.parts(keys)] == [[7, 59], [3, 24], [0, 0], [1, 0]]


def test_a_combination_with_a_missing_part_has_no_number() -> None:
    combination = Combination(("user", "item"), (60, 25))
    values = np.array([[np.nan], [0.25], [0.5]], np.float32)
    lookup = Lookup(combination, frozenset({"item"}), np.array([-1, 7 * 25 + 3]), values)
    columns = {"user": np.array([7, 7, 7, 0]), "item": np.array([3, 4, 0, 3])}
    np.testing.assert_array_equal(lookup.columns(columns), [[0.25, 0.5, np.nan, 0.5]])


@pytest.mark.parametrize("complexity", [1, 2])
def test_rows_without_an_id_reach_the_same_leaf_in_graph_and_ranker(tmp_path: Path, complexity: int) -> None:
    rarely_unknown = frozenset({"user", "item", "price"})
    trees = converted(tmp_path, rarely_unknown, max_ctr_complexity=complexity).trees
    weights = np.random.default_rng(0).random(len(trees.leaves))
    trees = trees.with_missing_directions(frozenset({0}), 2, weights)
    assert 0 < trees.missing_is_above.sum() < len(trees.missing_is_above)
    frame = rows(2_000, seed=3).with_columns(
        pl.when(pl.int_range(pl.len()) % 3 == 0).then(0).otherwise("user").cast(pl.UInt32).alias("user"),
        pl.when(pl.int_range(pl.len()) % 5 == 0).then(None).otherwise("price").alias("price"),
    )
    scores = trees.log_odds(frame, FEATURES)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(graph_scores(trees, tmp_path, frame), scores, atol=3e-6)


def test_it_learns_and_is_the_same_again_for_any_number_of_threads(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        ranker = fitted(table, runtime)
        scores.append(ranker.predict(test_rows))
    np.testing.assert_array_equal(scores[0], scores[1])
    best = ranker.record.history[(ranker.record.rounds or 0) - 1]
    assert best["validation_auc"] and best["validation_auc"] > 0.75
    assert {"round", "train_log_loss", "validation_log_loss"} <= best.keys()
    assert sum(ranker.record.importance.values()) == pytest.approx(1)
    assert set(ranker.record.importance) == {"user_id", "item_id", "age", "text"}


def test_it_stops_early_and_keeps_the_best_trees(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    greedy = fitted(table, runtime, rounds=200, learning_rate=0.8, early_stopping_rounds=5)
    assert greedy.record.rounds == len(greedy.record.history) - 5
    greedy.save(tmp_path / "model")
    assert len(CatBoostRanker.load(tmp_path / "model")._trees.depths) == greedy.record.rounds


@pytest.mark.parametrize("complexity", [1, 2])
def test_a_saved_model_gives_the_same_scores_without_catboost(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    complexity: int,
) -> None:  # fmt: skip
    ranker = fitted(table, runtime, refit=True, max_ctr_complexity=complexity)
    ranker.save(tmp_path / "model")
    monkeypatch.setitem(__import__("sys").modules, "catboost", None)  # cannot be imported any more
    np.testing.assert_array_equal(CatBoostRanker.load(tmp_path / "model").predict(test_rows), ranker.predict(test_rows))


def test_lists_are_refused(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(ShortlistError, match=r"models.catboost.features: tags_id: trees cannot read lists of ids"):
        fitted(table, runtime, features=("*",))


def test_rows_beyond_the_memory_budget_are_refused(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(ShortlistError, match=r"models.catboost: 4,500 rows of 4 numbers and 2 ids take about 1 MiB"):
        fitted(table, runtime.model_copy(update={"memory_budget_mib": 0}))


def test_features_that_never_vary_are_refused(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    writer = DayTableWriter(tmp_path / "constant", "table.json", 1_000)
    for _, frame in table.frames():
        writer.append(frame.with_columns(pl.lit(1.0, pl.Float32).alias("age")))
    constant = writer.close(table.notes)
    with pytest.raises(DivergedError, match="CatBoost cannot learn from these rows: All features are either constant"):
        fitted(constant, runtime, features=("age",))


@pytest.fixture
def without_catboost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_catboost")
def test_a_training_without_the_package_names_the_command(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(
        ShortlistError,
        match=r"^models.categories: kind catboost needs the package catboost, which is not installed; install it by"
        r" make setup-catboost$",
    ):
        train("catboost", SECTION, table, runtime, tmp_path / "model", tmp_path / "scores", name="categories")
    assert not (tmp_path / "model").exists()


def test_other_kinds_need_no_package() -> None:
    for kind in registry.known_kinds():
        assert dict(registry.kind_of(kind).packages) == (
            {"catboost": "make setup-catboost"} if kind == "catboost" else {}
        )
