"""A day is appended to the log: models continue earlier ones; where they cannot, a note says why."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
import yaml
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import Tensor

from models.dlrm.section import DLRMModel
from models.embedding.reading.layout import Layout
from models.xgboost.section import XGBoostModel
from shortlist.contracts import ShortlistError
from shortlist.data.collected import ROWS, BatchCounts, CollectedBatch, CollectedLog, CollectedRows
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.ranking.record import read_record
from shortlist.ranking.saved_models import ranker_class
from shortlist.spec.base import Section
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.gates import Gates
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import folder_digest, write_json
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import ContinuedFrom, Lineage, TrainingTrigger
from shortlist.tracking.run_context import RunContext
from shortlist.training.continued_training import PreviousModel, find_previous_run
from shortlist.training.run_baseline import find_run_baseline
from shortlist.training.train import train
from shortlist.training.training import TrackedRun, train_and_track
from shortlist.training.withdrawn_batches import collected_tags, versions_with_batch

ROOT = Path(__file__).parents[3]
DAYS = 9
TOLERANCES = {"refit": 0.005, "continue": 0.005, "warm": 0.01}
"""Largest difference of the AUC of a continued model and of a model from scratch, on 3 000 rows.

Networks depend on their seed: over six seeds the difference was -0.0083 to 0.0026, -0.0011 on average.
"""
TREES: dict[str, Any] = {"rounds": 300, "learning_rate": 0.15, "early_stopping_rounds": 20}
CONTINUE = {"retrain": "continue", "retrain_rounds": 40, "retrain_days": 2}
WARM = {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 3}
RETRAINING = {"refit": ("xgboost", {"retrain": "refit"}), "continue": ("xgboost", CONTINUE), "warm": ("dlrm", WARM)}


class World(NamedTuple):
    """Features, tables and models of a nine-day log without its last day (old) and with it (new)."""

    spec: Spec
    folder: Path
    origin: RunContext
    runs: dict[str, str]
    """Of the old models, by kind."""

    def section(self, kind: str, **changes: Any) -> XGBoostModel | DLRMModel:
        section = self.spec.models[kind]
        return type(section).model_validate({**section.model_dump(), **changes})

    def train(
        self, kind: str, section: Section, out: str, age: str = "new", previous_run: str = "", **origin: Any
    ) -> TrackedRun:
        declared = DeclaredModel(name=kind, section=section.model_dump(mode="json"), previous_run=previous_run)
        places = self.folder / f"fitted-{age}", self.folder / f"table-{age}"
        written = self.folder / out, self.folder / f"{out}-scores"
        whence = self.origin.model_copy(update=origin)
        return train_and_track(declared, self.spec.runtime, whence, *places, *written)

    def auc(self, name: str) -> float:
        scores = pl.read_parquet(self.folder / f"{name}-scores" / "scores.parquet").filter(split="test")
        return float(roc_auc_score(scores["label"], scores["score"]))

    def judge(self, run: str, passed: bool = True) -> None:
        self.origin.tracker.log_gates(run, {"passed": passed, "gates": []})


def small_demo() -> Spec:
    raw: dict[str, Any] = yaml.safe_load((ROOT / "pipelines/specs/demo.yaml").read_text())
    raw["data"]["source"] |= {"rows": 27_000, "users": 900, "items": 300, "days": DAYS}
    raw["models"]["xgboost"] |= TREES
    raw["models"]["dlrm"] |= {"epochs": 2, "learning_rate": 0.002}
    raw["features"]["columns"] = [
        {**column, "min_rows": 30} if column.get("min_rows") == 150 else column for column in raw["features"]["columns"]
    ]
    return parse_spec(yaml.safe_dump(raw))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, spec = tmp_path_factory.mktemp("world"), small_demo()
    ingest(spec.data, Path(), folder / "raw", spec.runtime)
    source = spec.data.source
    assert source.kind == "generated"
    last = datetime.combine(source.start + timedelta(days=DAYS - 1), datetime.min.time(), UTC)
    declared = DeclaredSections(spec.data, spec.features, Gates())
    for age, until in (("old", last), ("new", None)):
        log, fitted = folder / f"log-{age}", folder / f"fitted-{age}"
        validate(spec.data, folder / "raw", log, folder / "quarantine", spec.runtime, last, until)
        fit(*declared, spec.runtime, log, fitted, folder / "fitted-old" if age == "new" else None)
        build_table(*declared, spec.runtime, log, fitted, folder / f"table-{age}")
    models = World(spec, folder, RunContext(name="demo", stores=f"{folder / 'stores'}#1", input_digest="a log"), {})
    for kind in ("xgboost", "dlrm"):
        cause = TrainingTrigger(until=last.isoformat())
        models.runs[kind] = models.train(kind, models.section(kind), f"{kind}-old", "old", cause=cause).run
        models.judge(models.runs[kind])
    return models


@pytest.fixture(scope="module")
def trained_from_scratch(world: World) -> None:
    """Train models of all days from scratch."""
    for kind in ("xgboost", "dlrm"):
        out = world.folder / f"{kind}-scratch", world.folder / f"{kind}-scratch-scores"
        table = DayTable.open(world.folder / "table-new", "table.json")
        train(kind, world.section(kind), table, world.spec.runtime, *out)


@pytest.fixture(scope="module")
def went_on(world: World) -> dict[str, TrackedRun]:
    """Return the continued training runs by their method in `RETRAINING`."""
    cause = TrainingTrigger(trigger="drift", key="0123456789abcdef", reasons=("drift in surface", "auc fell"))
    return {
        name: world.train(kind, world.section(kind, **changes), name, previous_run=world.runs[kind], cause=cause)
        for name, (kind, changes) in RETRAINING.items()
    }


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that gives the notes since its last call."""
    events = tmp_path / "events.jsonl"
    events.touch()
    monkeypatch.setenv("SHORTLIST_PROGRESS", str(events))
    told_events = (json.loads(line) for line in iter_lines(events))
    return lambda: [event["text"] for event in told_events if event["event"] == "note"]


