"""The validation of an export on a real Triton, and the faults that it must detect."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest

from shortlist.contracts import Files, NotMeasuredError
from shortlist.evaluation.gates.export_gates import infra_gate, parity_gate
from shortlist.evaluation.gates.export_validation import ExportValidation
from shortlist.evaluation.gates.gate_inputs import read_record
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.serving.export.graph_split import NETWORK_FILE
from shortlist.serving.export.program.tree_walk import TREES
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, Signature
from shortlist.serving.processes.errors import EndedEarlyError
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.triton.triton import RunningTriton, running_triton
from shortlist.serving.validation import parity as parity_module
from shortlist.serving.validation import validate_export
from shortlist.spec.gates import Gates, Infra
from shortlist.spec.serving import Batching, Scoring, Serving
from shortlist.storage.artefacts import folder_digest

Judge = Callable[..., tuple[GateResult, GateResult]]
Spoil = Callable[[Callable[[Path], None]], None]


@pytest.fixture
def judged(trained: Any, limits: Gates, tmp_path: Path) -> Judge:
    """Return a function that validates a model's export and returns the messages of both gates."""

    def judge(model: Path | None = None, **changed: Any) -> tuple[GateResult, GateResult]:
        model = model or trained.model
        paths = changed.get("scores", trained.scores), trained.log, trained.fitted
        declared = changed.get("limits", limits)
        validate_export.validate_export(
            model, *paths, declared, changed.get("serving", Serving()), 17, tmp_path / "validation"
        )
        validation, digest = (
            read_record(ExportValidation, tmp_path / "validation" / Files.EXPORT_VALIDATION),
            folder_digest(model),
        )
        return parity_gate(validation, digest, 0, declared), infra_gate(validation, digest, declared.infra)

    return judge


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Return a function after whose call every written repository is broken."""

    def install(spoil_folder: Callable[[Path], None]) -> None:
        def write(serving: Path, version: int, batching: Batching, out: Path, scoring: Scoring) -> None:
            write_repository(serving, version, batching, out, scoring=scoring)
            spoil_folder(out / "demo" / str(version))

        monkeypatch.setattr(validate_export, "write_repository", write)

    return install


def replace_program(execute: str, initialize: str = "super().initialize(args)") -> Callable[[Path], None]:
    """Return a function that breaks a repository: its `model.py` acts differently at a request, or when it loads."""
    spoiled = f"""

