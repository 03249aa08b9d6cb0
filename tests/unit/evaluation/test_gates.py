"""Every gate: what it holds, missing data, and its reasons."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import (
    GATES,
    absolute_gate,
    calibration_gate,
    champion_gate,
    data_gate,
    integrity_gate,
    required_gates,
    skew_gate,
    slices_gate,
)
from shortlist.evaluation.metrics.records import (
    Champion,
    ConfidenceInterval,
    Measures,
    Metric,
    MetricDifference,
    PairedComparison,
    SkewMeasures,
    SliceComparison,
    UserShare,
)
from shortlist.spec.gates import Gates

LIMITS = Gates()
LOG = {"raw_rows": 10_000, "valid_rows": 9_990, "quarantined_rows": 10}
MISSING = Measures(model="xgboost", role="candidate", problem="scores.parquet is missing; the model was not scored")


def measures(**changed: Any) -> Measures:
    good = {
        "model": "xgboost",
        "role": "candidate",
        "rows": 4_000,
        "positives": 1_000,
        "auc": ConfidenceInterval(low=0.70, value=0.72, high=0.74),
        "log_loss": ConfidenceInterval(low=0.48, value=0.50, high=0.52),
        "constant_rate_gap": ConfidenceInterval(low=-0.07, value=-0.06, high=-0.05),
        "calibration_error": 0.02,
        "calibration_noise": 0.01,
        "mean_score": 0.255,
        "label_rate": 0.25,
    }
    return Measures(**{**good, **changed})


GAIN = PairedComparison(
    reference="popularity",
    differences={"auc": MetricDifference(candidate=0.72, reference=0.62, value=0.1, low=0.09, error=0.006, rows=4_000)},
)


def difference(value: float, low: float) -> MetricDifference:
    return MetricDifference(
        candidate=0.75 + value, reference=0.75, value=value, low=low, error=(value - low) / 1.645, rows=4_000
    )


def gain(low: float, gauc_low: float | None = None, reference: str = "popularity") -> PairedComparison:
    """A candidate against the baseline: AUC 0.72 against 0.62, with these lower bounds of the differences."""
    differences: dict[Metric, MetricDifference] = {"auc": difference(0.1, low)}
    if gauc_low is not None:
        differences["gauc"] = difference(0.02, gauc_low).model_copy(update={"metric": "gauc"})
    return PairedComparison(reference=reference, differences=differences)


def comparison_of(difference: MetricDifference) -> PairedComparison:
    return PairedComparison(reference="champion", differences={difference.metric: difference})


def a_slice(p_value: float | None, judged: bool = True) -> SliceComparison:
    gap = difference(-0.05, -0.07) if judged else None
    return SliceComparison(column="tab", value="2", rows=900, positives=90, difference=gap, p_value=p_value)


class TestData:
    def test_passes_a_validated_log(self) -> None:
        gate_result = data_gate(LOG, measures(), LIMITS)
        assert gate_result.passed
        assert gate_result.reason == "9 990 valid rows, 10 in quarantine, 4 000 test rows"

    def test_names_users_with_many_rows(self) -> None:
        crawler = UserShare(user="999999", share=0.231, label_rate=0.003)
        gate_result = data_gate(LOG, measures(heavy_users=(crawler,)), LIMITS)
        assert gate_result.passed
        assert "; user 999999 has 23.1% of them, 0.3% positive: a crawler's rows" in gate_result.reason

    @pytest.mark.parametrize("log", [None, {}, {"raw_rows": 5, "valid_rows": 0, "quarantined_rows": 5}])
    def test_holds_without_validated_rows(self, log: dict[str, int] | None) -> None:
        assert "the log was not validated" in _failure_reason(data_gate(log, measures(), LIMITS))

    def test_holds_when_rows_vanished(self) -> None:
        lost = {**LOG, "valid_rows": 9_900}
        assert "90 of 10 000 raw rows are neither valid nor in quarantine" in _failure_reason(
            data_gate(lost, measures(), LIMITS)
        )

    def test_holds_with_too_few_test_rows(self) -> None:
        assert "1 999 test rows < 2 000" in _failure_reason(data_gate(LOG, measures(rows=1_999), LIMITS))

    @pytest.mark.parametrize("positives", [0, 4_000])
    def test_holds_with_one_class(self, positives: int) -> None:
        reason = _failure_reason(data_gate(LOG, measures(positives=positives), LIMITS))
        assert reason == f"one class: {positives:,} positives in 4 000 test rows".replace("4,000", "4 000")

    def test_holds_without_scores(self) -> None:
        reason = _failure_reason(data_gate(LOG, MISSING, LIMITS))
        assert "0 test rows < 2 000" in reason
        assert "scores.parquet is missing" in reason


def skew(**changed: Any) -> SkewMeasures:
    good = {"rows_checked": 500, "keys_checked": 900, "historical_mismatches": 0, "online_mismatches": 0}
    return SkewMeasures(**{**good, "row_count_ok": True, "columns": {"users:rows": 0, "items:rows": 0}, **changed})


def lead(low: float, metric: Metric = "auc", reference: str = "trees") -> PairedComparison:
    ahead = difference(0.01, low).model_copy(update={"metric": metric})
    return PairedComparison(reference=reference, differences={metric: ahead})


class TestMembers:
    def test_passes_an_ensemble_that_beats_each_member_with_its_leads(self) -> None:
        gate_result = absolute_gate(measures(), GAIN, "auc", LIMITS, [lead(0.002), lead(0.005, reference="network")])
        assert gate_result.passed
        assert (
            "lead +0.0100, lower bound +0.0020 over trees, AUC lead +0.0100, lower bound +0.0050 over network"
            in gate_result.reason
        )
        assert set(gate_result.numbers["members"]) == {"trees", "network"}

    @pytest.mark.parametrize("low", [0.0, -0.001])
    def test_holds_an_ensemble_that_does_not_beat_its_best_member(self, low: float) -> None:
        reason = _failure_reason(
            absolute_gate(measures(), GAIN, "auc", LIMITS, [lead(0.005, reference="network"), lead(low)])
        )
        assert reason == (
            f"AUC lead +0.0100, lower bound {low:+.4f} <= 0 (0.7600 against 0.7500 of its member trees on the same"
            " 4 000 test rows; one-sided 95% bound): trees alone would do"
        )

    def test_members_are_compared_by_the_deciding_metric(self) -> None:
        reason = _failure_reason(absolute_gate(measures(), gain(0.05, 0.01), "gauc", LIMITS, [lead(-0.003, "gauc")]))
        assert reason.startswith("GAUC lead +0.0100, lower bound -0.0030 <= 0")

    def test_holds_without_a_comparison_with_a_member(self) -> None:
        unread = PairedComparison(reference="trees", differences={}, problem="scores.parquet is missing")
        reason = _failure_reason(absolute_gate(measures(), GAIN, "auc", LIMITS, [unread]))
        assert reason == "its member trees: no comparison, scores.parquet is missing"


class TestSkew:
    def test_passes_equal_answers(self) -> None:
        assert skew_gate(skew(), 4_000, LIMITS).passed

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"historical_mismatches": 3, "columns": {"users:rows": 1, "users:sum": 2, "items:rows": 0}},
                r"3 answers differ from Feast's historical ones \(most in users:sum, users:rows\)",
            ),
            ({"online_mismatches": 1}, "1 answers differ from Feast's online ones"),
            ({"row_count_ok": False}, "another number of rows than it was asked for"),
            ({"rows_checked": 0}, "only 0 rows were compared with Feast, wanted 500"),
            (
                {"rows_checked": 499},
                r"only 499 .* wanted 500 \(gates.skew_rows.*; the days of the log hold too few rows .*Give more",
            ),
            ({"keys_checked": 0}, "no value was compared"),
        ],
    )
    def test_holds(self, changed: dict[str, Any], message: str) -> None:
        assert re.search(message, _failure_reason(skew_gate(skew(**changed), 4_000, LIMITS)))

    def test_holds_without_a_report(self) -> None:
        assert _failure_reason(skew_gate(None, 4_000, LIMITS)) == "no report of a comparison with Feast"

    def test_small_logs_need_all_rows_and_at_least_one_row(self) -> None:
        assert skew_gate(skew(rows_checked=100), 100, LIMITS).passed
        assert not skew_gate(skew(rows_checked=0), 0, LIMITS).passed


class TestAbsolute:
    def test_passes_above_floor_and_popularity(self) -> None:
        gate_result = absolute_gate(measures(), GAIN, "auc", LIMITS)
        assert gate_result.passed
        assert "AUC gain +0.1000, lower bound +0.0900 over popularity" in gate_result.reason

    def test_holds_when_only_the_value_reaches_the_floor(self) -> None:
        weak = measures(auc=ConfidenceInterval(low=0.549, value=0.56, high=0.57))
        reason = _failure_reason(absolute_gate(weak, GAIN, "auc", LIMITS))
        assert reason == "AUC, lower bound 0.5490 < 0.5500 (min_auc; 95% bound, 4 000 test rows)"

    def test_holds_a_log_loss_no_better_than_a_constant_rate(self) -> None:
        useless = measures(constant_rate_gap=ConfidenceInterval(low=-0.02, value=-0.01, high=0.001))
        reason = _failure_reason(absolute_gate(useless, GAIN, "auc", LIMITS))
        expected = "of a constant rate (difference -0.0100, upper bound +0.0010 >= 0)"
        assert reason.startswith(f"log loss 0.5000 against 0.5100 {expected}")
        unknown = _failure_reason(absolute_gate(measures(constant_rate_gap=None), GAIN, "auc", LIMITS))
        assert "not compared with that of a constant rate" in unknown

    def test_holds_a_log_loss_above_max_log_loss(self) -> None:
        strict = LIMITS.model_copy(update={"max_log_loss": 0.51})
        assert "log loss 0.5200 >= 0.5100 (max_log_loss" in _failure_reason(
            absolute_gate(measures(), GAIN, "auc", strict)
        )

    def test_holds_a_model_that_is_not_shown_to_beat_popularity(self) -> None:
        assert _failure_reason(absolute_gate(measures(), gain(-0.001), "auc", LIMITS)) == (
            "AUC gain +0.1000, lower bound -0.0010 <= 0.0000 (0.8500 against 0.7500 of popularity on the same 4 000"
            " test rows; one-sided 95% bound, min_gain_over_baseline)"
        )

    def test_holds_a_gain_below_the_declared_gain(self) -> None:
        demanding = LIMITS.model_copy(update={"min_gain_over_baseline": 0.1})
        assert "lower bound +0.0900 <= 0.1000" in _failure_reason(absolute_gate(measures(), GAIN, "auc", demanding))

    def test_holds_a_model_without_a_gauc_gain(self) -> None:
        """The AUC is far above popularity's, but the GAUC is not."""
        reason = _failure_reason(absolute_gate(measures(), gain(0.09, gauc_low=-0.004), "gauc", LIMITS))
        assert reason.startswith(
            "GAUC gain +0.0200, lower bound -0.0040 <= 0.0000 (0.7700 against 0.7500 of popularity"
        )
        assert reason.endswith("min_gauc_gain)")
        assert absolute_gate(measures(), gain(0.09, gauc_low=-0.004), "auc", LIMITS).passed

    def test_the_floor_of_gauc_can_be_raised_and_left_out(self) -> None:
        comparison = gain(0.09, gauc_low=0.004)
        assert absolute_gate(measures(), comparison, "gauc", LIMITS).passed
        raised, unlimited = (LIMITS.model_copy(update={"min_gauc_gain": floor}) for floor in (0.01, None))
        assert "lower bound +0.0040 <= 0.0100" in _failure_reason(absolute_gate(measures(), comparison, "gauc", raised))
        assert absolute_gate(measures(), gain(0.09, gauc_low=-0.5), "gauc", unlimited).passed

    def test_a_declared_gauc_gain_is_checked_where_auc_decides(self) -> None:
        declared = LIMITS.model_copy(update={"min_gauc_gain": 0.01})
        reason = _failure_reason(absolute_gate(measures(), gain(0.09, gauc_low=0.004), "auc", declared))
        assert reason.startswith("GAUC gain +0.0200, lower bound +0.0040 <= 0.0100")
        assert absolute_gate(measures(), gain(0.09, gauc_low=0.011), "auc", declared).passed

    def test_holds_where_gauc_decides_and_cannot_be_measured(self) -> None:
        reason = _failure_reason(absolute_gate(measures(), GAIN, "gauc", LIMITS))
        assert reason == "no GAUC to compare: too few users have rows of both classes"

    @pytest.mark.parametrize("problem", ["popularity has no scores", "they were not scored on the same rows", ""])
    def test_holds_without_a_comparison(self, problem: str) -> None:
        missing = PairedComparison(reference="popularity", problem=problem)
        reason = _failure_reason(absolute_gate(measures(), missing, "auc", LIMITS))
        assert reason == f"no baseline to beat: {problem or 'popularity was not scored'}"

    @pytest.mark.parametrize("candidate", [MISSING, measures(auc=None), measures(log_loss=None)])
    def test_holds_without_numbers(self, candidate: Measures) -> None:
        assert "no numbers" in _failure_reason(absolute_gate(candidate, GAIN, "auc", LIMITS))