def iter_lines(path: Path) -> Iterator[str]:
    with path.open() as file:
        yield from file


@pytest.mark.long
def test_features_fitted_onto_earlier_ones_are_those_fitted_from_scratch(world: World) -> None:
    declared = DeclaredSections(world.spec.data, world.spec.features, Gates())
    fit(*declared, world.spec.runtime, world.folder / "log-new", world.folder / "fitted-whole")
    assert folder_digest(world.folder / "fitted-new") == folder_digest(world.folder / "fitted-whole")


@pytest.mark.long
@pytest.mark.usefixtures("trained_from_scratch")
@pytest.mark.parametrize("method", RETRAINING)
def test_a_model_that_went_on_is_as_good_as_one_from_scratch(
    method: str, world: World, went_on: dict[str, TrackedRun]
) -> None:
    kind, _ = RETRAINING[method]
    assert went_on[method].continued_from.startswith(method)
    assert world.auc(method) == pytest.approx(world.auc(f"{kind}-scratch"), abs=TOLERANCES[method])
    assert world.auc(method) > 0.7


def test_it_learns_the_new_days_and_as_many_before_as_declared(world: World, went_on: dict[str, TrackedRun]) -> None:
    old = read_record(world.folder / "dlrm-old").train_days
    assert old == tuple(f"2026-01-{day:02}" for day in (6, 7, 8, 9, 10))
    assert read_record(world.folder / "warm").train_days == (*old[-3:], "2026-01-11")
    assert read_record(world.folder / "continue").train_days == (*old[-2:], "2026-01-11")
    assert read_record(world.folder / "refit").train_days == (*old, "2026-01-11")


def test_trees_are_kept_or_counted(world: World, went_on: dict[str, TrackedRun]) -> None:
    old, on, refitted_rounds = (
        read_record(world.folder / name).rounds or 0 for name in ("xgboost-old", "continue", "refit")
    )
    assert old < on <= old + 40
    assert refitted_rounds == old
    (line,) = read_record(world.folder / "refit").history  # nothing was searched: the champion's trees were counted
    assert line["round"] == refitted_rounds


