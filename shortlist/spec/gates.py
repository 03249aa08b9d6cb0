"""The `gates` section: limits that a candidate must meet before it may be promoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, Section
from shortlist.system.registry import resolve_address

"""Registry of the gates with their settings. Named, not imported, because it is in a layer above."""

MIN_DEFAULT_GAUC_DROP: Final = 0.01
"""Smallest default of `max_gauc_drop`."""
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


class Infra(Section):
    """Load test of a real Triton with the exported model, and its limits."""

    rows_per_request: int = Field(default=128, ge=1)
    """Rows of a request."""
    requests_per_second: float = Field(default=20, gt=0)
    """Request rate, open loop."""
    seconds: float = Field(default=3, gt=0)
    """Duration of the load."""
    max_p50_ms: float = Field(default=100, gt=0)
    """Largest median latency."""
    max_p99_ms: float = Field(default=500, gt=0)
    """Largest 99th percentile of latency."""
    slates_per_second: float = Field(default=5, gt=0)
    """Rate of whole slates, open loop, on the servers of a release before it gets users; only with retrieval."""
    max_slate_p50_ms: float = Field(default=250, gt=0)
    """Largest median latency of a slate: candidates, filters, the user's and the items' features, scores, order."""
    max_slate_p99_ms: float = Field(default=1_000, gt=0)
    """Largest 99th percentile of the latency of slates."""
    max_memory_mib: float = Field(default=4_096, gt=0)
    """Most resident memory of the server and its child processes."""
    max_cold_start_seconds: float = Field(default=60, gt=0)
    """Longest time from start to ready."""


def _parse_gate_settings(settings_by_gate: object) -> object:
    """Return the settings of each gate, parsed by the section that the gate declares."""
    if not isinstance(settings_by_gate, Mapping) or not settings_by_gate:
        return settings_by_gate
    sections = {name: gate.settings for name, gate in resolve_address("gates").complete().items() if gate.settings}
    for name in settings_by_gate:
        if name not in sections:
            raise ValueError(f"'{name}' is no gate with settings of its own{did_you_mean(str(name), sections)}")
    return {name: _parse_settings(name, sections[name], settings) for name, settings in settings_by_gate.items()}


def _parse_settings(gate: str, section: type[Section], settings: object) -> Section:
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        # The key path of a nested section would lack the gate's name.
        details: list[InitErrorDetails] = [
            {
                "type": problem["type"],
                "loc": (gate, *problem["loc"]),
                "input": problem["input"],
                "ctx": problem.get("ctx", {}),
            }
            for problem in error.errors()
        ]
        raise ValidationError.from_exception_data("gates.custom", details) from None


class Gates(Section):
    """Limits of the gates; every gate always runs."""

    confidence: Probability = 0.95
    """Confidence level of all intervals."""
    bootstrap_rounds: int = Field(default=200, ge=50, le=10_000)
    """Resamples of users (of rows when there are no users) for each interval."""
    min_test_rows: int = Field(default=2_000, ge=100)
    """Fewest test rows; the candidate is held below it."""
    min_auc: float = Field(default=0.55, ge=0.5, le=1.0)
    """Minimum of the lower bound of the test AUC."""
    max_log_loss: float | None = Field(default=None, gt=0)
    """Maximum of the upper bound of the test log loss; null: it must only be below that of a constant rate."""
    metric: Literal["auc", "gauc"] | None = None
    """The metric by which a candidate is compared with the champion, and by which the best of several passing
    candidates is chosen. `gauc`: AUC within each user, weighted by the user's rows. null: `gauc` where the log names
    users and 100 or more of them have clicks and other rows on the test days, else `auc`."""
    baseline: str | None = Field(default=None, min_length=1, max_length=31)
    """Name of the baseline that candidates have to beat; null: popularity."""
    min_gain_over_baseline: float = Field(default=0.0, ge=0.0, le=0.5)
    """Minimum gain in AUC over that baseline, by the lower bound of a paired bootstrap: both models on the same rows of
    the same resampled users."""
    min_gauc_gain: float | None = Field(default=0.0, ge=0.0, le=0.5)
    """Likewise for the GAUC, where `metric` is GAUC; where it is AUC, only a value above 0 is checked. null: not
    checked."""
    max_auc_drop: float = Field(default=0.002, ge=0.0003, le=0.1)
    """Non-inferiority margin against the champion where `metric` is AUC; seeds alone differ by up to 3e-4."""
    max_gauc_drop: float | None = Field(default=None, ge=0.0003, le=0.2)
    """Likewise where it is GAUC. null: `max_auc_drop`, but at least 0.01, because GAUC varies more between seeds."""
    compare_with_best: bool = True
    """Whether the margin also applies to the best champion so far, where the present champion is worse by less than the
    margin; this keeps many small drops from adding up. False: only the champion is compared, and whoever passes becomes
    the best so far."""
    max_calibration_error: float = Field(default=0.03, gt=0, le=1)
    """Largest expected calibration error (20 equal-count bins) on the test rows."""
    max_rate_error: float = Field(default=0.1, gt=0, le=1)
    """Largest relative difference between mean score and label rate on the test rows."""
    decision_threshold: Probability | None = None
    """Smallest score of a positive row in Kubeflow's confusion matrix; null: the label rate. No gate uses it."""
    slices: Names = ()
    """Columns by whose values the test rows are sliced; cold users and cold items are always slices."""
    min_slice_rows: int = Field(default=500, ge=50)
    """Slices with fewer test rows are reported, not gated."""
    max_slices: int = Field(default=30, ge=1, le=1_000)
    """Number of a column's most frequent values that become slices."""
    max_slice_auc_drop: float = Field(default=0.02, gt=0, le=0.5)
    """Margin by which a slice may fall behind the champion (without one: behind the baseline), Holm-corrected."""
    skew_rows: int = Field(default=500, ge=10, le=100_000)
    """Rows of the feature table that are compared with Feast's answers."""
    parity_rows: int = Field(default=10_000, ge=10)
    """Test rows that are scored in-process, by the exported file and by a real Triton; all if there are fewer."""
    max_score_difference: float = Field(default=1e-5, gt=0, le=0.01)
    """Largest difference between those scores."""
    infra: Infra = Infra()
    """Limits under load."""
    custom: Annotated[Mapping[str, Any], BeforeValidator(_parse_gate_settings)] = Field(default={}, max_length=100)
    """Settings of gates that were added to the registry, by the name of the gate."""

    @property
    def margin(self) -> dict[str, float]:
        """The non-inferiority margin against the champion, by the metric that may decide."""
        usual = max(self.max_auc_drop, MIN_DEFAULT_GAUC_DROP)
        return {"auc": self.max_auc_drop, "gauc": usual if self.max_gauc_drop is None else self.max_gauc_drop}