class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        {execute}
"""

    def change(folder: Path) -> None:
        with (folder / "model.py").open("a") as file:
            file.write(spoiled)

    return change


def change_graph(folder: Path, change: Callable[[onnx.ModelProto], None], name: str = MODEL_FILE) -> None:
    path = folder / name
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def add_to_logits(model: onnx.ModelProto, constant: float = 0.01) -> None:
    sigmoid = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(constant, np.float32), "wrong"))
    added = onnx.helper.make_node("Add", [sigmoid.input[0], "wrong"], ["wrong_logits"])
    sigmoid.input[0] = "wrong_logits"
    model.graph.node.insert(list(model.graph.node).index(sigmoid), added)


def shift_vocabularies(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "LabelEncoder" and attribute.name == "values_int64s":
                shifted = np.roll(list(attribute.ints), 1).tolist()
                del attribute.ints[:]
                attribute.ints.extend(shifted)


def test_a_good_model_passes_both_gates(judged: Judge, tmp_path: Path) -> None:
    parity, infra = judged()
    assert parity.passed, parity.message
    assert infra.passed, infra.message
    assert re.fullmatch(
        r"400 test rows score the same: the exported file within \S+, Triton within \S+, no pair in another order",
        parity.reason,
    )
    assert [path.name for path in (tmp_path / "validation").iterdir()] == [Files.EXPORT_VALIDATION]


def test_a_larger_sample_than_the_test_rows_takes_all_rows(judged: Judge, trained: Any, limits: Gates) -> None:
    parity, _ = judged(limits=limits.model_copy(update={"parity_rows": 1_000_000}))
    test_rows = pl.read_parquet(trained.scores / Files.SCORES).filter(pl.col("split") == "test").height
    assert parity.passed, parity.message
    assert parity.numbers["triton"]["rows"] == test_rows > 400


def test_a_model_that_was_not_declared_leaves_an_empty_folder(trained: Any, limits: Gates, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    paths = tmp_path / "model", tmp_path / "scores", trained.log, trained.fitted
    assert validate_export.validate_export(*paths, limits, Serving(), 17, tmp_path / "validation") is None
    assert list((tmp_path / "validation").iterdir()) == []


WHOLE = Serving(scoring=Scoring(runtime="onnxruntime"))


def test_a_wrong_constant_in_the_graph_is_detected_by_both_comparisons(
    judged: Judge, copied: Callable[[], Path]
) -> None:
    model = copied()
    change_graph(model / FOLDER, add_to_logits)
    parity, infra = judged(model, serving=WHOLE)
    assert re.match(
        r"the exported file: scores differ by up to 2\.\de-03 > 1e-05 \(max_score_difference\)", parity.reason
    )
    assert "Triton: scores differ by up to 2." in parity.reason
    assert "inputs are equal" in parity.reason
    assert infra.passed  # it is as fast as before


def test_a_shifted_vocabulary_is_detected_by_difference_and_by_order(judged: Judge, copied: Callable[[], Path]) -> None:
    model = copied()
    change_graph(model / FOLDER, shift_vocabularies)
    parity, _ = judged(model)
    assert re.search(r"Triton: scores differ by up to \S+ > 1e-05", parity.reason)
    assert re.search(r"Triton: [\d ]+ pairs of rows are in another order", parity.reason)


def test_inputs_that_differ_in_serving_are_named(judged: Judge, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DayAssembler.tensors

    def dishonest(self: DayAssembler, *rows: Any) -> dict[str, Any]:
        tensors = dict(honest(self, *rows))
        return tensors | {"numbers": tensors["numbers"] * 2}

    monkeypatch.setattr(DayAssembler, "tensors", dishonest)
    parity, _ = judged()
    named = parity.numbers["triton"]["worst"]["inputs"]
    assert "duration" in named
    assert set(named) <= set(Signature.read(trained.model / FOLDER).numbers)  # and no code
    assert f"inputs {', '.join(named)} differ" in parity.reason


def test_another_models_file_in_the_repository_is_detected(judged: Judge, spoil: Spoil) -> None:
    spoil(lambda folder: change_graph(folder, add_to_logits))
    parity, _ = judged(serving=WHOLE)
    assert parity.reason.startswith("Triton: scores differ by up to")


def test_trees_of_another_graph_are_detected(judged: Judge, spoil: Spoil) -> None:
    def forget_the_last_tree(folder: Path) -> None:
        with np.load(folder / TREES) as file:
            arrays = dict(file)
        np.savez(folder / TREES, **arrays | {"tops": arrays["tops"][:-1]})

    spoil(forget_the_last_tree)
    parity, _ = judged()
    assert parity.reason.startswith("Triton: scores differ by up to")


def test_a_network_passes_both_gates(judged: Judge, trained: Any) -> None:
    parity, infra = judged(trained.network(), scores=trained.root / "dlrm_scores")
    assert parity.passed, parity.message
    assert infra.passed, infra.message
    assert parity.numbers["triton"]["auc_difference"] <= 1e-6


def test_a_network_that_may_use_bf16_is_judged_by_auc(judged: Judge, trained: Any) -> None:
    serving = Serving(scoring=Scoring(precision="auto"))
    parity, infra = judged(trained.network(), scores=trained.root / "dlrm_scores", serving=serving)
    triton_parity = parity.numbers["triton"]
    assert triton_parity["max_difference"] < 0.02
    assert parity.passed == (triton_parity["auc_difference"] <= 1e-4), (
        parity.message
    )  # 400 rows may show more than 1e-4
    assert re.search(r"AUC (within|differs by) \S+", parity.reason)
    assert infra.passed, infra.message


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_runtime_that_computes_something_else_holds(
    judged: Judge, trained: Any, spoil: Spoil, precision: str
) -> None:
    def negate(network: onnx.ModelProto) -> None:
        relu = next(node for node in network.graph.node if node.op_type == "Relu")
        relu.op_type = "Neg"

    spoil(lambda folder: change_graph(folder, negate, NETWORK_FILE))
    serving = Serving(scoring=Scoring.model_validate({"precision": precision}))
    parity, _ = judged(trained.network(), scores=trained.root / "dlrm_scores", serving=serving)
    assert not parity.passed
    furthest = {"fp32": r"1e-05 \(max_score_difference\)", "auto": r"2e-02 \(bf16\)"}[precision]
    assert re.match(rf"Triton: scores differ by up to \S+ > {furthest}", parity.reason)


def test_scores_that_are_not_numbers_hold_both_gates(judged: Judge, spoil: Spoil) -> None:
    spoil(
        replace_program(
            "return [_response(np.full((len(one.inputs()[0].as_numpy()), 1), np.nan, 'f4')) for one in requests]"
        )
    )
    parity, infra = judged()
    assert "Triton: 400 of 400 scores are NaN or infinite" in parity.reason
    assert "20 of 20 requests failed" in infra.reason


def test_a_slow_server_fails_validation(judged: Judge, spoil: Spoil, limits: Gates) -> None:
    spoil(replace_program("import time; time.sleep(0.2); return super().execute(requests)"))
    quick = Infra(**{**limits.infra.model_dump(), "max_p50_ms": 50, "max_p99_ms": 190})
    parity, infra = judged(limits=limits.model_copy(update={"infra": quick}))
    assert parity.passed
    assert re.match(r"p50 \d+\S* ms > 50 ms \(max_p50_ms\); p99 \S+ ms > 190 ms \(max_p99_ms\)", infra.reason)


def test_a_model_that_triton_cannot_load_holds_prints_the_last_log_lines_and_is_remeasured(
    judged: Judge, spoil: Spoil, tmp_path: Path
) -> None:
    spoil(replace_program("pass", initialize="raise ValueError('no such luck')"))
    parity, infra = judged()
    assert not parity.passed
    assert "no such luck" in infra.reason
    assert json.loads((tmp_path / "validation" / Files.EXPORT_VALIDATION).read_text())["depends_on_moment"]


def test_a_triton_that_ends_once_before_it_is_ready_is_restarted(
    judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    @contextmanager
    def end_first(*arguments: Any, **options: Any) -> Iterator[RunningTriton]:
        starts.append(arguments)
        if len(starts) == 1:
            raise EndedEarlyError("Triton ended with code -9 before it was ready")
        with running_triton(*arguments, **options) as triton:
            yield triton

    monkeypatch.setattr(validate_export, "running_triton", end_first)
    parity, infra = judged()
    assert (parity.passed, infra.passed, len(starts)) == (True, True, 2)


@pytest.mark.parametrize(
    ("measurement", "is_backend"), [("score_on_triton", False), ("run_load_test", False), ("run_load_test", True)]
)
def test_a_triton_that_is_killed_during_the_validation_gives_no_measurement(
    judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurement: str, is_backend: bool
) -> None:
    started: list[RunningTriton] = []
    measure = getattr(validate_export, measurement)

    @contextmanager
    def recorded(*arguments: Any, **options: Any) -> Iterator[RunningTriton]:
        with running_triton(*arguments, **options) as triton:
            started.append(triton)
            yield triton

    def kill_and_measure(*arguments: Any) -> Any:
        (backend,) = started[0].backends
        death = (os.kill, (backend, signal.SIGKILL)) if is_backend else (os.killpg, (started[0].pid, signal.SIGKILL))
        kill = Timer(0.1 if measurement == "run_load_test" else 0, *death)
        kill.start()
        if measurement == "score_on_triton":
            kill.join()
        return measure(*arguments)

    monkeypatch.setattr(validate_export, "running_triton", recorded)
    monkeypatch.setattr(validate_export, measurement, kill_and_measure)
    with pytest.raises(
        NotMeasuredError, match=r"^gates 'parity' and 'infra' are not measured: Triton \(pid \d+\) died"
    ):
        judged()
    assert not (tmp_path / "validation").exists()
    monkeypatch.undo()
    assert all(gate.passed for gate in judged())


@pytest.mark.parametrize("function", ["write_repository", "score_exported"])
def test_a_full_disk_gives_no_measurement(
    judged: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if function == "write_repository":
        monkeypatch.setattr(validate_export, function, full)
    else:
        monkeypatch.setattr(parity_module, "create_session", full)
    with pytest.raises(NotMeasuredError, match=r"not measured: .*No space left on device"):
        judged()
    assert not (tmp_path / "validation").exists()


def test_a_model_that_dies_at_the_first_request_fails(judged: Judge, spoil: Spoil) -> None:
    spoil(replace_program("import os; os._exit(1)"))
    parity, infra = judged()
    assert not parity.passed
    assert not infra.passed


def test_a_server_that_uses_too_much_memory_fails(judged: Judge, limits: Gates) -> None:
    tight = Infra(**{**limits.infra.model_dump(), "max_memory_mib": 1})
    _, infra = judged(limits=limits.model_copy(update={"infra": tight}))
    assert re.search(r"memory \S+ MiB > 1 MiB \(max_memory_mib\)", infra.reason)


def test_a_server_that_is_not_ready_in_twice_the_cold_start_limit_gives_no_measurement(
    judged: Judge, limits: Gates
) -> None:
    tight = Infra(**{**limits.infra.model_dump(), "max_cold_start_seconds": 0.01})
    with pytest.raises(NotMeasuredError, match=r"Triton was not ready within 0\.02 s"):
        judged(limits=limits.model_copy(update={"infra": tight}))


def test_a_file_that_does_not_run_holds(judged: Judge, copied: Callable[[], Path]) -> None:
    model = copied()
    (model / FOLDER / MODEL_FILE).write_bytes(b"not a graph")
    parity, infra = judged(model)
    assert not parity.passed
    assert not infra.passed


def test_a_model_that_was_not_exported_holds(judged: Judge, copied: Callable[[], Path]) -> None:
    model = copied()
    shutil.rmtree(model / FOLDER)
    parity, infra = judged(model)
    assert "nothing to compare: " in parity.reason
    assert parity.reason == infra.reason


def test_scores_of_another_log_hold(judged: Judge, trained: Any, tmp_path: Path) -> None:
    other_scores = pl.read_parquet(trained.scores / Files.SCORES).with_columns(pl.col("impression_id") + 1_000_000)
    (tmp_path / "scores").mkdir()
    other_scores.write_parquet(tmp_path / "scores" / Files.SCORES)
    parity, _ = judged(scores=tmp_path / "scores")
    assert "holds 0 of the 400 rows that training scored; these scores are of another log" in parity.reason


def test_missing_scores_hold(judged: Judge, tmp_path: Path) -> None:
    parity, _ = judged(scores=tmp_path)
    assert "scores.parquet is missing" in parity.reason
