"""The `gates` section: what a candidate must show before it may ship."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, Section

_REGISTRY: Final = "shortlist.evaluation.gates:GATES"
"""Named and not imported, for it lies above this layer: each gate says there which settings are its own."""

COARSEST_GAUC: Final = 0.01
"""Smallest usual margin of GAUC against the champion."""
Probability = Annotated[float, Field(gt=0.0, lt=1.0)]


class Infra(Section):
    """What a real Triton with the exported model must show under load."""

    rows_per_request: int = Field(default=128, ge=1)
    """Rows of a request of the load."""
    requests_per_second: float = Field(default=20, gt=0)
    """The load, open loop."""
    seconds: float = Field(default=3, gt=0)
    """How long it lasts."""
    max_p50_ms: float = Field(default=100, gt=0)
    """Longest median answer."""
    max_p99_ms: float = Field(default=500, gt=0)
    """Longest 99th percentile."""
    slates_per_second: float = Field(default=5, gt=0)
    """The load of whole slates, open loop, on the servers of a release before users see it; where it has retrieval."""
    max_slate_p50_ms: float = Field(default=250, gt=0)
    """Longest median slate: candidates, filters, the user's and the items' features, scores, order."""
    max_slate_p99_ms: float = Field(default=1_000, gt=0)
    """Longest 99th percentile of slates."""
    max_memory_mib: float = Field(default=4_096, gt=0)
    """Most resident memory of the server and what it starts."""
    max_cold_start_seconds: float = Field(default=60, gt=0)
    """Longest time from start to ready."""


def _read_by_their_gates(given: object) -> object:
    """Return the settings of each gate as the section that it declares."""
    if not isinstance(given, Mapping) or not given:
        return given
    sections = {name: gate.settings for name, gate in resolve_name(_REGISTRY).complete().items() if gate.settings}
    for name in given:
        if name not in sections:
            raise ValueError(f"'{name}' is no gate with settings of its own{did_you_mean(str(name), sections)}")
    return {name: sections[name].model_validate(settings) for name, settings in given.items()}


class Gates(Section):
    """Limits of the gates; every gate always runs."""

    confidence: Probability = 0.95
    """Level of every interval."""
    bootstrap_rounds: int = Field(default=200, ge=50, le=10_000)
    """Resamples of users (of rows when there are no users) behind every interval."""
    min_test_rows: int = Field(default=2_000, ge=100)
    """Fewer test rows hold the candidate."""
    min_auc: float = Field(default=0.55, ge=0.5, le=1.0)
    """The lower bound of the test AUC must reach it."""
    max_log_loss: float | None = Field(default=None, gt=0)
    """The upper bound of the test log loss may not pass it; null asks only to beat a constant rate."""
    metric: Literal["auc", "gauc"] | None = None
    """The metric that decides: by it a candidate must not fall behind the champion, and of several that pass every gate
    the best is chosen. `gauc`: AUC within each user, weighted by the user's rows; how one user's items are ordered.
    null: `gauc` where the log names users and 100 or more of them have clicks and other rows on the test days, else
    `auc`."""
    baseline: str | None = Field(default=None, min_length=1, max_length=31)
    """Name of the baseline that candidates have to beat; null: popularity."""
    min_gain_over_baseline: float = Field(default=0.0, ge=0.0, le=0.5)
    """The AUC must be above that baseline's by this, by the lower bound of a paired bootstrap: both models on the same
    rows of the same resampled users."""
    min_gauc_gain: float | None = Field(default=0.0, ge=0.0, le=0.5)
    """Likewise for the GAUC, where it decides; where AUC does, only a value above 0 asks for it. null: it need not be
    above the baseline's."""
    max_auc_drop: float = Field(default=0.002, ge=0.0003, le=0.1)
    """Non-inferiority margin against the champion where AUC decides; finer than 3e-4 is noise between seeds."""
    max_gauc_drop: float | None = Field(default=None, ge=0.0003, le=0.2)
    """Likewise where GAUC decides. null: `max_auc_drop`, but at least 0.01, for GAUC varies more between seeds."""
    compare_with_best: bool = True
    """Whether that margin also holds against the best champion so far, where a worse one within the margin serves now:
    so many small steps down do not add up. False: only against the champion; who then passes is the best so far."""
    max_calibration_error: float = Field(default=0.03, gt=0, le=1)
    """Largest expected calibration error (20 equal-count bins) on the test rows."""
    max_rate_error: float = Field(default=0.1, gt=0, le=1)
    """Largest relative difference between mean score and label rate on the test rows."""
    decision_threshold: Probability | None = None
    """Score from which on Kubeflow's confusion matrix counts a row as positive; null: the label rate. No gate asks."""
    slices: Names = ()
    """Columns by whose values the test rows are sliced; cold users and cold items are always slices."""
    min_slice_rows: int = Field(default=500, ge=50)
    """Slices with fewer test rows are reported, not judged."""
    max_slices: int = Field(default=30, ge=1, le=1_000)
    """Most values of a column that become slices, the most frequent ones."""
    max_slice_auc_drop: float = Field(default=0.02, gt=0, le=0.5)
    """Margin by which a slice may fall behind the champion (without one: behind the baseline), Holm-corrected."""
    skew_rows: int = Field(default=500, ge=10, le=100_000)
    """Rows of the feature table compared with Feast's own answers."""
    parity_rows: int = Field(default=10_000, ge=10)
    """Test rows scored in-process, by the exported file and by a real Triton; fewer only when there are fewer."""
    max_score_difference: float = Field(default=1e-5, gt=0, le=0.01)
    """Largest difference between those scores."""
    infra: Infra = Infra()
    """Limits under load."""
    custom: Annotated[Mapping[str, Any], BeforeValidator(_read_by_their_gates)] = Field(default={}, max_length=100)
    """Settings of gates that were added to the registry, by the name of the gate."""

    @property
    def margin(self) -> dict[str, float]:
        """The non-inferiority margin against the champion, by the metric that may decide."""
        usual = max(self.max_auc_drop, COARSEST_GAUC)
        return {"auc": self.max_auc_drop, "gauc": usual if self.max_gauc_drop is None else self.max_gauc_drop}
