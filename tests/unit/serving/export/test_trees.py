from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import xgboost as xgb

from models.xgboost.export import tree_attributes
from shortlist.contracts import ShortlistError
from shortlist.serving.export.graph_builder import ML, GraphBuilder, tensor_info
from shortlist.serving.export.program import tree_walk
from shortlist.serving.export.program.compiling import FOLDER, compile_function
from shortlist.serving.export.trees import write_trees
from shortlist.storage.artefacts import IntegrityError

WIDTH = 5
NAMES = ("columns", "tops", "thresholds", "nodes", "values", "base")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled code."""
    return tmp_path_factory.mktemp("environment")


@pytest.fixture(scope="module")
def walk(environment: Path) -> Any:
    """The compiled loops."""
    return compile_function(Path(tree_walk.__file__), "walk", environment)


def rows(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(-4, 5, (count, WIDTH)) / np.float32(8)  # few values: rows lie on thresholds
    return np.where(random.random(values.shape) < 0.2, np.nan, values).astype(np.float32)


def boosted(trees: int = 30, **params: Any) -> xgb.Booster:
    data = rows(3_000)
    signal = np.nan_to_num(data[:, 0]) - np.isnan(data[:, 1]) + np.nan_to_num(data[:, 2] * data[:, 3])
    labels = (signal + np.random.default_rng(1).normal(0, 1, len(data)) > 0.4).astype(float)
    fixed = {"objective": "binary:logistic", "min_child_weight": 0, "nthread": 1}
    return xgb.train(fixed | params, xgb.QuantileDMatrix(data, labels), trees)


def graph_of(booster: xgb.Booster, folder: Path) -> Path:
    booster.save_model(folder / "model.ubj")
    nodes = GraphBuilder()
    output = nodes.add("TreeEnsembleRegressor", "x", domain=ML, **tree_attributes(folder / "model.ubj"))
    onnx.save(
        nodes.model([tensor_info("x", np.float32, WIDTH)], [tensor_info(output, np.float32, 1)]), folder / "g.onnx"
    )
    return folder / "g.onnx"


def arrays_of(folder: Path) -> list[np.ndarray]:
    with np.load(folder / tree_walk.TREES) as file:
        return [file[name] for name in NAMES]


def walked(walk: Any, booster: xgb.Booster, folder: Path, data: np.ndarray) -> np.ndarray:
    write_trees(graph_of(booster, folder), folder)
    log_odds = np.full(len(data), np.nan, np.float32)
    walk(data, *arrays_of(folder), log_odds)
    return log_odds


@pytest.mark.parametrize(
    "params",
    [
        {"max_depth": 1}, {"max_depth": 3}, {"max_depth": 4}, {"max_depth": 9}, {"base_score": 0.03},
        {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 40}, {"learning_rate": 1.0},
        {"trees": 1, "gamma": 1e9},
    ],
    ids=str,
)  # fmt: skip
def test_walked_trees_give_xgboosts_log_odds_bit_by_bit(walk: Any, tmp_path: Path, params: dict[str, Any]) -> None:
    booster = boosted(**params)
    thresholds = np.unique(tree_attributes_of(booster, tmp_path)["nodes_values"]).astype(np.float32)
    near = np.concatenate([np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)])
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45], np.float32)
    data = [rows(700, seed=9), *(np.repeat(values[:, None], WIDTH, 1) for values in (thresholds, near, special))]
    expected = booster.inplace_predict(np.concatenate(data), predict_type="margin", validate_features=False)
    np.testing.assert_array_equal(walked(walk, booster, tmp_path, np.concatenate(data)), expected)
    assert np.unique(expected).size > 1 or "gamma" in params


def tree_attributes_of(booster: xgb.Booster, folder: Path) -> dict[str, Any]:
    booster.save_model(folder / "again.ubj")
    return tree_attributes(folder / "again.ubj")


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 300])
def test_any_number_of_rows_is_walked(walk: Any, tmp_path: Path, count: int) -> None:
    booster, data = boosted(5), rows(count, seed=3)
    log_odds = walked(walk, booster, tmp_path, data)
    assert log_odds.shape == (count,)
    if count:
        np.testing.assert_array_equal(log_odds, booster.inplace_predict(data, predict_type="margin"))


def test_the_loops_give_the_same_without_the_compiler(tmp_path: Path) -> None:
    booster, data = boosted(4, max_depth=5), rows(130, seed=4)
    expected = booster.inplace_predict(data, predict_type="margin")
    np.testing.assert_array_equal(walked(tree_walk.walk, booster, tmp_path, data), expected)


def test_missing_values_go_to_either_side(tmp_path: Path) -> None:
    write_trees(graph_of(boosted(), tmp_path), tmp_path)
    columns = arrays_of(tmp_path)[0].tolist()
    assert any(
        [feature, 1 - goes_left] in columns for feature, goes_left in columns
    )  # or the tests above would prove less


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    graph, second_folder = graph_of(boosted(), tmp_path), tmp_path / "again"
    second_folder.mkdir()
    write_trees(graph, tmp_path)
    write_trees(graph, second_folder)
    assert (tmp_path / tree_walk.TREES).read_bytes() == (second_folder / tree_walk.TREES).read_bytes()


def changed(graph: Path, **attributes: Any) -> None:
    model = onnx.load(graph)
    (node,) = model.graph.node
    for name, value in attributes.items():
        (old,) = (attribute for attribute in node.attribute if attribute.name == name)
        node.attribute.remove(old)
        node.attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(model, graph)


def test_trees_of_another_sort_are_refused(tmp_path: Path) -> None:
    graph = graph_of(boosted(3), tmp_path)
    attributes = tree_attributes(tmp_path / "model.ubj")
    changed(graph, nodes_modes=[mode.replace("_LT", "_EQ") for mode in attributes["nodes_modes"]])
    with pytest.raises(ShortlistError, match=r"trees of BRANCH_EQ, LEAF; .* Declare serving.scoring.runtime: onnxrunt"):
        write_trees(graph, tmp_path)
    changed(graph, nodes_modes=attributes["nodes_modes"], nodes_values=[-np.inf] * len(attributes["nodes_values"]))
    with pytest.raises(ShortlistError, match="with finite thresholds"):
        write_trees(graph, tmp_path)


def test_a_graph_without_trees_is_refused(tmp_path: Path) -> None:
    model = onnx.load(graph_of(boosted(3), tmp_path))
    model.graph.ClearField("node")
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(IntegrityError, match="holds 0 ensembles of trees, wanted one; export the model again"):
        write_trees(tmp_path / "g.onnx", tmp_path)
    with pytest.raises(IntegrityError, match="is no readable graph"):
        write_trees(tmp_path / "none.onnx", tmp_path)


SOURCE = "def twice(number):\n    return {factor} * number\n"


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python without bytecode files, as it runs in Triton."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def cached_files(environment: Path) -> list[Path]:
    return sorted(path for path in (environment / FOLDER).rglob("*") if path.is_file())


@pytest.mark.usefixtures("triton")
def test_compiled_code_is_cached_for_every_process_and_copy_of_the_source(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "twice.py").write_text(SOURCE.format(factor=2))
    assert compile_function(tmp_path / "1" / "twice.py", "twice", tmp_path / "environment")(4) == 8
    files = cached_files(tmp_path / "environment")
    assert {path.suffix for path in files} == {".py", ".nbi", ".nbc"}
    program = (
        "import sys; from pathlib import Path; from shortlist.serving.export.program.compiling import compile_function;"
        "twice = compile_function(Path(sys.argv[1]), 'twice', Path(sys.argv[2]));"
        "print(twice(5), sum(twice.stats.cache_hits.values()))"
    )
    command = [sys.executable, "-B", "-c", program, str(tmp_path / "2" / "twice.py"), str(tmp_path / "environment")]
    second_process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert second_process.stdout.split() == ["10", "1"]
    assert cached_files(tmp_path / "environment") == files
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["twice.py"]


@pytest.mark.usefixtures("triton")
def test_a_new_source_is_compiled_and_a_changed_copy_is_replaced(tmp_path: Path) -> None:
    source, environment = tmp_path / "twice.py", tmp_path / "environment"
    source.write_text(SOURCE.format(factor=2))
    assert compile_function(source, "twice", environment)(4) == 8
    (copy,) = (path for path in cached_files(environment) if path.suffix == ".py")
    copy.write_text(SOURCE.format(factor=5))
    assert compile_function(source, "twice", environment)(4) == 8
    source.write_text(SOURCE.format(factor=3))
    assert compile_function(source, "twice", environment)(4) == 12


@pytest.mark.usefixtures("triton")
def test_without_a_writable_folder_the_function_is_still_compiled(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(SOURCE.format(factor=2))
    (tmp_path / "environment").write_text("a file, where a folder cannot be made")
    assert compile_function(tmp_path / "twice.py", "twice", tmp_path / "environment")(4) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "twice.py"]