def test_ids_that_were_there_keep_their_row_and_new_ones_get_the_next(
    world: World, went_on: dict[str, TrackedRun]
) -> None:
    users = Path("preprocessing/vocabularies/user_id.parquet")
    old_users, new_users = (pl.read_parquet(world.folder / name / users) for name in ("dlrm-old", "warm"))
    assert new_users.height > old_users.height
    assert new_users.head(old_users.height).equals(old_users)
    old_rows, rows = user_rows(world.folder / "dlrm-old"), user_rows(world.folder / "warm")
    assert (old_rows.shape[0], rows.shape[0]) == (old_users.height + 1, new_users.height + 1)
    table = DayTable.open(world.folder / "table-new", "table.json")
    learnt = map(date.fromisoformat, read_record(world.folder / "warm").train_days)
    learnt_users = table.scan(set(learnt)).select(pl.col("user_id_id").unique()).collect()["user_id_id"].to_list()
    unseen = sorted(set(range(old_users.height + 1)) - set(learnt_users))
    learnt_old_users = sorted(set(range(1, old_users.height + 1)) & set(learnt_users))
    assert len(unseen) > 5
    assert len(learnt_old_users) > 100
    assert (rows[unseen] == old_rows[unseen]).all()  # bit by bit
    moved = float(abs(rows[learnt_old_users] - old_rows[learnt_old_users]).mean())
    assert 0 < moved < 0.5 * float(abs(old_rows[learnt_old_users]).mean())  # they started from the old weights


def user_rows(model: Path) -> Tensor:
    """The embedding rows of users, in the order of their ids."""
    layout = Layout.from_features(read_record(model).features)
    start, size = next(
        (start, table.size or 0)
        for start, table in zip(layout.starts, layout.tables, strict=True)
        if table.name == "user_id_id"
    )
    return load_file(model / "weights.safetensors")["table.weight_RD"][start : start + size]


def test_mlflow_says_why_it_was_trained_and_what_it_went_on_from(world: World, went_on: dict[str, TrackedRun]) -> None:
    client = world.origin.tracker._client
    tags = client.get_run(went_on["warm"].run).data.tags
    assert tags["trigger"] == "drift"
    assert tags["decision"] == "0123456789abcdef"
    assert tags["reasons"] == "drift in surface\nauc fell"
    assert tags["continued_from.run"] == world.runs["dlrm"]
    assert (tags["continued_how"], tags["days.learnt"]) == ("warm", "2026-01-08..2026-01-11")
    assert tags["days.train"] == "2026-01-06..2026-01-11"
    assert "continued_from.version" not in tags  # it was never registered
    first = client.get_run(world.runs["dlrm"]).data.tags
    assert first["until"] == "2026-01-13T00:00:00+00:00"
    assert first["trigger"] == "manual"
    assert not any(name.startswith("continued") for name in first)


def test_an_unchanged_declaration_starts_from_scratch_without_a_note(
    world: World, notes: Callable[[], list[str]]
) -> None:
    assert find_previous_run("dlrm", world.section("dlrm"), world.origin.tracker, "a log", "") == ""
    assert notes() == []


