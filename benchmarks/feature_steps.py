"""A Criteo-layout log's features as a program of its own: `python -m benchmarks.feature_steps LOG OUT`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.tracking.steps import step

ROOT = Path(__file__).parents[1]


def spec() -> Spec:
    """Return the Criteo spec with what a DLRM reads; exact copies of rows, which a small log can have, may stay few."""
    raw = yaml.safe_load((ROOT / "pipelines/specs/criteo.yaml").read_text())
    raw["features"]["columns"] = [
        column for column in raw["features"]["columns"] if column["kind"] in ("numeric", "vocabulary")
    ]
    raw["models"] = {"dlrm": raw["models"]["dlrm"]}
    return parse_spec(yaml.safe_dump(raw))


STEPS: Final = ("ingest", "validate", "fit", "table")
"""In their order."""


def steps(log: Path, out: Path) -> dict[str, Callable[[], object]]:
    """Return the steps that make the features of a log, in their order."""
    layout_spec = spec()
    raw, valid, fitted, runtime = out / "raw", out / "log", out / "fitted", layout_spec.runtime
    declared = (layout_spec.data, layout_spec.features, layout_spec.gates, runtime)
    return {
        "ingest": lambda: ingest(layout_spec.data, log, raw, runtime),
        "validate": lambda: validate(layout_spec.data, raw, valid, out / "quarantine", runtime, datetime.now(UTC)),
        "fit": lambda: fit(*declared, valid, fitted),
        "table": lambda: build_table(*declared, valid, fitted, out / "table"),
    }


def one_step(name: str, log: Path, out: Path) -> None:
    """Take one of the steps; those before it have been taken."""
    steps(log, out)[name]()


def empty(out: Path) -> None:
    """Make a folder, or what is left of it, new."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()


def run_steps(log: Path, out: Path) -> Path:
    """Make the features of a log; return the table's folder."""
    empty(out)
    for work in steps(log, out).values():
        work()
    return out / "table"


if __name__ == "__main__":
    with step("features"):  # as every task of a run begins and ends
        run_steps(Path(sys.argv[1]), Path(sys.argv[2]))
