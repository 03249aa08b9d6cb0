from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from retrieval_log import Log, Row, declared

from components.release import build_release
from components.retrieval import build_retrieval
from shortlist.evaluation.gates.gate_inputs import read_retrieval
from shortlist.evaluation.gates.retrieval import RetrievalLimits, retrieval_gate
from shortlist.slates.release import open_release
from shortlist.spec.filters import Filters
from shortlist.spec.gates import Gates
from shortlist.spec.load import canonical_json
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import verify_manifest
from shortlist.tracking.artefact_metadata import read_metadata


def artefact(path: Path) -> Any:
    return SimpleNamespace(path=str(path), metadata={})


def built(section: str, data: str, log: Path, out: Path) -> tuple[bool, Any]:
    retrieval = artefact(out)
    runtime = canonical_json(Runtime())
    is_built = build_retrieval(
        declared=section, data=data, runtime=runtime, code="", valid_log=artefact(log), retrieval=retrieval
    )
    return is_built, retrieval


def test_build_retrieval_without_a_section_writes_an_empty_folder(tmp_path: Path) -> None:
    is_built, retrieval = built("", "", tmp_path, tmp_path / "out")
    assert (is_built, retrieval.metadata, list((tmp_path / "out").iterdir())) == (False, {}, [])
    assert read_retrieval(tmp_path / "out", Gates(), 1) == {}


def test_build_retrieval_writes_the_sources_and_their_evaluation(log: Log, tmp_path: Path) -> None:
    rows: list[Row] = [(user, 10 * (1 + user % 3), day, "home", 1) for day in range(3) for user in range(30)]
    log.write(rows)
    data = declared(split={"warmup_days": 0, "validation_days": 1, "test_days": 1})
    section = Retrieval.model_validate({"candidates": 2, "sources": {"recent": {"kind": "popular"}}})
    is_built, retrieval = built(canonical_json(section), canonical_json(data), log.folder, tmp_path / "out")
    assert is_built
    assert read_metadata(retrieval, "step")["name"] == "build_retrieval"
    assert "sources/recent/items.npy" in verify_manifest(tmp_path / "out" / "release")
    retrieval_measures = read_retrieval(tmp_path / "out", Gates(), 1)["retrieval"]
    # Two of three items are everybody's candidates, and a third of the users takes each.
    assert retrieval_measures.union.recall.value == pytest.approx(2 / 3)
    assert not retrieval_gate(retrieval_measures, RetrievalLimits(min_recall=0.9)).passed


def released(
    retrieval: Path, log: Path, data: str, out: Path, filters: str = "", ordering: str = ""
) -> tuple[bool, Any]:
    release = artefact(out)
    is_built = build_release(
        filters=filters, ordering=ordering, lists="", data=data, log={"location": ""}, code="",
        valid_log=artefact(log), retrieval=artefact(retrieval), release=release,
    )  # fmt: skip
    return is_built, release


def test_without_sources_nothing_is_released(tmp_path: Path) -> None:
    (tmp_path / "retrieval").mkdir()
    is_built, release = released(tmp_path / "retrieval", tmp_path, "", tmp_path / "out")
    assert (is_built, release.metadata, list((tmp_path / "out").iterdir())) == (False, {}, [])


def test_sources_are_released_with_filters_and_ordering(log: Log, tmp_path: Path) -> None:
    rows: list[Row] = [(user, 10 * (1 + user % 3), day, "home", 1) for day in range(3) for user in range(30)]
    log.write(rows)
    data = declared(split={"warmup_days": 0, "validation_days": 1, "test_days": 1})
    section = Retrieval.model_validate({"candidates": 2, "sources": {"recent": {"kind": "popular"}}})
    built(canonical_json(section), canonical_json(data), log.folder, tmp_path / "retrieval")
    sections = (
        canonical_json(Filters.model_validate({"fallback": ["recent"]})),
        canonical_json(Ordering(value="0 - score")),
    )
    is_built, _ = released(tmp_path / "retrieval", log.folder, canonical_json(data), tmp_path / "out", *sections)
    assert is_built
    stages = open_release(tmp_path / "out" / "release", data)
    assert (stages.filters.fallback, stages.ordering.value) == (("recent",), "0 - score")
    # Nothing declared: everything may be shown, the best score first.
    released(tmp_path / "retrieval", log.folder, canonical_json(data), tmp_path / "plain")
    assert open_release(tmp_path / "plain" / "release", data).ordering == Ordering()


def test_an_evaluation_that_is_missing_holds(tmp_path: Path) -> None:
    (tmp_path / "release").mkdir()
    gate_inputs = read_retrieval(tmp_path, Gates(), 1)
    assert gate_inputs == {"retrieval_declared": True, "retrieval": None}
