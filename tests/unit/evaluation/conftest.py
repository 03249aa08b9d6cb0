"""Small scored logs with planted probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.evaluation.gates.export_validation import ExportValidation, LoadTestResult, Parity, ScoreParity
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import folder_digest, write_json

Frame = Callable[..., pl.DataFrame]


def scored_frame(rows: int = 3_000, users: int = 300, seed: int = 1, split: str = "test") -> pl.DataFrame:
    """Rows whose score is their planted probability, about one positive in four."""
    generator = np.random.default_rng(seed)
    planted = generator.beta(1.0, 3.0, rows)
    return pl.DataFrame(
        {
            "impression_id": np.arange(rows),
            "label": (generator.random(rows) < planted).astype(np.int8),
            "user": generator.integers(0, users, rows),
            "cold_user": np.arange(rows) % 5 == 0,
            "cold_item": np.arange(rows) % 3 == 0,
            "slice_tab": np.arange(rows) % 4,
            "true_probability": planted,
            "split": split,
            "score": planted.astype(np.float32),
        }
    )


@pytest.fixture(scope="session")
def frame() -> Frame:
    return scored_frame


@pytest.fixture(scope="session")
def limits() -> Gates:
    return Gates(bootstrap_rounds=60, slices=("tab",), min_slice_rows=200, baseline="popularity")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, pl.DataFrame], Path]:
    def write(name: str, scores: pl.DataFrame) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        scores.write_parquet(folder / "scores.parquet")
        return folder

    return write


def good_proof(model: Path, out: Path, limits: Gates, candidate: str = "") -> None:
    """Write an export validation that is within every limit."""
    same = ScoreParity(rows=3_000, max_difference=1e-7)
    load = limits.infra
    infra = LoadTestResult(
        rows_per_request=load.rows_per_request, requests_per_second=load.requests_per_second, seconds=load.seconds,
        requests=60, failed=0, p50_ms=3.0, p99_ms=9.0, memory_mib=120.0, cold_start_seconds=1.0,
    )  # fmt: skip
    parity = Parity(test_rows=3_000, exported=same, triton=same)
    out.mkdir(exist_ok=True)
    proof = ExportValidation(
        candidate=candidate or folder_digest(model), parity=parity, infra=infra, unknown_values=()
    )  # fmt: skip
    write_json(out / Files.EXPORT_VALIDATION, proof.model_dump(mode="json"))


@pytest.fixture(scope="session")
def validate_export() -> Callable[..., None]:
    return good_proof
