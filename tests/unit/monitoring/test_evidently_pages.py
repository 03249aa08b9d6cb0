from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.drift.drift_statistics import population_stability_index
from monitoring.pages.evidently_columns import DrawnColumn, make_drawn_columns, sample_requests, scores_of_one_version
from monitoring.pages.evidently_pages import write_pages
from monitoring.reference.distributions import Bins, Kind, make_bins
from monitoring.reference.reference import ColumnReference, ModelReference, Reference
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import Finding
from shortlist.contracts import ShortlistError
from shortlist.spec.monitoring import DriftLimits
from tests.page_rules import HOSTILE as ANY_PAGES
from tests.page_rules import injected, leave_for_browser

KINDS: dict[str, Kind] = {
    "item_id": "categorical", "device": "categorical", "duration": "numeric", "age": "numeric", "tags": "tags",
}  # fmt: skip


def traffic(count: int, seed: int, phone: float = 0.6) -> pl.DataFrame:
    """Return rows of requests of 5; labels are drawn with the scores as probabilities."""
    generator = np.random.default_rng(seed)
    scores = generator.beta(1, 3, count)
    durations = generator.lognormal(3, 1.5, count)
    return pl.DataFrame(
        {
            "request_id": [f"r{number // 5}" for number in range(count)],
            "row": np.arange(count, dtype=np.int32) % 5,
            "user": [f"u{number // 15}" for number in range(count)],
            "version": np.full(count, 3),
            "score": scores.astype(np.float32),
            "label": (generator.random(count) < scores).astype(np.int8),
            "item_id": generator.integers(0, 500, count),
            "device": generator.choice(["phone", "tablet", "tv"], count, p=[phone, 0.9 - phone, 0.1]),
            "duration": pl.Series(np.where(generator.random(count) < 0.05, np.nan, durations)).fill_nan(None),
            "age": generator.integers(18, 80, count),
            "tags": [["a", "b"]] * count,
        }
    )


def window_of(rows: pl.DataFrame) -> LiveWindow:
    start, end = datetime(2026, 1, 19, tzinfo=UTC), datetime(2026, 1, 20, tzinfo=UTC)
    return LiveWindow(start, end, rows["request_id"].n_unique(), rows, 1.0, 0, 0, 0, 0, rows.select("version", "score"))


def column_reference(values: pl.Series, kind: Kind) -> ColumnReference:
    bins = make_bins(values, kind, DriftLimits())
    counts = (tuple(bins.count(values).tolist()),)
    return ColumnReference(bins=bins, counts=counts, nulls=values.null_count() / values.len(), rows=values.len())


def reference_of(rows: pl.DataFrame) -> Reference:
    scores = column_reference(rows["score"], "numeric")
    model = ModelReference(
        model="xgboost", scores=scores, mean_score=0.25, label_rate=0.25, auc=0.78, log_loss=0.45, hit_rate=0.5,
        rows=rows.height,
    )  # fmt: skip
    columns = {name: column_reference(rows[name], kind) for name, kind in KINDS.items()}
    sample = rows.select("user", "label", *KINDS, pl.col("score").alias("score:xgboost"))
    return Reference("demo", (date(2026, 1, 18),), columns, {}, {"xgboost": model}, sample)


REFERENCE = reference_of(traffic(1_000, seed=1))


