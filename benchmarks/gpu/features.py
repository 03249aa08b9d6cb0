"""Feature rows per second with `runtime.engine: gpu` against `cpu`: the same spec, log and machine, the same results.

The spec is that of `benchmarks.feature_steps`. Both engines' tables are compared value by value first; what cuDF left
to the CPU is printed by operation.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import polars as pl

from benchmarks.bench import Line
from benchmarks.gpu.roofs import device_name
from benchmarks.gpu.setting import Findings, Setting
from benchmarks.gpu.timing import wall_s
from shortlist.contracts import Files
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.system.execution import EXECUTION
from shortlist.system.query_engine import Engine, EngineError, prepare_engine, resolve_engine

TITLE: Final = "Features, rows per second"
MUST_REACH: Final = 10.0
"""Times the CPU engine of the same machine, on one H200."""
_FLOAT_TOLERANCE: Final = 1e-6


class _FeatureTimes(NamedTuple):
    """Seconds of the steps."""

    read_s: float
    """Ingest and validate."""
    made_s: float
    """Fit and table: what a feature engine is asked for."""

    @property
    def all_s(self) -> float:
        return self.read_s + self.made_s


def run(setting: Setting) -> Findings:
    """Make the features with both engines, compare, and time."""
    from benchmarks.criteo import write_tsv

    findings = Findings(setting)
    if setting.on_gpu:
        try:
            resolve_engine("gpu")
        except EngineError as error:
            findings.notes.append(f"gpu: not run: {error}")
            return findings
    rows = setting.pick(2_000_000, 20_000)
    with TemporaryDirectory(prefix="shortlist-bench-") as folder, findings.attempt("cpu"):
        scratch = Path(folder)
        write_tsv(scratch / "log.tsv", rows)
        cpu = _timed(scratch, _spec(setting, "cpu"), findings)
        findings.lines += _lines("cpu", rows, cpu, cpu)
        if findings.needs_cuda("gpu"):
            return findings
        with findings.attempt("gpu"):
            gpu = _timed(scratch, _spec(setting, "gpu"), findings)
            compared = _difference(scratch / "cpu" / "table", scratch / "gpu" / "table")
            findings.expect("gpu's table as cpu's", compared is None, compared or f"{rows:,} rows equal")
            findings.lines += _lines("gpu", rows, gpu, cpu)
            _judge(findings, cpu.made_s / gpu.made_s)
    return findings


def _spec(setting: Setting, engine: Engine) -> Spec:
    from benchmarks.feature_steps import spec

    declared = spec()
    changes = {"engine": engine, "chunk_rows": setting.pick(1_000_000, 5_000)}
    return declared.model_copy(update={"runtime": declared.runtime.model_copy(update=changes)})


def _timed(scratch: Path, spec: Spec, findings: Findings) -> _FeatureTimes:
    """Return the medians; note what was left to the CPU."""
    setting, engine = findings.setting, spec.runtime.engine
    prepare_engine(engine, spec.runtime.gpu)
    try:
        times = [_run_features(scratch / "log.tsv", scratch / engine, spec, setting) for _ in range(setting.pick(3, 1))]
        record = EXECUTION.record() or {}
    finally:
        EXECUTION.clear()
    if engine == "gpu":
        operations_on_cpu = ", ".join(f"{name}: {times}" for name, times in record["on_cpu"].items()) or "nothing"
        findings.notes.append(f"gpu: {record['queries']} queries on the GPU; left to the CPU: {operations_on_cpu}")
    return _FeatureTimes(*(median(column) for column in zip(*times[-2:], strict=True)))  # the first one warms up


def _run_features(log: Path, out: Path, spec: Spec, setting: Setting) -> _FeatureTimes:
    from shortlist.data.ingest import ingest
    from shortlist.data.validate import validate
    from shortlist.features.fits.fit import fit
    from shortlist.features.rows.table import build_table

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    data_section, features, gates, runtime = spec.data, spec.features, spec.gates, spec.runtime

    def read() -> None:
        ingest(data_section, log, out / "raw", runtime)
        validate(data_section, out / "raw", out / "log", out / "quarantine", runtime, datetime.now(UTC))

    def make() -> None:
        fit(data_section, features, gates, runtime, out / "log", out / "fitted")
        build_table(data_section, features, gates, runtime, out / "log", out / "fitted", out / "table")

    return _FeatureTimes(wall_s(read, setting), wall_s(make, setting))


def _difference(cpu: Path, gpu: Path) -> str | None:
    """Return in which column two tables differ, and by how much; None when they are equal."""
    cpu_table, gpu_table = (
        DayTable.open(folder, Files.TABLE).scan().collect().sort("impression_id") for folder in (cpu, gpu)
    )
    if cpu_table.shape != gpu_table.shape or cpu_table.schema != gpu_table.schema:
        return f"{cpu_table.shape} and {gpu_table.shape}, {cpu_table.schema} and {gpu_table.schema}"
    for name, dtype in cpu_table.schema.items():
        same = _same_floats if dtype.is_float() else pl.Series.equals
        if not same(cpu_table[name], gpu_table[name]):
            return f"column {name} differs"
    return None


def _same_floats(left_column: pl.Series, right_column: pl.Series) -> bool:
    if not left_column.is_null().equals(right_column.is_null()):
        return False
    return bool(
        ((left_column - right_column).abs() <= _FLOAT_TOLERANCE * left_column.abs().clip(1.0)).drop_nulls().all()
    )


def _lines(engine: str, rows: int, times: _FeatureTimes, cpu: _FeatureTimes) -> list[Line]:
    parts: dict[str, Callable[[_FeatureTimes], float]] = {
        "fit and table": lambda t: t.made_s,
        "all steps": lambda t: t.all_s,
    }
    return [
        Line(
            "features", f"{engine}, {part}", round(rows / of(times)), "rows/s", "engine: cpu, same machine",
            round(of(cpu) / of(times), 3),
        )
        for part, of in parts.items()
    ]  # fmt: skip


def _judge(findings: Findings, times: float) -> None:
    """Fail when the GPU is not as much faster as one H200 must be."""
    if device_name(findings.setting) == "H200" and not findings.setting.small:
        findings.expect("gpu against cpu", times >= MUST_REACH, f"{times:.1f} times, of {MUST_REACH:.0f}")
