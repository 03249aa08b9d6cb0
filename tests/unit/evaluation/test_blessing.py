from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shortlist.evaluation.blessing import bless, read_blessing, verify_blessing, write_blessing
from shortlist.evaluation.gates.gate_report import ALWAYS_REQUIRED, GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import GATES, Gate, required_gates
from shortlist.evaluation.metrics.records import ConfidenceInterval, Measures
from shortlist.storage.artefacts import IntegrityError, folder_digest, write_json, write_manifest


def report(model: str, failing_gate: str = "", folder: Path | None = None) -> GateReport:
    digests = write_manifest(folder) if folder else {"model.json": "ab"}
    gates = [
        GateResult(name=name, passed=name != failing_gate, reason=f"{name} says so", numbers={"digests": digests})
        for name in GATES
    ]
    return GateReport.from_results(model, folder_digest(folder) if folder else "00", gates)


def measures(model: str, validation_log_loss: float | None, auc: float = 0.7) -> Measures:
    interval = ConfidenceInterval(low=auc - 0.01, value=auc, high=auc + 0.01)
    return Measures(model=model, role="candidate", auc=interval, validation_log_loss=validation_log_loss)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.json").write_text('{"kind": "dlrm"}')
    return folder


@pytest.fixture
def path(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "blessing.json"
    write_blessing(path, bless([report("dlrm", folder=model)], [measures("dlrm", 0.5)]))
    return path


def test_the_lowest_validation_log_loss_is_chosen_not_the_best_test_auc() -> None:
    blessing = bless(
        [report("xgboost"), report("dlrm")], [measures("xgboost", 0.51, auc=0.75), measures("dlrm", 0.50, auc=0.74)]
    )
    assert blessing.blessed is not None
    assert (blessing.blessed.model, blessing.blessed.validation_log_loss) == ("dlrm", 0.50)
    assert blessing.reasons["xgboost"] == (
        "passes every gate, but validation log loss 0.5100 is not below 0.5000 of 'dlrm'",
    )


def test_a_candidate_that_fails_a_gate_is_not_blessed() -> None:
    blessing = bless(
        [report("xgboost"), report("dlrm", failing_gate="skew")], [measures("xgboost", 0.6), measures("dlrm", 0.5)]
    )
    assert blessing.blessed is not None
    assert blessing.blessed.model == "xgboost"
    assert blessing.reasons["dlrm"] == ("Gate 'skew' holds the candidate: skew says so.",)


def test_no_model_is_blessed_if_all_fail_or_there_are_no_candidates() -> None:
    assert bless([report("dlrm", failing_gate="data")], [measures("dlrm", 0.5)]).blessed is None
    assert bless([], []).blessed is None


@pytest.mark.parametrize("model_measures", [[], [measures("dlrm", None)]])
def test_the_only_passing_candidate_is_blessed_with_any_validation_log_loss(
    model_measures: list[Measures],
) -> None:
    """Trees retrained on all days (`retrain: refit`) may have no validation day to measure them on."""
    blessing = bless([report("dlrm")], model_measures)
    assert blessing.blessed is not None
    assert (blessing.blessed.model, blessing.blessed.validation_log_loss) == ("dlrm", None)
    assert "validation log loss is unknown, and no candidate with a known one passes" in blessing.reasons["dlrm"][0]


def test_a_candidate_with_a_validation_log_loss_is_preferred() -> None:
    blessing = bless([report("dlrm"), report("xgboost")], [measures("dlrm", None), measures("xgboost", 0.6)])
    assert blessing.blessed is not None and blessing.blessed.model == "xgboost"
    assert "its validation log loss is unknown; that of 'xgboost' is known" in blessing.reasons["dlrm"][0]


def test_a_blessed_folder_is_verified(path: Path, model: Path) -> None:
    assert verify_blessing(path, model).blessed == read_blessing(path).blessed


def test_summary_file_has_the_expected_values(path: Path) -> None:
    content = json.loads(path.read_text())
    assert set(content) == {"blessed", "reasons", "numbers", "digests", "gates", "choice", "seal"}
    assert content["blessed"]["model"] == "dlrm"


def test_changed_weights_are_refused(path: Path, model: Path) -> None:
    (model / "model.json").write_text('{"kind": "evil"}')
    with pytest.raises(IntegrityError, match="changed after it was written"):
        verify_blessing(path, model)


def test_other_weights_with_a_manifest_of_their_own_are_refused(path: Path, model: Path) -> None:
    (model / "model.json").write_text('{"kind": "evil"}')
    write_manifest(model)
    with pytest.raises(IntegrityError, match=r"model\.json: not the file that was judged"):
        verify_blessing(path, model)


def test_an_added_file_is_refused(path: Path, model: Path) -> None:
    (model / "more.json").write_text("{}")
    write_manifest(model)
    with pytest.raises(IntegrityError, match=r"more\.json: not the file that was judged"):
        verify_blessing(path, model)


def test_an_edited_blessing_is_refused(path: Path, model: Path) -> None:
    path.write_text(path.read_text().replace("0.5", "0.4"))
    with pytest.raises(IntegrityError, match=r"blessing\.json: changed after it was written"):
        verify_blessing(path, model)


def test_a_resealed_blessing_of_a_failed_model_is_refused(tmp_path: Path, model: Path) -> None:
    blessing = bless([report("dlrm", failing_gate="slices", folder=model)], [measures("dlrm", 0.5)])
    good = bless([report("dlrm", folder=model)], [measures("dlrm", 0.5)])
    write_blessing(tmp_path / "forged.json", blessing.model_copy(update={"blessed": good.blessed}))
    with pytest.raises(IntegrityError, match="blesses 'dlrm', which its own gates hold"):
        verify_blessing(tmp_path / "forged.json", model)


@pytest.fixture
def path_with_spread(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a blessing that was made while a gate of a package, `spread`, was installed; it no longer is."""
    path = tmp_path / "with_spread.json"
    with monkeypatch.context() as installed:
        installed.setitem(GATES, "spread", Gate(lambda _: GateResult(name="spread", passed=True, reason="wide")))
        write_blessing(path, bless([report("dlrm", folder=model)], [measures("dlrm", 0.5)]))
    return path


def edit_report(path: Path, edit: Callable[[dict[str, Any]], object], *, reseal: bool) -> None:
    """Change the report in a blessing, with or without a new seal."""
    content = json.loads(path.read_text())
    edit(content["gates"][0])
    if reseal:
        del content["seal"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["seal"] = hashlib.sha256(text.encode()).hexdigest()
    write_json(path, content)


def remove_result(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update(gates=[gate for gate in content["gates"] if gate["name"] != name])


def remove_requirement(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["required"].remove(name)


def fail_gate(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: next(gate for gate in content["gates"] if gate["name"] == name).update(passed=False)


def test_a_blessing_names_the_gates_that_were_required(path_with_spread: Path) -> None:
    (blessed_report,) = read_blessing(path_with_spread).gates
    assert blessed_report.required == (*required_gates(), "spread")


@pytest.mark.parametrize("edit", [remove_result, remove_requirement, fail_gate])
@pytest.mark.parametrize("name", ["parity", "spread"])
def test_an_edited_gate_of_a_blessing_is_refused(
    path_with_spread: Path, model: Path, edit: Callable[[str], Callable[[dict[str, Any]], object]], name: str
) -> None:
    edit_report(path_with_spread, edit(name), reseal=False)
    with pytest.raises(IntegrityError, match="changed after it was written; run the gates again"):
        verify_blessing(path_with_spread, model)


@pytest.mark.parametrize("edit", [remove_result, fail_gate])
@pytest.mark.parametrize("name", ["parity", "spread"])
def test_a_resealed_blessing_with_a_removed_or_failed_gate_is_refused(
    path_with_spread: Path, model: Path, edit: Callable[[str], Callable[[dict[str, Any]], object]], name: str
) -> None:
    edit_report(path_with_spread, edit(name), reseal=True)
    with pytest.raises(IntegrityError, match=r"passed is True, but its gate results say False\); run the gates again"):
        verify_blessing(path_with_spread, model)


@pytest.mark.parametrize("name", ALWAYS_REQUIRED)
def test_no_blessing_can_leave_out_a_gate_that_is_always_required(
    path_with_spread: Path, model: Path, name: str
) -> None:
    edit_report(path_with_spread, remove_result(name), reseal=True)
    edit_report(path_with_spread, remove_requirement(name), reseal=True)
    with pytest.raises(IntegrityError, match="passed is True, but its gate results say False"):
        verify_blessing(path_with_spread, model)


def test_a_blessing_from_before_required_gates_were_named_is_valid(path: Path, model: Path) -> None:
    """Such a file names no required gates: those of then had to pass, whatever is registered now."""
    edit_report(path, lambda content: content.pop("required"), reseal=True)
    assert verify_blessing(path, model).gates[0].required == ALWAYS_REQUIRED
    edit_report(path, remove_result("parity"), reseal=True)
    with pytest.raises(IntegrityError, match="passed is True, but its gate results say False"):
        verify_blessing(path, model)


def test_verification_reports_the_failed_gate_of_an_unblessed_model(tmp_path: Path, model: Path) -> None:
    write_blessing(
        tmp_path / "held.json", bless([report("dlrm", failing_gate="data", folder=model)], [measures("dlrm", 0.5)])
    )
    with pytest.raises(IntegrityError, match="blesses no model; Gate 'data' holds the candidate: data says so"):
        verify_blessing(tmp_path / "held.json", model)


def test_verification_fails_for_a_missing_or_changed_blessing(tmp_path: Path, model: Path) -> None:
    with pytest.raises(IntegrityError, match="missing"):
        verify_blessing(tmp_path / "blessing.json", model)
    write_json(tmp_path / "foreign.json", {"blessed": {"model": "dlrm"}})
    with pytest.raises(IntegrityError, match="changed after it was written"):
        verify_blessing(tmp_path / "foreign.json", model)