def drawn_columns(live: pl.DataFrame, reference: Reference = REFERENCE) -> dict[str, DrawnColumn]:
    sample = reference.sample.with_columns(score=pl.col("score:xgboost"))
    return {column.name: column for column in make_drawn_columns(live, sample, reference, "xgboost", KINDS)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Both pages of a window with drifted devices, drawn without network access."""

    def refuse(*_: object) -> None:
        raise AssertionError("somebody wants to talk to the network")

    findings = (
        Finding(column="age", kind="numeric", effect=0, critical=0.0, p_value=1, drifted=False, reason=""),
        Finding(column="age", kind="unknown", effect=0, critical=9.0, p_value=1, drifted=False, reason=""),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.socket.connect", refuse)
        patch.setattr("socket.getaddrinfo", refuse)
        live = window_of(traffic(1_000, seed=2, phone=0.1))
        written = write_pages(live, REFERENCE, "xgboost", KINDS, tmp_path_factory.mktemp("pages"), 600, 0, findings)
    html = {path.name: path.read_text(encoding="utf-8") for path in written}
    for name, page in html.items():
        leave_for_browser(page, f"evidently-{Path(name).stem}")
    return html


def test_both_pages_have_titles_and_headings(pages: dict[str, str]) -> None:
    assert list(pages) == ["drift.html", "quality.html"]
    for kind, html in (("Drift", pages["drift.html"]), ("Quality", pages["quality.html"])):
        title = f"{kind}: demo, 2026-01-19 00:00 to 2026-01-20 00:00, xgboost"
        assert f"<title>{title}</title>" in html
        assert f">{title}</h1>" in html
        assert html.index("<main>") < html.index(f">{title}</h1>") < html.rindex("</main>") < html.rindex("</body>")
    assert "ROC AUC" in pages["quality.html"]


class Scripts(HTMLParser):
    """Counts the tags and event handlers of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.handlers: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


HOSTILE = (
    ANY_PAGES,
    "</script><script>alert(1)</script>", "<!--<script>",
    "]]><img src=x onerror=alert(1)>", "'\"`${alert(1)}", "\u2028</style>",
    "&lt;b&gt;", "$a^$",
)  # fmt: skip


def test_values_of_a_log_are_escaped(tmp_path: Path, pages: dict[str, str]) -> None:
    """A category with `</script>` used to end Evidently's script and start another one."""
    hostile = pl.Series("device", HOSTILE)
    rows, sample = (
        traffic(600, seed=seed).with_columns(device=hostile.sample(600, with_replacement=True, seed=seed))
        for seed in (7, 8)
    )
    written = write_pages(window_of(rows), reference_of(sample), "xgboost", KINDS, tmp_path)
    for path in written:
        hostile_page, usual_page = Scripts(path.read_text(encoding="utf-8")), Scripts(pages[path.name])
        assert (hostile_page.tags, hostile_page.handlers) == (usual_page.tags, usual_page.handlers)
        assert injected(path.read_text(encoding="utf-8"), least=0) == []
    drift = written[0].read_text(encoding="utf-8")
    assert "alert(1)" in drift and "<script>alert" not in drift  # it is shown, as text


def test_pages_load_no_external_resources(pages: dict[str, str]) -> None:
    for html in pages.values():
        assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)\s*=\s*[\"']?https?:", html)
        assert not re.search(r"(@import|url\()\s*[\"']?https?:", html)


def test_the_drift_page_marks_the_drifted_columns(pages: dict[str, str]) -> None:
    row = r'"column_name": "(\w+)".*?"data_drift": "([\w ]+)"'
    assert dict(re.findall(row, pages["drift.html"])) == {
        "device": "Detected",
        "age": "Detected",  # its finding's critical value is 0
        "duration": "Not Detected",
        "score": "Not Detected",
    }


def test_the_drift_pages_score_is_the_index_of_the_drawn_rows(pages: dict[str, str]) -> None:
    row = r'"column_name": "device".*?"current_distribution": (\{.*?\}),.*?"drift_score": ([\d.]+)'
    match = re.search(row, pages["drift.html"])
    assert match is not None
    counted = json.loads(match[1])
    drawn_counts = dict(zip(counted["x"], counted["y"], strict=True))
    device = REFERENCE.columns["device"]
    live_shares = np.array([*(drawn_counts[name] for name in device.bins.values), 0]) / 600
    reference_shares = np.array(device.counts[0]) / 1_000
    assert float(match[2]) == pytest.approx(population_stability_index(reference_shares, live_shares), abs=1e-6)
    assert float(match[2]) > 0.5


def test_pages_have_no_plots_of_keys_and_tags() -> None:
    # Keys: 436 of 500 items are "other"; tags: several values a row.
    assert list(drawn_columns(traffic(500, seed=3))) == ["device", "duration", "age", "score"]


def test_a_column_without_values_is_left_out() -> None:
    broken = traffic(500, seed=3).with_columns(pl.lit(None, pl.Float64).alias("duration")).drop("age")
    assert list(drawn_columns(broken)) == ["device", "score"]


def test_drawn_values_have_the_index_over_the_references_bins() -> None:
    live = traffic(900, seed=4, phone=0.3)
    for name, column in drawn_columns(live).items():
        bins, counts = column.reference.bins, np.array(column.reference.counts[0])
        now = bins.count(live[name])
        expected = population_stability_index(counts / counts.sum(), now / now.sum())
        assert column.index(column.live.drop_nulls().to_pandas()) == pytest.approx(expected), name


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.lists(st.integers(-50, 50), min_size=3, max_size=60))
def test_clipped_values_stay_in_their_bins(live: list[float], reference_values: list[int]) -> None:
    values, usual = pl.Series("age", reference_values, pl.Float64), pl.Series("age", live, pl.Float64)
    column_profile = column_reference(values, "numeric")
    reference = Reference("demo", (date(2026, 1, 18),), {"age": column_profile}, {}, {}, pl.DataFrame())
    # No column is drawn where numbers differ by rounding errors alone.
    for column in make_drawn_columns(usual.to_frame(), values.to_frame(), reference, "xgboost", {"age": "numeric"}):
        assert column_profile.bins.count(column.live).tolist() == column_profile.bins.count(usual).tolist()


