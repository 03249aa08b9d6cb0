"""XGBoost on the GPU against the CPU of the same machine: the same table, in memory and out of core.

What is timed is `XGBoostRanker.fit` as a run calls it: reading, binning, boosting and scoring the validation days.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.bench import Line
from benchmarks.gpu.published import published, write_table
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.timing import wall_s
from models.xgboost.device import xgboost_device
from models.xgboost.section import XGBoostModel
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.query_engine import EngineError

TITLE: Final = "XGBoost, rows x trees per second"
TREES: Final = 50
TOLERANCE: Final = 2e-3
"""Of the AUC: histograms summed in another order split now and then elsewhere."""


class _Fitted(NamedTuple):
    auc: float
    seconds: float


def run(setting: Setting) -> Findings:
    """Compare; the CPU's figures are taken on the same machine, in the same run."""
    findings = Findings(setting)
    if find_spec("xgboost") is None:
        findings.notes.append("xgboost: not installed; requirements/gpu.txt installs it")
        return findings
    if setting.on_gpu:
        try:
            xgboost_device("gpu")
        except EngineError as error:
            findings.notes.append(f"gpu: not run: {error}")
            return findings
    train, validation = setting.pick((2_000_000, 400_000), (60_000, 20_000))
    with TemporaryDirectory() as scratch:
        table = write_table(Path(scratch) / "table", published(setting), train, validation, setting.device, 250_000)
        for place, budget in (("in memory", 16_384), ("out of core", setting.pick(64, 1))):
            _compare(findings, table, place, budget, train)
    return findings


def _compare(findings: Findings, table: DayTable, place: str, budget_mib: int, rows: int) -> None:
    setting = findings.setting
    with findings.attempt(f"cpu, {place}"):
        cpu = _fit(table, "cpu", budget_mib, setting)
        findings.lines.append(_line(f"cpu, {place}", rows, cpu, cpu, setting))
        if findings.needs_cuda(f"gpu, {place}"):
            return
        with findings.attempt(f"gpu, {place}"):
            gpu = _fit(table, "gpu", budget_mib, setting)
            off = abs(gpu.auc - cpu.auc)
            findings.expect(f"{place}: AUC {gpu.auc:.5f}, cpu {cpu.auc:.5f}", off <= TOLERANCE, f"{off:.1e} apart")
            findings.lines.append(_line(f"gpu, {place}", rows, gpu, cpu, setting))


def _fit(table: DayTable, engine: str, budget_mib: int, setting: Setting) -> _Fitted:
    from models.xgboost.ranker import XGBoostRanker

    trees = setting.pick(TREES, 5)
    section = XGBoostModel(features=("*",), rounds=trees, early_stopping_rounds=trees)
    # A toy table exceeds no budget that may be declared.
    runtime = Runtime.model_validate({"engine": engine}).model_copy(update={"memory_budget_mib": budget_mib})
    ranker = XGBoostRanker(section)
    records: list[Any] = []
    seconds = wall_s(lambda: records.append(ranker.fit(table, runtime)), setting)
    aucs = [line["validation_auc"] for line in records[0].history if "validation_auc" in line]
    return _Fitted(aucs[-1], seconds)


def _line(name: str, rows: int, fitted: _Fitted, cpu: _Fitted, setting: Setting) -> Line:
    rate = rows * setting.pick(TREES, 5) / fitted.seconds
    return Line("xgboost", name, round(rate), "rows x trees/s", "the CPU", round(cpu.seconds / fitted.seconds, 3))