class TestChampion:
    CHAMPION = Champion(version="17")

    def test_passes_without_a_champion(self) -> None:
        gate_result = champion_gate(Champion(version=""), None, "auc", LIMITS)
        assert (gate_result.passed, gate_result.reason) == (True, "first model: there is no champion yet")

    def test_passes_within_the_margin(self) -> None:
        assert champion_gate(self.CHAMPION, comparison_of(difference(0.0, -0.002)), "auc", LIMITS).passed

    def test_holds_beyond_the_margin_even_when_the_value_is_better(self) -> None:
        reason = _failure_reason(champion_gate(self.CHAMPION, comparison_of(difference(0.001, -0.0021)), "auc", LIMITS))
        assert reason == (
            "AUC difference +0.0010, lower bound -0.0021 < -0.0020 (0.7510 against 0.7500 of the champion, version 17;"
            " one-sided 95% bound, 4 000 test rows)"
        )

    def test_gauc_has_its_own_margin(self) -> None:
        lower = comparison_of(difference(0.0, -0.008).model_copy(update={"metric": "gauc"}))
        assert champion_gate(self.CHAMPION, lower, "gauc", LIMITS).passed  # 0.01 where none is declared
        strict = LIMITS.model_copy(update={"max_gauc_drop": 0.005})
        reason = _failure_reason(champion_gate(self.CHAMPION, lower, "gauc", strict))
        assert reason.startswith("GAUC difference +0.0000, lower bound -0.0080 < -0.0050")

    @pytest.mark.parametrize(
        ("champion", "comparison", "message"),
        [
            (None, None, "whether there is a champion was not looked up"),
            (CHAMPION, None, "champion, version 17: no comparison, it was not scored"),
            (CHAMPION, PairedComparison(reference="champion", problem="not scored on the same rows"), "the same rows"),
            (CHAMPION, comparison_of(difference(0.1, 0.09).model_copy(update={"metric": "gauc"})), "too few users"),
            (
                Champion(version="17", problem="its features are gone"),
                comparison_of(difference(0.1, 0.09)),
                "its features are gone",
            ),
        ],
    )
    def test_holds_what_cannot_be_compared(
        self, champion: Champion | None, comparison: PairedComparison | None, message: str
    ) -> None:
        assert message in _failure_reason(champion_gate(champion, comparison, "auc", LIMITS))