class PastTrainings(NamedTuple):
    """Trainings in a separate store, among which the run to continue is searched."""

    origin: RunContext
    model: Path

    def trained(self, *, passed: bool | None = True, log: str = "a log", kind: str = "dlrm", after: str = "") -> str:
        """Track the model as another training run; log its gates unless `passed` is None."""
        tracker = self.origin.tracker
        number = len(tracker._client.search_runs([tracker._experiment]))
        continued = ContinuedFrom(run="r", version=after, mode="warm", learnt="") if after else None
        lineage = Lineage(
            spec_digest=f"{number}", data_digest=f"{log}/table", days={}, code_version="", continued=continued
        )
        run = tracker.log_training(self.model, kind, {}, [], lineage)
        if passed is not None:
            tracker.log_gates(run, {"passed": passed, "gates": []})
        return run

    def find_previous(self, kind: str = "dlrm", log: str = "today's", withdrawn: Sequence[int] = ()) -> str:
        section = DLRMModel.model_validate({"features": ["*"], **WARM})
        return find_previous_run(kind, section, self.origin.tracker, log, "", withdrawn)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, created once: its database takes longer than these tests."""
    folder = tmp_path_factory.mktemp("store")
    RunContext(name="first", stores=str(folder)).tracker.passed_runs("dlrm", "dlrm")
    return folder


@pytest.fixture
def past_trainings(store: Path, world: World, request: pytest.FixtureRequest) -> PastTrainings:
    return PastTrainings(
        RunContext(name=re.sub(r"\W", "-", request.node.name), stores=str(store)), world.folder / "dlrm-old"
    )


def test_a_first_training_has_nothing_to_go_on_from(
    past_trainings: PastTrainings, notes: Callable[[], list[str]]
) -> None:
    assert past_trainings.find_previous() == ""
    assert notes() == ["dlrm was trained from scratch: no earlier model of this name has passed the gates yet."]


def test_held_and_unjudged_models_are_never_gone_on_from(past_trainings: PastTrainings) -> None:
    passed = past_trainings.trained()
    past_trainings.trained(passed=False)
    past_trainings.trained(passed=None)
    assert past_trainings.find_previous() == passed
    past_trainings.origin.tracker.log_gates(
        passed, {"passed": False, "gates": []}
    )  # gates became stricter, and it was judged anew
    assert past_trainings.find_previous() == ""


def test_the_champion_comes_before_newer_models_and_only_for_its_kind(past_trainings: PastTrainings) -> None:
    champion, newest = past_trainings.trained(), past_trainings.trained()
    trees = past_trainings.trained(kind="xgboost")
    assert past_trainings.find_previous() == newest
    registry = past_trainings.origin.tracker.registry
    registry.set_alias("champion", registry.register(champion))
    assert past_trainings.find_previous() == champion
    registry.set_alias("champion", registry.register(trees))
    assert past_trainings.find_previous() == newest
    past_trainings.origin.tracker.log_gates(champion, {"passed": False, "gates": []})
    registry.set_alias("champion", registry.register(champion))
    assert past_trainings.find_previous() == newest


def test_what_learnt_from_a_withdrawn_batch_is_named_and_never_gone_on_from(past_trainings: PastTrainings) -> None:
    def collected(batches: int, *withdrawn: int) -> dict[str, str]:
        rows = CollectedRows(stores="s", spec="shop", batches=batches, digest="d", withdrawn=withdrawn)
        return collected_tags(rows.model_dump_json())

    registry, tags = past_trainings.origin.tracker.registry, [collected(1), collected(3), collected(4, 2), {}]
    runs = [past_trainings.trained() for _ in tags]
    versions = [registry.register(run, run_tags) for run, run_tags in zip(runs, tags, strict=True)]
    runs.append(past_trainings.trained(after=str(versions[1])))
    versions.append(registry.register(runs[-1]))
    assert versions_with_batch(registry, 2) == [versions[1], versions[4]]
    assert versions_with_batch(registry, 4) == [versions[2]]
    assert versions_with_batch(registry, 5) == []
    assert past_trainings.find_previous() == runs[4]
    assert past_trainings.find_previous(withdrawn=[2]) == runs[3]
    assert past_trainings.find_previous(withdrawn=[5]) == runs[4]
    past_trainings.trained()  # nobody knows which rows it read
    assert past_trainings.find_previous(withdrawn=[2]) == runs[3]


def test_the_command_withdraws_a_batch_and_names_the_versions_that_learnt_its_rows(
    store: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shortlist.cli.commands import run

    shutil.copytree(store, tmp_path / "runs/stores")
    (tmp_path / "runs/stores/epoch").write_text("1")
    past = PastTrainings(RunContext(name="drill", stores=f"{tmp_path / 'runs/stores'}#1"), world.folder / "dlrm-old")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / ROWS).write_bytes(b"rows")
    log = CollectedLog.open(past.origin.stores, "drill")
    batch = CollectedBatch(
        number=1, spec="drill", made=datetime.now(UTC), folder=log.files_key(1, "a"), digest="d", spans=(),
        answered_from=None, answered_to=None, first=None, last=None, counts=BatchCounts(rows=7),
    )  # fmt: skip
    assert log.publish(batch, tmp_path / "files")
    rows = CollectedRows(stores=past.origin.stores, spec="drill", batches=1, digest="d").model_dump_json()
    registry = past.origin.tracker.registry
    registry.register(past.trained())
    for _ in range(2):
        registry.set_alias("champion", registry.register(past.trained(), collected_tags(rows)))
    spec = str(Path(__file__).parents[3] / "pipelines/specs/drill.yaml")
    arguments = ["shortlist", "collect", spec, "--runs", str(tmp_path / "runs"), "--withdraw"]
    monkeypatch.setattr("sys.argv", [*arguments, "1"])
    with pytest.raises(SystemExit, match="0"):
        run()
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Withdrawn: Batch 1: 7 rows, 0 positive.", "Trained with it: version 2, version 3 (champion).",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", [*arguments, "2"])
    with pytest.raises(ShortlistError, match="batch 2: there is no such batch of spec 'drill'; wanted 1 to 1"):
        run()
    assert CollectedLog.open(past.origin.stores, "drill").withdrawn() == (1,)


def test_the_same_log_again_goes_on_from_the_same_model(past_trainings: PastTrainings) -> None:
    first_run = past_trainings.trained(log="yesterday's")
    assert past_trainings.find_previous() == first_run
    past_trainings.trained(log="today's")
    assert past_trainings.find_previous() == first_run
    assert past_trainings.find_previous(log="tomorrow's") != first_run


def test_what_a_run_builds_on_is_told_in_one_place(world: World) -> None:
    origin = world.origin.model_copy(update={"input_digest": "tomorrow's"})
    models = [
        DeclaredModel(name=kind, section=world.section(kind, **changes).model_dump(mode="json"))
        for kind, changes in (RETRAINING["continue"], RETRAINING["warm"])
    ]
    baseline = find_run_baseline(origin, models)
    assert (baseline.version, baseline.previous) == ("", "")
    assert {model.name: model.previous_run for model in baseline.models} == world.runs
    assert [model.model_copy(update={"previous_run": ""}) for model in baseline.models] == models
    store = world.folder / "stores" / "feast" / "demo"
    decided = origin.model_copy(update={"cause": TrainingTrigger(trigger="drift", key="0" * 16)})
    assert find_run_baseline(decided, []).previous == ""
    store.mkdir(parents=True, exist_ok=True)
    write_json(store / "serving.json", {"views": str(world.folder / "fitted-old" / "views")})
    assert find_run_baseline(decided, []) == ("", (), str(world.folder / "fitted-old"))
    assert find_run_baseline(origin, []).previous == ""  # a person's training counts every day


def from_scratch(world: World, section: XGBoostModel | DLRMModel, out: str, **origin: Any) -> None:
    """Train, and check that the model started from scratch."""
    kind = "dlrm" if isinstance(section, DLRMModel) else "xgboost"
    training = world.train(kind, section, out, **{"previous_run": world.runs[kind], **origin})
    assert training.continued_from == ""
    assert read_record(world.folder / out).champion is None
    assert len(read_record(world.folder / out).train_days) == 6


QUICK_TREES = {**CONTINUE, "rounds": 3, "retrain_rounds": 1, "refit": False}


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("xgboost", QUICK_TREES, r"the earlier model has \d+ trees; 1 more are beyond models\.xgboost\.rounds \(3\)"),
        pytest.param(
            "xgboost",
            {"retrain": "refit", "max_depth": 2, "rounds": 3},
            r"models\.xgboost: max_depth changed, so the earlier number of trees says nothing",
            marks=pytest.mark.long,
        ),
        (
            "xgboost",
            {**CONTINUE, "features": ("user_rate", "item_rate"), "early_stopping_rounds": 1},
            r"the champion reads position_log, .*; the spec now says user_rate, item_rate",
        ),
        ("dlrm", {**WARM, "embedding_dim": 4, "epochs": 1}, r"'bottom\.2\.weight' has shape"),
        pytest.param(
            "dlrm", {**WARM, "top_mlp": (8,), "epochs": 1}, r"'top\.0\.weight' has shape", marks=pytest.mark.long
        ),
    ],
)
def test_a_section_that_changed_starts_from_scratch_with_a_reason(
    kind: str, changes: dict[str, Any], reason: str, world: World, notes: Callable[[], list[str]]
) -> None:
    from_scratch(world, world.section(kind, **changes), "changed")
    (note,) = notes()
    assert re.match(rf"{kind} was trained from scratch: .*{reason}", note)


def beginning(world: World, **changes: Any) -> PreviousModel:
    """The old DLRM, its record changed."""
    folder = world.folder / "dlrm-old"
    return PreviousModel("a run", "", folder, read_record(folder).model_copy(update=changes))


def days_left_to_train(world: World, previous_model: PreviousModel, fitted: Path | None = None) -> tuple[str, ...]:
    """The training days that are to be learnt."""
    table = DayTable.open(world.folder / "table-new", "table.json")
    narrowed = previous_model.days_left_to_train(
        world.section("dlrm", **WARM), ranker_class("dlrm"), table, fitted or world.folder / "fitted-new"
    )
    learnt = {"warmup": [], "train": []}  # a model of ids alone does not learn the warm-up days once more
    assert narrowed.notes["split"]["warmup"] == []
    assert narrowed.notes["split"] | learnt == table.notes["split"] | learnt
    return tuple(narrowed.notes["split"]["train"])


def test_the_days_since_are_learnt_whatever_their_number(world: World) -> None:
    old_model = beginning(world, train_days=("2026-01-06", "2026-01-07"), validation_days=("2026-01-08",))
    assert days_left_to_train(world, old_model) == tuple(f"2026-01-{day:02}" for day in (6, 7, 8, 9, 10, 11))
    assert days_left_to_train(world, beginning(world)) == tuple(f"2026-01-{day:02}" for day in (8, 9, 10, 11))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train_days": ("2026-01-11",)}, "has learnt up to 2026-01-11, and there is no training day after it"),
        ({"train_days": ("2026-01-12",)}, "has learnt 2026-01-12; validation begins on 2026-01-12"),
        ({"validation_days": ("2026-01-13",)}, "was chosen by its loss on 2026-01-13; the test begins on 2026-01-13"),
        (
            {"params": {"refit": True}, "validation_days": ("2026-01-12",)},
            "has learnt 2026-01-12; validation begins on 2026-01-12",
        ),
    ],
)
def test_a_model_that_has_learnt_the_judging_days_is_not_continued(
    world: World, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(IncompatibleModelError, match=f"the earlier model {reason}"):
        days_left_to_train(world, beginning(world, **changes))


def redeclared(world: World, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The newest features, declared otherwise."""
    fitted = shutil.copytree(world.folder / "fitted-new", tmp_path / "fitted")
    saved = json.loads((fitted / "features.json").read_text())
    change(saved)
    write_json(fitted / "features.json", saved)
    return fitted


