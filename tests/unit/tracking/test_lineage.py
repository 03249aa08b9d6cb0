from pathlib import Path

import pytest

from shortlist.contracts import ShortlistError
from shortlist.tracking import lineage
from shortlist.tracking.lineage import (
    ContinuedFrom,
    Lineage,
    TrainingTrigger,
    code_version,
    gate_code_version,
    git_commit,
    step_code_version,
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ranker.py").write_text("a = 1\n")
    monkeypatch.setattr(lineage, "project_root", lambda: tmp_path)
    monkeypatch.setattr(lineage, "_FRAMEWORK", tmp_path / "shortlist")
    return tmp_path


def test_the_code_version_changes_only_with_the_code(root: Path) -> None:
    version_before = code_version.__wrapped__()
    (root / "models" / "notes.txt").write_text("not code")
    assert code_version.__wrapped__() == version_before
    (root / "models" / "ranker.py").write_text("a = 2\n")
    changed = code_version.__wrapped__()
    (root / "models" / "ranker.py").rename(root / "models" / "renamed.py")
    assert len({version_before, changed, code_version.__wrapped__()}) == 3


def install_gate(folder: Path, limit: float) -> None:
    """Write a package with a gate, as pip would install it."""
    metadata_folder = folder / "spread_gate-1.0.dist-info"
    metadata_folder.mkdir(parents=True, exist_ok=True)
    (metadata_folder / "METADATA").write_text("Metadata-Version: 2.1\nName: spread-gate\nVersion: 1.0\n")
    (metadata_folder / "entry_points.txt").write_text("[shortlist.gates]\nspread = spread_gate:SPREAD\n")
    (folder / "spread_gate.py").write_text(f"SPREAD = {limit}\n")


def read_versions() -> tuple[str, str, str]:
    """Return the digests of all code, of the steps' code and of added gates, anew from the files."""
    versions = code_version, step_code_version, gate_code_version
    return tuple(version.__wrapped__() for version in versions)  # type: ignore[return-value]


@pytest.mark.usefixtures("root")
def test_a_verdict_is_not_reused_from_before_a_gate_was_installed_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, step_code, no_gates = read_versions()
    packages = tmp_path / "packages"
    install_gate(packages, limit=0.1)
    monkeypatch.syspath_prepend(packages)
    assert read_versions()[:2] == (code, step_code)
    gate_code = read_versions()[2]
    install_gate(packages, limit=0.2)
    assert len({no_gates, gate_code, read_versions()[2]}) == 3


@pytest.mark.parametrize(("group", "is_gate"), [("gates", True), ("canary_checks", False)])
def test_a_gate_or_canary_check_of_the_project_changes_no_other_step(root: Path, group: str, is_gate: bool) -> None:
    code, step_code, gate_code = read_versions()
    path = root / "pipelines" / group / "spread.py"
    path.parent.mkdir(parents=True)
    path.write_text("SPREAD = 0.1\n")
    changed_code, same_step_code, changed_gate_code = read_versions()
    assert (changed_code != code, same_step_code == step_code, changed_gate_code != gate_code) == (True, True, is_gate)
    (root / "pipelines" / "graph.py").write_text("# a step changes\n")
    assert read_versions()[1:] != (step_code, changed_gate_code)


def test_a_folder_that_is_no_repository_has_no_commit(root: Path) -> None:
    assert git_commit.__wrapped__() is None


def test_the_commit_of_an_enclosing_repository_is_ignored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".git").mkdir()
    (root / ".git" / "objects").mkdir()
    (root / ".git" / "refs").mkdir()
    (root / ".git" / "HEAD").write_text("4" * 40)
    assert git_commit.__wrapped__() == "4" * 40
    monkeypatch.setattr(lineage, "project_root", lambda: root / "models")
    assert git_commit.__wrapped__() is None


def test_tags_leave_an_unknown_commit_out() -> None:
    tags = Lineage(spec_digest="s", data_digest="d", days={"train": "2026-01-06..2026-01-07"}, code_version="c").tags()
    assert tags == {
        "spec_digest": "s",
        "data_digest": "d",
        "days.train": "2026-01-06..2026-01-07",
        "code_version": "c",
    }


def test_tags_contain_cause_and_continued_model() -> None:
    decided = {"trigger": "drift", "key": "0123456789abcdef", "reasons": ["surface drifted", "auc fell"]}
    cause = TrainingTrigger.parse({**decided, "until": "2026-01-15T00:00:00+00:00"})
    continued = ContinuedFrom(run="r1", version="3", mode="warm", learnt="2026-01-12..2026-01-13")
    tags = Lineage(spec_digest="s", data_digest="d", days={}, code_version="c", cause=cause, continued=continued).tags()
    assert tags == {
        "spec_digest": "s",
        "data_digest": "d",
        "code_version": "c",
        "trigger": "drift",
        "decision": "0123456789abcdef",
        "reasons": "surface drifted\nauc fell",
        "until": "2026-01-15T00:00:00+00:00",
        "continued_from.run": "r1",
        "continued_from.version": "3",
        "continued_how": "warm",
        "days.learnt": "2026-01-12..2026-01-13",
    }
    assert str(continued) == "warm from version 3, learnt from 2026-01-12..2026-01-13"
    assert TrainingTrigger().tags() == {"trigger": "manual"}


def test_an_unknown_trigger_suggests_the_closest_name() -> None:
    with pytest.raises(
        ShortlistError, match=r"trigger: got 'drfit', wanted manual, schedule, drift; did you mean 'drift'"
    ):
        TrainingTrigger.parse({"trigger": "drfit"})


def test_an_unknown_part_of_the_cause_is_refused() -> None:
    with pytest.raises(ShortlistError, match=r"cause: got 'reason', wanted trigger, key, reasons, until$"):
        TrainingTrigger.parse({"reason": "surface drifted"})


def test_without_a_cause_a_person_started_the_training() -> None:
    assert TrainingTrigger.parse({}) == TrainingTrigger(trigger="manual")