class TestCalibration:
    def test_passes_probabilities(self) -> None:
        assert calibration_gate(measures(), LIMITS).passed

    def test_holds_a_calibration_error_above_chance_plus_the_limit(self) -> None:
        off = measures(calibration_error=0.05, calibration_noise=0.01)
        reason = "calibration error 0.0500, of which 0.0100 is expected by chance and subtracted: 0.0400 > 0.0300"
        assert _failure_reason(calibration_gate(off, LIMITS)) == f"{reason} (max_calibration_error)"

    def test_passes_what_is_only_chance(self) -> None:
        assert calibration_gate(measures(calibration_error=0.04, calibration_noise=0.037), LIMITS).passed

    def test_holds_a_mean_score_above_the_label_rate(self) -> None:
        high = measures(mean_score=0.28)  # 0.28 / 0.25 - 1 = 0.12
        assert "rate error 0.120 > 0.100 (mean score 0.2800, label rate 0.2500)" in _failure_reason(
            calibration_gate(high, LIMITS)
        )

    @pytest.mark.parametrize(
        "candidate", [MISSING, measures(calibration_error=None), measures(mean_score=None), measures(label_rate=0.0)]
    )
    def test_holds_without_numbers(self, candidate: Measures) -> None:
        assert "no " in _failure_reason(calibration_gate(candidate, LIMITS))