def test_inputs_that_mean_other_things_now_are_refused(world: World, tmp_path: Path) -> None:
    def prior(saved: dict[str, Any]) -> None:
        (rate,) = (column for column in saved["features"]["columns"] if column.get("name") == "user_rate")
        rate["prior"] = 11

    def label(saved: dict[str, Any]) -> None:
        saved["data"]["label"] = "liked"

    def source(saved: dict[str, Any]) -> None:
        saved["data"]["source"]["rows"] = 1_000

    for change, reason in ((prior, "feature 'user_rate'"), (label, r"data\.label")):
        with pytest.raises(IncompatibleModelError, match=f"{reason} is declared otherwise than for the earlier model"):
            days_left_to_train(world, beginning(world), redeclared(world, tmp_path / change.__name__, change))
    assert days_left_to_train(world, beginning(world), redeclared(world, tmp_path / "source", source))


def test_ids_that_moved_are_refused(world: World, tmp_path: Path) -> None:
    fitted = shutil.copytree(world.folder / "fitted-new", tmp_path / "fitted")
    users = fitted / "vocabularies/user_id.parquet"
    values = pl.read_parquet(users)
    values.with_columns(pl.col("value").reverse()).write_parquet(users)
    with pytest.raises(
        IncompatibleModelError, match="ids of 'user_id_id' mean other values than for the earlier model"
    ):
        days_left_to_train(world, beginning(world), fitted)


@pytest.mark.parametrize("missing", [False, True])
def test_a_model_with_changed_or_missing_files_is_not_continued(
    missing: bool, world: World, past_trainings: PastTrainings, notes: Callable[[], list[str]]
) -> None:
    run = past_trainings.trained()
    folder = past_trainings.origin.tracker.fetch_model(run)
    (folder / "weights.safetensors").write_bytes(b"not these")
    if missing:
        shutil.rmtree(folder)
    from_scratch(
        world,
        world.section("dlrm", **WARM, epochs=1),
        "left",
        previous_run=run,
        stores=past_trainings.origin.stores,
        name=past_trainings.origin.name,
    )
    (note,) = notes()
    assert "dlrm was trained from scratch" in note
    assert ("No such" if missing else "weights.safetensors") in note
