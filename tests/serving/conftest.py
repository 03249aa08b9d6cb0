"""A small log, the models trained on it, and models that every gate let pass though they are no good."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.deployment.registration import register_blessed
from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.evaluate_gates import Candidate, evaluate_gates
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES
from shortlist.evaluation.metrics.records import Measures
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import publish
from shortlist.features.rows.table import build_table
from shortlist.ranking.kind import DeclaredModel
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, Signature
from shortlist.serving.validation.validate_export import validate_export
from shortlist.slates.release import write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.filters import Filters
from shortlist.spec.load import load_spec
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.spec import Spec
from shortlist.storage import artefacts
from shortlist.storage.artefacts import folder_digest, write_manifest
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.registry import RELEASE
from shortlist.tracking.run_context import RunContext
from shortlist.training.champion import score_champion
from shortlist.training.training import train_and_track

NAME = "small"
# About 1 000 users ask in two days. Shown first is an item that they like in half of all cases, in a third by a model
# that ranks at random.
SIZE = {"rows": 30_000, "users": 3_000, "items": 300, "days": 4}
TREES = {"rounds": 60, "learning_rate": 0.2, "refit": False}
OTHER_TREES = {"kind": "lightgbm", "rounds": 40, "num_leaves": 8, "refit": False}
GATE_LIMITS = {
    "min_test_rows": 500, "bootstrap_rounds": 50, "skew_rows": 20, "parity_rows": 1_000,
    "max_calibration_error": 0.2, "max_rate_error": 0.5,
    # Long enough to prove that the servers answer; how fast, the judge sees.
    "infra": {
        "seconds": 0.5, "max_p50_ms": 5_000, "max_p99_ms": 10_000,
        "max_slate_p50_ms": 5_000, "max_slate_p99_ms": 10_000,
    },
}  # fmt: skip
RETRIEVAL = {"candidates": 50, "sources": {"popular": {"kind": "popular"}, "together": {"kind": "co_visitation"}}}
ORDERINGS = {"best_first": {"value": "score"}, "worst_first": {"value": "0 - score"}}
SERVING = {
    "batching": {"threads": 1},
    "log": {"flush_seconds": 0.3, "max_waiting": 300},
    "refresh_seconds": 0.5,
    # What waits while a server is started again must not be refused, however slow the machine is.
    "overload": {"max_wait_ms": 60_000, "max_waiting": 10_000},
    "traffic": {"kind": "replay", "rate": 75, "days": 2, "outcome_delay_seconds": 0.1},
    "canary": {
        "steps": [10, 50, 100], "interval_seconds": 2, "min_requests": 25, "min_users": 25, "deadline_seconds": 240,
        "drain_seconds": 1, "kpi": {"max_drop": 0.2, "scale": 0.1},
        # Far from what a busy machine does to good models; who tests latencies asks for less.
        "guardrails": {"latency_floor_ms": 2_000, "max_p99_ms": 2_000},
    },
}  # fmt: skip
_NEWEST_DAY_MICROSECONDS = 1_767_830_400_000_000
"""2026-01-08. Requests that prove a candidate are made of this day, replays also of the day before."""


@dataclass(frozen=True)
class World:
    """A spec's stores with registered versions; what is in them is read only, except where a test says so."""

    spec: Spec
    spec_file: Path
    runs: Path
    origin: RunContext
    log: Path
    versions: Mapping[str, int]
    """By what is right or wrong with them; `first` and `second` are good, any other is made when it is asked for."""

    @property
    def store(self) -> Path:
        """Folder of the Feast store."""
        return self.runs / "stores" / "feast" / NAME