class TestSlices:
    DECLARED = LIMITS.model_copy(update={"slices": ("tab",)})

    def test_passes_slices_that_kept_up(self) -> None:
        gate_result = slices_gate([a_slice(0.4), a_slice(None, judged=False)], "popularity", self.DECLARED)
        assert gate_result.reason == "1 slices not behind popularity by more than 0.020, 1 not judged"
        assert gate_result.passed

    def test_holds_and_names_the_slice_that_fell_behind(self) -> None:
        reason = _failure_reason(slices_gate([a_slice(0.5), a_slice(0.01)], "the champion", self.DECLARED))
        assert reason == (
            "tab = 2: AUC 0.7000 against 0.7500 of the champion, a gap of -0.0500 beyond -0.0200 (p = 0.01, 900 rows)"
        )

    @pytest.mark.parametrize("slices", [[], [a_slice(None, judged=False)]])
    def test_holds_when_no_declared_slice_can_be_judged(self, slices: list[SliceComparison]) -> None:
        assert f"none of {len(slices)} slices could be judged" in _failure_reason(
            slices_gate(slices, "popularity", self.DECLARED)
        )
        assert slices_gate(slices, "popularity", LIMITS).passed  # nothing declared: cold slices are reported only

    def test_holds_when_slices_were_not_compared(self) -> None:
        assert _failure_reason(slices_gate(None, "popularity", LIMITS)) == "the slices were not compared"
        assert _failure_reason(slices_gate(None, "popularity", LIMITS, "no test rows")) == "no test rows"

    def test_holds_a_judged_slice_without_p_value(self) -> None:
        assert "p = None" in _failure_reason(slices_gate([a_slice(None)], "popularity", LIMITS))


