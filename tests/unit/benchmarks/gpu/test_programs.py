"""The GPU benchmarks at toy size on the CPU: every program runs to its end, and its checks stop what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import benchmarks.gpu.__main__ as entry
from benchmarks.gpu import cached, features, inference, loading, machine, roofs, training, variants
from benchmarks.gpu.published import CARDINALITIES, drawn_batch, published
from benchmarks.gpu.setting import Findings, Setting
from models.embedding.table.cached_embeddings import CachedTable
from shortlist.contracts import Files
from shortlist.planning.plan import FLOAT, PUBLISHED, training_bytes, training_flops
from shortlist.storage.tables import DayTable, DayTableWriter

pytestmark = pytest.mark.long

TOY = Setting("cpu", small=True)
FULL = Setting("cuda", small=False)
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", entry.PROGRAMS)
def test_every_program_runs_at_toy_size_and_passes_its_own_checks(name: str) -> None:
    findings = import_module(f"benchmarks.gpu.{name}").run(TOY)
    assert findings.failed == []
    assert {line.work for line in findings.lines} >= {name}
    assert all(np.isfinite(line.value) and line.value >= 0 for line in findings.lines)
    if name not in ("width", "cached"):  # these have nothing that only a GPU does
        assert any(note.endswith("needs CUDA") for note in findings.notes)


def test_a_variant_that_learns_something_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = variants.learnt

    def wrong(world: Any, section: Any, options: Any, batches: Any) -> variants.Learnt:
        learnt = right(world, section, options, batches)
        return learnt._replace(moved=-learnt.moved) if options.fixed_shapes else learnt

    monkeypatch.setattr(training, "learnt", wrong)
    failed = training.run(TOY).failed
    variants_of_the_step = ("bf16, eager", "fp32, eager", "bf16, widths not padded")
    assert [said.partition(":")[0] for said in failed] == [f"{one} as eager fp32" for one in variants_of_the_step]
    assert "moved rows 2.0e+00" in failed[1]


def test_a_cache_that_loses_what_a_row_learnt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CachedTable.prepare

    def wrong(self: CachedTable, lookups: Any) -> Any:
        self._moved_C[:] = False
        return right(self, lookups)

    monkeypatch.setattr(CachedTable, "prepare", wrong)
    failed = cached.run(TOY).failed
    assert len(failed) == len(cached.SHARES)  # of a full cache, too: what it learnt is not in the weights that are kept
    assert all("as all on the device" in said for said in failed)


def test_other_scores_than_eager_float32s_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = inference.Scorer.__call__
    monkeypatch.setattr(
        inference.Scorer, "__call__", lambda self, batch: right(self, batch) + 0.1 * len(batch.labels_B)
    )
    monkeypatch.setattr(inference, "TOLERANCE", dict.fromkeys(inference.TOLERANCE, 1e-9))
    assert any("bf16, eager, scores" in said for said in inference.run(TOY).failed)


def test_a_feature_that_the_gpu_makes_otherwise_is_named(tmp_path: Path) -> None:
    def table(folder: Path, number: float) -> Path:
        rows = {"label": [0, 1], "day": [pl.date(2026, 1, 5)] * 2, "impression_id": [2, 1], "I1": [0.5, number]}
        frame = pl.select(**{name: pl.lit(pl.Series(values)) for name, values in rows.items() if name != "day"})
        writer = DayTableWriter(folder, Files.TABLE, 10)
        writer.append(frame.with_columns(day=pl.date(2026, 1, 5)))
        writer.close()
        return folder

    same, other = table(tmp_path / "a", 1.0), table(tmp_path / "b", 1.001)
    assert features._difference(same, table(tmp_path / "c", 1.0 + 1e-9)) is None
    assert features._difference(same, other) == "column I1 differs"
    assert DayTable.open(same, Files.TABLE).rows == 2


def test_a_program_that_breaks_is_reported_and_stops_no_other_program(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(roofs, "run", lambda setting: 1 / 0)
    assert entry.main(["roofs", "parity", "--device", "cpu", "--small"]) == 1
    said = capsys.readouterr().out
    assert "FAILED roofs: the program: ZeroDivisionError: division by zero" in said
    assert "AUC, cpu, bf16" in said


def test_without_a_gpu_there_is_one_sentence_and_exit_code_2(capsys: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert entry.main([]) == 2
    assert capsys.readouterr().err == f"{machine.NO_GPU}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["rofs"], "no program 'rofs'; there are roofs, training,"),
        (["roofs", "--device", "cpu"], "--device cpu runs at toy size alone: add --small"),
    ],
)
def test_programs_that_cannot_run_are_reported(given: list[str], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        entry.main(given)
    assert said in capsys.readouterr().err


def test_toy_figures_are_never_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(entry, "RESULTS", tmp_path / "gpu.json")
    assert entry.main(["roofs", "--device", "cpu", "--small"]) == 0
    assert not list(tmp_path.iterdir())


def test_a_program_that_never_ends_is_ended_and_counts_as_failed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def run(command: list[str], timeout: float, **how: Any) -> subprocess.CompletedProcess[bytes]:
        if command[-1] == "roofs":
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(entry.subprocess, "run", run)
    assert entry.main(["roofs", "training"]) == 1
    assert f"FAILED roofs: not done after {entry.LIMIT_S} s" in capsys.readouterr().err
    assert entry.main(["training", "parity"]) == 0


def test_an_h200_that_is_too_slow_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "device_name", lambda setting: "H200")
    findings = Findings(FULL)
    findings.lines.append(training.Line("training", "bf16, graphs", 11_900_000, "samples/s"))
    training._judge(findings)
    assert findings.failed == ["fastest variant: 11.90 M samples/s of 12 M"]
    findings.lines.append(training.Line("training", "bf16, compiled, graphs", 12_100_000, "samples/s"))
    training._judge(findings)
    assert findings.notes == ["fastest variant: 12.10 M samples/s of 12 M"]


def test_the_full_size_is_the_published_configuration() -> None:
    made = published(FULL)
    assert made.shape.top == (479, 1_024, 1_024, 512, 256, 1)
    assert (training_bytes(made.shape), training_flops(made.shape)) == (
        training_bytes(PUBLISHED), training_flops(PUBLISHED),
    )  # fmt: skip
    assert made.layout.rows * made.section.embedding_dim * FLOAT / 2**30 == pytest.approx(15.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "known"),
    [("H200", "H200"), ("A100-SXM4-80GB", "A100-80"), ("A100-SXM4-40GB", ""), ("L40S", ""), ("H200 MIG 1g.18gb", "")],
)
def test_a_gpu_is_held_against_its_own_data_sheet_alone(name: str, known: str) -> None:
    assert roofs.known_device(f"NVIDIA {name}") == known


def test_shares_of_roofs_are_rates_times_costs() -> None:
    found = roofs.Roofs(copied=4e12, rows=2e12, flops={"bf16": 600e12})
    shares = found.shares(15e6, PUBLISHED, "bf16")
    # 53 kB and 14.8 MFLOP a sample.
    assert shares == {
        "memory": round(15e6 * 53_456 / 2e12, 3),
        "compute": pytest.approx(15e6 * 14.8e6 / 600e12, abs=5e-3),
    }


def test_generated_ids_follow_zipf_and_lie_anywhere() -> None:
    made = published(FULL)
    batch = drawn_batch(made, 4_096, torch.Generator().manual_seed(1))
    ids = batch.lookups.rows_L.view(4_096, 26).long() - torch.tensor(made.layout.starts)
    assert (ids >= 0).all()
    assert (ids < torch.tensor(CARDINALITIES)).all()
    values, counts = ids[:, 0].unique(return_counts=True)
    # The most frequent of 7.9 M ids: 1 / sum of k^-1.05, about one in twelve.
    assert 0.05 < counts.max() / 4_096 < 0.12
    assert values.double().mean() / CARDINALITIES[0] == pytest.approx(0.5, abs=0.05)
    assert len(drawn_batch(made, 4_096, torch.Generator().manual_seed(1)).labels_B.unique()) == 2


def test_a_gpu_is_named_with_its_driver(monkeypatch: pytest.MonkeyPatch, machine: Any) -> None:
    machine({}, driver="580.159.04")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    from benchmarks.gpu.machine import gpu_hardware

    assert gpu_hardware().startswith(f"NVIDIA H200, driver 580.159.04, torch {torch.__version__}, CUDA")
    machine(fails="LibraryNotFound")
    assert "driver unknown" in gpu_hardware()


def test_programs_of_a_lent_machine_import_little() -> None:
    names = [f"benchmarks.gpu.{name}" for name in ("roofs", "training", "inference", "width", "cached", "parity")]
    code = (
        f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\n"
        "print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"kfp", "mlflow", "feast", "evidently", "xgboost", "duckdb", "pandas", "onnxruntime", "kubernetes"}
    assert not heavy & set(ran.stdout.split())


def test_a_store_that_gives_rows_in_another_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = loading.DeviceStore.pool
    monkeypatch.setattr(
        loading.DeviceStore, "pool", lambda self, on, paths, order: right(self, on, paths, np.roll(order, 1))
    )
    failed = loading.run(TOY).failed
    assert len(failed) == 3
    assert all(said.endswith("the host's batches: batch 0 differs") for said in failed)


def test_a_lease_is_not_overrun() -> None:
    findings = Findings(TOY)
    assert not findings.out_of_time("bf16, graphs")
    findings._until = 0.0
    assert findings.out_of_time("bf16, compiled")
    assert findings.notes == ["bf16, compiled: not run, 110 s are over"]