@pytest.fixture(scope="session")
def world(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The log, fitted and published; the first version through every gate, the others blessed by hand."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        # Syncing hundreds of tiny files takes longer than everything else.
        patch.setattr(artefacts, "_sync", lambda path: None)
        yield _Making(folder, _smaller(small_spec)).world()


class _Versions(dict[str, int]):
    def __init__(self, making: _Making) -> None:
        self._making = making

    def __missing__(self, name: str) -> int:
        self[name] = self._making.changed(name)
        return self[name]


class _Making:
    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec_file = folder / f"{NAME}.yaml"
        self.spec_file.write_text(yaml.safe_dump(spec))
        self.spec = load_spec(self.spec_file)
        self.runs = folder / "runs"
        (self.runs / "stores").mkdir(parents=True)
        self.origin = RunContext(name=NAME, stores=str(self.runs / "stores"), input_digest="log", code="code")

    def world(self) -> World:
        self._features()
        self._sources()
        versions = _Versions(self)
        versions["first"] = self._through_the_gates()
        # Of another kind, so that every rollout between the two changes what Triton runs.
        second = self._trained("second", self.spec.models["lightgbm"], kind="lightgbm")
        versions["second"] = self._blessed(self.folder / "second", second, self._release("worst_first"))
        self.origin.tracker.registry.set_alias("candidate", versions["second"])
        log = self.folder / "log"
        return World(self.spec, self.spec_file, self.runs, self.origin, log, versions)

    def changed(self, name: str) -> int:
        """Register a version with a graph that was changed."""
        if not (self.folder / "changed").exists():
            self._trained("changed", self.spec.models["xgboost"], seed=2)
        if name == "unblessed":
            return self._registered(self._changed(name, _none), None)
        return self._blessed(self._changed(name, CHANGES[name]), None)

    def _features(self) -> None:
        spec, folder = self.spec, self.folder
        ingest(spec.data, folder, folder / "raw", spec.runtime)
        moment = datetime(2026, 6, 1, tzinfo=UTC)
        validate(spec.data, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, moment)
        declared = spec.data, spec.features, spec.gates
        fit(*declared, spec.runtime, folder / "log", folder / "fitted")
        build_table(*declared, spec.runtime, folder / "log", folder / "fitted", folder / "table")

    def _sources(self) -> None:
        """Fit what finds candidates."""
        section = Retrieval.model_validate(RETRIEVAL)
        log = DayTable.open(self.folder / "log", Files.LOG)
        days = frozenset(part.day for part in log.days)
        fit_retrieval(section, self.spec.data, log, days, self.folder / "sources", 1)

    def _release(self, name: str) -> Path:
        """Return the folder of a release, which orders as its name says."""
        filters = Filters.model_validate({"rules": [{"kind": "seen", "window": "1h"}], "fallback": ["popular"]})
        ordering, out = Ordering.model_validate(ORDERINGS[name]), self.folder / f"release_{name}"
        write_release(self.folder / "sources", self.spec.data, filters, ordering, self.folder / "log", None, out)
        return out

    def _trained(self, name: str, section: Any, seed: int = 1, kind: str = "xgboost") -> str:
        declared = DeclaredModel(name=kind, section=section.model_dump(mode="json"))
        runtime = self.spec.runtime.model_copy(update={"seed": seed})
        inputs = self.folder / "fitted", self.folder / "table"
        outputs = self.folder / name, self.folder / f"{name}_scores"
        return train_and_track(declared, runtime, self.origin, *inputs, *outputs).run

    def _through_the_gates(self) -> int:
        spec, at = self.spec, self.folder
        run = self._trained("first", spec.models["xgboost"])
        self._trained("popularity", spec.models["popularity"], kind="popularity")
        rows = spec.gates.skew_rows
        store = self.runs / "stores" / "feast" / NAME
        publish(NAME, store, spec.runtime, rows, at / "log", at / "fitted", at / "table", at / "skew")
        candidate = Candidate(at / "first", at / "first_scores", at / "proof")
        validate_export(
            candidate.folder,
            candidate.scores,
            at / "log",
            at / "fitted",
            spec.gates,
            spec.serving,
            1,
            candidate.validation,
        )
        declared = DeclaredSections(spec.data, spec.features, spec.gates)
        score_champion("", self.origin, declared, spec.runtime, at / "log", at / "fitted", at / "no_champion")
        evidence = at / "log", at / "skew", at / "no_champion", at / "popularity_scores"
        assert evaluate_gates(spec.gates, 1, {"xgboost": candidate}, *evidence, at / "verdict") == "xgboost"
        release = self._release("best_first")
        return int(register_blessed(self.origin, at / "verdict", {"xgboost": run}, release=release))

    def _changed(self, name: str, change: Change) -> Path:
        """Return a copy of the folder of other trees with another graph, its manifest written again."""
        import onnx

        to = self.folder / name
        shutil.copytree(self.folder / "changed", to)
        path = to / FOLDER / MODEL_FILE
        model = onnx.load(path)
        model.doc_string = name
        signature = Signature.read(to / FOLDER)
        _change(model.graph, change, signature)
        onnx.save(model, path)
        # Without a border it is served in one piece: what was added lies behind the trees.
        signature.model_copy(update={"border": ()}).write(to / FOLDER)
        write_manifest(to)
        return to

    def _blessed(self, model: Path, run: str | None, release: Path | None = None) -> int:
        """Bless, log and register a model as if every gate had passed it."""
        digests = write_manifest(model)
        gates = [GateResult(name=name, passed=True, reason="fine", numbers={"digests": digests}) for name in GATES]
        report = GateReport.from_results("xgboost", folder_digest(model), gates)
        measures = Measures(model="xgboost", role="candidate", validation_log_loss=0.5)
        blessing = self.folder / f"{model.name}_verdict" / Files.BLESSING
        blessing.parent.mkdir()
        write_blessing(blessing, bless([report], [measures]))
        return self._registered(model, run, blessing, release)

    def _registered(
        self, model: Path, run: str | None, blessing: Path | None = None, release: Path | None = None
    ) -> int:
        tracker = self.origin.tracker
        if run is None:
            lineage = Lineage(spec_digest="s", data_digest=model.name, days={}, code_version="code", git_commit="none")
            run = tracker.log_training(model, "xgboost", {}, [], lineage)
        if blessing is not None:
            tracker.log_blessing(run, blessing)
        tags = {} if release is None else {RELEASE: tracker.log_retrieval(run, release)}
        return tracker.registry.register(run, {**tags, "blessed": str(blessing is not None).lower()})


def _smaller(spec: dict[str, Any]) -> dict[str, Any]:
    small = copy.deepcopy(spec) | {"name": NAME, "serving": SERVING, "gates": GATE_LIMITS}
    del small["monitoring"], small["schedule"]
    small["data"]["source"] |= SIZE
    trees = small["models"]["xgboost"] | TREES
    small["models"] = {"xgboost": trees, "lightgbm": OTHER_TREES | {"features": trees["features"]}}
    return small


Change = Callable[[Any, str, str, Signature], None]
"""Adds nodes to a graph that make its score of a good one: graph, name of the good score, name of its own, inputs."""


def _change(graph: Any, change: Change, signature: Signature) -> None:
    (output,) = graph.output
    good = f"{output.name}_as_trained"
    for node in graph.node:
        node.output[:] = [good if name == output.name else name for name in node.output]
    change(graph, good, output.name, signature)


def _none(graph: Any, good: str, name: str, signature: Signature) -> None:
    _add(graph, "Identity", [good], name)


def _not_a_number(graph: Any, good: str, name: str, signature: Signature) -> None:
    column = _constant(graph, np.array([signature.numbers.index("event_time")]))
    moment = _add(graph, "Gather", ["numbers", column], "moment", axis=1)
    old = _add(graph, "Less", [moment, _constant(graph, np.array([float(_NEWEST_DAY_MICROSECONDS)]))], "old")
    _add(graph, "Where", [old, _constant(graph, np.array([np.nan], np.float32)), good], name)


def _shuffled(graph: Any, good: str, name: str, signature: Signature) -> None:
    # From the last row to the first: every score is there, and belongs to another item.
    bounds = [_constant(graph, np.array([number])) for number in (-1, np.iinfo(np.int64).min, 0, -1)]
    _add(graph, "Slice", [good, *bounds], name)


def _all_the_same(graph: Any, good: str, name: str, signature: Signature) -> None:
    zero_product = _add(graph, "Mul", [good, _constant(graph, np.zeros(1, np.float32))], "nothing")
    _add(graph, "Add", [zero_product, _constant(graph, np.full(1, 0.3, np.float32))], name)


def _slow(graph: Any, good: str, name: str, signature: Signature) -> None:
    # Products of matrices that begin with the scores, so that none can be computed beforehand.
    mean = _add(graph, "ReduceMean", [good], "mean", keepdims=0)
    turn = _constant(graph, np.eye(768, dtype=np.float32)[::-1].copy())
    product = _add(graph, "Add", [turn, _add(graph, "Mul", [mean, turn], "filled")], "product_0")
    for number in range(1, 17):
        product = _add(graph, "MatMul", [product, turn], f"product_{number}")
    small = _add(graph, "ReduceMean", [product], "small", keepdims=0)
    tiny = _add(graph, "Mul", [small, _constant(graph, np.array(1e-6, np.float32))], "tiny")
    _add(graph, "Add", [good, tiny], name)


def _not_loadable(graph: Any, good: str, name: str, signature: Signature) -> None:
    _add(graph, "Explode", [good], name)  # there is no such operator


CHANGES: dict[str, Change] = {
    "not_a_number": _not_a_number, "shuffled": _shuffled, "all_the_same": _all_the_same, "slow": _slow,
    "not_loadable": _not_loadable, "tampered": _none, "swapped": _none, "crashing": _none,
}  # fmt: skip


def _add(graph: Any, kind: str, inputs: list[str], output: str, **attributes: int) -> str:
    from onnx import helper

    graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
    return output


def _constant(graph: Any, value: np.ndarray) -> str:
    from onnx import numpy_helper

    name = f"constant_{len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name