class TestIntegrity:
    def test_passes_verified_files(self) -> None:
        assert integrity_gate({"model.json": "ab"}).passed

    @pytest.mark.parametrize("digests", [None, {}])
    def test_holds_without_files(self, digests: dict[str, str] | None) -> None:
        assert _failure_reason(integrity_gate(digests)) == "no verified files"

    def test_holds_with_a_problem(self) -> None:
        assert _failure_reason(integrity_gate({"model.json": "ab"}, "weights changed")) == "weights changed"


class TestReport:
    PASSES = tuple(GateResult(name=name, passed=True, reason="fine") for name in GATES)

    def test_report_passes_if_every_gate_passes(self) -> None:
        report = GateReport.from_results("xgboost", "ab12", self.PASSES)
        assert report.passed
        assert report.holds == ()

    def test_one_failed_gate_fails_the_report(self) -> None:
        failed_gate = GateResult(name="skew", passed=False, reason="3 answers differ")
        gate_results = [failed_gate if gate.name == "skew" else gate for gate in self.PASSES]
        report = GateReport.from_results("xgboost", "ab12", gate_results)
        assert not report.passed
        assert report.holds == ("Gate 'skew' holds the candidate: 3 answers differ.",)

    @pytest.mark.parametrize("left_out", sorted(required_gates()))
    def test_a_report_without_a_required_gate_does_not_pass(self, left_out: str) -> None:
        report = GateReport.from_results("xgboost", "ab12", [gate for gate in self.PASSES if gate.name != left_out])
        assert not report.passed
        assert report.holds == (f"Gate '{left_out}' holds the candidate: it gave no result.",)

    def test_an_edited_report_is_refused(self) -> None:
        content = GateReport.from_results("xgboost", "ab12", ()).model_dump()
        with pytest.raises(ValidationError, match="passed is True, but its gate results say False"):
            GateReport.model_validate({**content, "passed": True})

    def test_nan_is_left_out_of_the_metrics(self) -> None:
        with pytest.raises(ValidationError, match="finite number"):
            ConfidenceInterval(low=0.1, value=float("nan"), high=0.2)


def _failure_reason(gate_result: GateResult) -> str:
    assert not gate_result.passed
    assert gate_result.message.startswith(f"Gate '{gate_result.name}' holds the candidate: ")
    return gate_result.reason