def test_columns_that_hardly_vary_are_drawn_or_left_out(tmp_path: Path) -> None:
    """A histogram has no bins narrower than the distance between two numbers."""
    nearly_three = pl.Series([3.0, 3.0000000000000004] * 500)
    usual = traffic(1_000, seed=1).with_columns(age=pl.lit(3.0), duration=nearly_three)
    live = traffic(1_000, seed=2).with_columns(age=pl.Series([3.0, 1.0] * 500), duration=pl.lit(3.0))
    reference = reference_of(usual)
    assert list(drawn_columns(live, reference)) == ["device", "age", "score"]
    assert list(drawn_columns(live.with_columns(age=pl.lit(4e17)), reference)) == ["device", "score"]
    assert len(write_pages(window_of(live), reference, "xgboost", KINDS, tmp_path)) == 2


def test_an_outlier_does_not_flatten_a_histogram() -> None:
    values = pl.Series("age", [*range(1_000), 10**9])
    column_profile = column_reference(values, "numeric")
    reference = Reference("demo", (date(2026, 1, 18),), {"age": column_profile}, {}, {}, pl.DataFrame())
    (column,) = make_drawn_columns(values.to_frame(), values.to_frame(), reference, "xgboost", {"age": "numeric"})
    assert column.live.max() < 1_000


def test_values_without_a_bin_of_their_own_are_other_values() -> None:
    device = ColumnReference(bins=Bins(kind="categorical", values=("tv",)), counts=((9, 1),), nulls=0, rows=10)
    reference = Reference("demo", (date(2026, 1, 18),), {"device": device}, {}, {}, pl.DataFrame())
    frame = pl.DataFrame({"device": ["tv", "phone", None, "radio"]})
    (column,) = make_drawn_columns(frame, frame, reference, "xgboost", {"device": "categorical"})
    assert column.live.to_list() == ["tv", "(other values)", None, "(other values)"]


def test_a_sample_keeps_requests_whole() -> None:
    rows = traffic(1_000, seed=5)
    sample = sample_requests(rows, 333, seed=1)
    assert sample.height == 330  # 66 requests of 5
    assert set(sample.group_by("request_id").len()["len"]) == {5}
    assert sample_requests(rows, 333, seed=1).equals(sample)
    assert not sample_requests(rows, 333, seed=2).equals(sample)
    assert sample_requests(rows, 1_000, seed=1).equals(rows)


def test_scores_are_those_of_the_version_with_most_rows() -> None:
    rows = pl.DataFrame({"version": [3, 3, 3, 4], "score": [0.5, float("nan"), 0.25, 0.75]})
    assert scores_of_one_version(rows)["score"].to_list() == [0.5, None, 0.25, None]


def test_one_class_has_no_quality_page(tmp_path: Path) -> None:
    rows = traffic(200, seed=6).with_columns(label=pl.lit(0, pl.Int8))
    assert [path.name for path in write_pages(window_of(rows), REFERENCE, "xgboost", KINDS, tmp_path)] == ["drift.html"]


def test_a_model_without_reference_scores_is_drawn_alone(tmp_path: Path) -> None:
    drift, quality = write_pages(window_of(traffic(200, seed=6)), REFERENCE, "dlrm", KINDS, tmp_path)
    assert '"column_name": "score"' not in drift.read_text(encoding="utf-8")
    assert "Current: Model Quality" in quality.read_text(encoding="utf-8")
    assert "Reference: Model Quality" not in quality.read_text(encoding="utf-8")


def test_drawing_an_empty_window_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"nothing to draw for demo, 2026-01-19 .*: no compared column has values"):
        write_pages(window_of(traffic(200, seed=6).clear()), REFERENCE, "xgboost", KINDS, tmp_path)


def test_a_failure_of_evidently_is_reported_and_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evidently", None)  # as if it were not installed
    with pytest.raises(
        ShortlistError, match=r"drift\.html: Evidently could not draw .*ModuleNotFoundError.*install that of"
    ):
        write_pages(window_of(traffic(200, seed=6)), REFERENCE, "xgboost", KINDS, tmp_path / "pages")
    assert not list(tmp_path.rglob("*.html"))


def test_replayed_slates_have_no_labels_to_draw(tmp_path: Path) -> None:
    of_slates = replace(REFERENCE, sample=REFERENCE.sample.drop("label"))
    written = write_pages(window_of(traffic(500, seed=2)), of_slates, "xgboost", KINDS, tmp_path)
    assert [path.name for path in written] == ["drift.html", "quality.html"]  # the quality of the window alone


def test_a_column_that_begins_with_a_missing_value_is_drawn(tmp_path: Path) -> None:
    rows = traffic(200, seed=6).with_columns(pl.when(pl.int_range(200) > 0).then("device").alias("device"))
    drift, _ = write_pages(window_of(rows), REFERENCE, "xgboost", KINDS, tmp_path)
    assert '"column_name": "device"' in drift.read_text(encoding="utf-8")
