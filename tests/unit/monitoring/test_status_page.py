"""The status page shows every state of the loop, and escapes all texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from monitoring.pages.drift_heatmap import MAX_ROWS, MAX_WINDOWS, fill_gaps, make_heat_map
from monitoring.pages.loop_status import loop_status
from monitoring.pages.status_page import PAGE, StatusPageData, render, write_page
from monitoring.pages.status_plots import kpi_plots
from monitoring.served_features.record import ServedColumn, ServedFeaturesReport
from monitoring.windows.records import (
    Finding,
    LiveExplorationCost,
    Measure,
    Problem,
    Quality,
    RetrainAction,
    RetrainDecision,
    Retraining,
    SlateTraffic,
    WindowReport,
)
from shortlist.report.figures import GRID, INK, MUTED, SERIES
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.spec.monitoring import RetrainPolicy
from shortlist.spec.serving import Canary
from tests.page_rules import injected, planted, problems_of

FIRST = datetime(2026, 1, 5, tzinfo=UTC)
DAY = timedelta(days=1)
NOW = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
KEY = "1a2b3c4d5e6f7081"
COLUMNS = ("user_id", "item_id", "category", "duration", "hour", "tags")


def quality(version: int, hit_rate: float = 0.4, slice_: str = "all", rows: int = 2_400) -> Quality:
    def measure(name: str, value: float, reference: float, limit: float | None = None) -> Measure:
        wide = 0.4 / rows**0.5
        low, high = value - wide, value + wide
        bad = limit is not None and (high < limit if name in {"auc", "hit_rate"} else low > limit)
        return Measure(
        name=name, value=value, low=low, high=high, reference=reference, limit=limit, breached=bad,
    )  # fmt: skip

    measures = (
        measure("hit_rate", hit_rate, 0.4, 0.32),
        measure("auc", 0.55 + hit_rate / 2, 0.75, 0.72),
        measure("log_loss", 0.5, 0.49, 0.6),
        measure("rate_error", 0.4 - hit_rate, 0.01, 0.25),
        measure("label_rate", hit_rate / 2, 0.2),
        measure("mean_score", 0.2, 0.2),
    )
    return Quality(version=version, slice=slice_, rows=rows, users=rows // 4, measures=measures)


def finding(column: str, effect: float, kind: str = "categorical", critical: float = 0.2) -> Finding:
    drifted = effect > critical
    return Finding(
        column=column, kind=kind, effect=effect, critical=critical, p_value=1e-9 if drifted else 0.4,
             drifted=drifted, reason=f"{column}: index {effect:.3f}, counts from {critical:.3f}",
    )  # fmt: skip


def window(
    day: int,
    *,
    version: int | None = 3,
    hit_rate: float = 0.4,
    drift: Sequence[str] = (),
    problems: Sequence[Problem] = (),
    columns: Sequence[str] = COLUMNS,
    judged: bool = True,
) -> WindowReport:
    start = FIRST + day * DAY
    findings = tuple(
        finding(name, 0.9 if name in drift else 0.01 * (1 + (day + n) % 7)) for n, name in enumerate(columns)
    )
    qualities = (quality(version or 0, hit_rate), quality(version or 0, hit_rate - 0.1, "user=cold", 300))
    none = (Quality(version=version or 0, rows=12, users=5, measures=(), problem="12 rows, 1000 are needed"),)
    return WindowReport(
        spec="demo", start=start, end=start + DAY, made=start + DAY, champion=version, versions={version or 0: 2_400},
        requests=600, rows=2_400 if judged else 12, coverage=0.98, volume_ratio=1.02, problems=tuple(problems),
        findings=findings if judged else (), quality=qualities if judged else none,
    )  # fmt: skip


def nulls(column: str = "duration") -> Problem:
    return Problem(kind="nulls", column=column, reason=f"{column}: 62.0 % are null, 1.0 % in training; mend its source")


def volume() -> Problem:
    return Problem(kind="volume", reason="120 requests, 600 are usual; level at the gateway")


def decision(
    day: int,
    action: RetrainAction = "hold",
    columns: Sequence[str] = (),
    *,
    alarm: bool = False,
    trigger: str = "drift",
) -> RetrainDecision:
    start = FIRST + day * DAY
    return RetrainDecision(
        spec="demo", action=action, trigger=trigger, key=KEY[:-2] + f"{day:02d}", window=start, until=start + DAY,
             reasons=(f"2 of the newest 3 windows are bad: {', '.join(columns)}" if columns else "all is well",),
             columns=tuple(columns), alarm=alarm, made=start + DAY + timedelta(hours=1),
    )  # fmt: skip


def retraining(day: int, state: str, version: int | None = None, run: str = "") -> Retraining:
    start = FIRST + day * DAY
    return Retraining(
        key=KEY[:-2] + f"{day:02d}", started=start + DAY, window=start, state=state, version=version,
             reason="the canary was 0.04 worse" if state == "not_promoted" else "", run=run,
    )  # fmt: skip


def rollout(candidate: int, phase: Phase, second: int = 0) -> RolloutRecord:
    state = RolloutState(
        rollout=f"20260123-1200{second:02d}-demo-0a1b", candidate=candidate, former=candidate - 1,
        champion=candidate - 1, stable=candidate, steps=(5, 25, 100), phase=phase, percent=100,
        reason="100 % were well",
    )  # fmt: skip
    return RolloutRecord(spec="demo", state=state, kind="dlrm", digest="0123", policy=Canary())


def loop(reports: Sequence[WindowReport] = (), **fields: object) -> StatusPageData:
    page_data = StatusPageData(
        spec="demo", created_at=NOW, champion=3, champion_since=NOW - 4 * DAY, reports=reports, decisions=(),
        retrainings=(), rollouts=(), links={}, waiting="",
    )  # fmt: skip
    return replace(page_data, **fields)


def story(columns: Sequence[str] = COLUMNS) -> StatusPageData:
    """Return a loop with healthy days, a broken column, a gap, and a drift that a retraining ends."""
    reports = [
        window(
            day,
            version=3 if day < 20 else 4,
            hit_rate=0.27 if 16 <= day < 20 else 0.4 + 0.02 * (day % 3 - 1),
            drift=("item_id", "category") if 16 <= day < 20 else (),
            problems=(nulls(),) if day in {6, 7} else (volume(),) if day == 9 else (),
            columns=columns,
            judged=day != 10,
        )
        for day in range(28)
        if day not in {12, 13}
    ]
    decisions = [
        decision(
            day,
            "page" if day in {6, 9} else "retrain" if day == 17 else "hold",
            ("item_id", "category", "hit_rate") if 16 <= day < 20 else (),
            alarm=17 <= day < 22,
        )
        for day in range(28)
    ]
    return loop(
        reports,
        champion=4,
        decisions=decisions,
        retrainings=[retraining(1, "held"), retraining(17, "promoted", 4)],
        rollouts=[rollout(3, Phase.ROLLED_BACK), rollout(4, Phase.PROMOTED, 1)],
        links={FIRST + 27 * DAY: ("windows/20260201/drift.html", "windows/20260201/quality.html")},
        waiting="the window of 2026-02-02 is mature in 3 hours",
    )


class _Page(HTMLParser):
    """Texts and links of a page, and whether every tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br", "path", "use", "rect", "i"}:
            self.open.append(tag)
        self.links += [value or "" for name, value in attributes if name == "href" and tag == "a"]

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"path", "use", "rect", "i"}:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def read(loop_: StatusPageData, folder: Path = Path("/nowhere")) -> _Page:
    return _Page(render(loop_, folder))


GOOD = tuple(window(day) for day in range(4))
BAD = tuple(window(day, drift=("item_id",), hit_rate=0.25) for day in (4, 5))
BROKEN = window(4, problems=(nulls(),))


HEADLINES = [
    (loop(), "plain", "Nothing watched yet: version 3 has served for 4 days; no window is ready"),
    (loop(GOOD), "good", "Healthy: version 3 has served for 4 days; no alarm"),
    (loop(GOOD, champion=None), "warn", "No champion: the newest window is good, but no version serves everybody"),
    (loop(GOOD, champion_since=None), "good", "Healthy: version 3 serves; no alarm"),
    (loop((*GOOD, BAD[0])), "warn", "No alarm yet: degraded on 2026-01-09: item_id, hit_rate"),
    (loop((*GOOD, *BAD)), "bad", "Alarm since 2026-01-10: item_id, hit_rate, auc; training is held"),
    (
        loop((*GOOD, *BAD), decisions=[decision(5, "retrain", ("item_id",), alarm=True)]),
        "bad",
        "auc; training is about to begin",
    ),
    (
        loop((*GOOD, *BAD), retrainings=[retraining(5, "running")]),
        "bad",
        "Alarm since 2026-01-10: item_id, hit_rate, auc; retraining 1a2b3c4d is running",
    ),
    (
        loop((*GOOD, *BAD), retrainings=[retraining(5, "not_promoted")]),
        "bad",
        "auc; retraining 1a2b3c4d brought a model that was not promoted",
    ),
    (
        loop((*GOOD, *BAD), decisions=[decision(5, "page", ("item_id",), alarm=True)]),
        "bad",
        "auc; a person is needed",
    ),
    (
        loop((*GOOD, *BAD), champion=4, retrainings=[retraining(5, "promoted", 4)]),
        "warn",
        "Too early to tell: version 4 has served for 4 days, but no whole window yet",
    ),
    (loop((*GOOD, BROKEN)), "bad", "Data are broken since 2026-01-09: column duration; training is held"),
    (
        loop((*GOOD, *BAD, window(6, problems=(volume(),))), retrainings=[retraining(5, "running")]),
        "bad",
        "since 2026-01-11: volume; retraining 1a2b3c4d, begun before, is running; the alarm of 2026-01-10 stays",
    ),
    (
        loop((*GOOD, window(4, judged=False))),
        "warn",
        "Not judged: too little is known of the window of 2026-01-09: it has 12 rows with an outcome",
    ),
    (loop((*GOOD, BROKEN, window(5, judged=False))), "warn", "Not judged: too little is known"),
    (loop(GOOD, decisions=[decision(3, "page", ("auc",))]), "bad", "A person is needed: 2 of the newest 3"),
    # A schedule's decision says nothing about live traffic.
    (loop(GOOD, decisions=[decision(3, "page", ("auc",), trigger="schedule")]), "good", "Healthy: version 3"),
]
"""Content of the page, level of its status, and the beginning of its headline."""


@pytest.mark.parametrize(("page_data", "level", "sentence"), HEADLINES)
def test_the_headline_is_the_worst_state(page_data: StatusPageData, level: str, sentence: str) -> None:
    state = loop_status(page_data)
    assert state.level == level
    assert sentence in state.sentence


@pytest.mark.parametrize("page_data", [HEADLINES[0][0], HEADLINES[1][0], HEADLINES[4][0], HEADLINES[5][0]])
def test_the_page_begins_with_the_headline(page_data: StatusPageData) -> None:
    state, page = loop_status(page_data), read(page_data)
    assert state.state in page.text
    assert state.detail in page.text
    assert not page.open


def test_the_alarm_follows_the_declared_policy() -> None:
    strict = RetrainPolicy(bad_windows=1, of_windows=1)
    assert loop_status(loop((*GOOD, BAD[0]), policy=strict)).state == "Alarm"
    assert loop_status(loop((*GOOD, BAD[0]))).state == "No alarm yet"


def test_the_page_without_windows_has_the_next_steps(tmp_path: Path) -> None:
    write_page(loop(waiting="nothing was logged yet"), tmp_path / PAGE)
    page = _Page((tmp_path / PAGE).read_text())
    for command in ("make serve", ".venv/bin/shortlist replay", "make watch", "nothing was logged yet"):
        assert command in page.text
    assert "svg" not in page.tags
    assert "table" not in page.tags


def test_the_page_is_one_file_without_scripts_and_external_resources() -> None:
    page = render(story(), Path("/nowhere"))
    assert "default-src 'none'" in page
    assert problems_of(page) == []
    assert not any(forbidden in page for forbidden in ("<script", "src=", "@import", 'href="http', "javascript:"))


def test_the_page_has_all_sections() -> None:
    page = read(story())
    for title in ("Live KPIs", "Hit rate", "AUC", "Rate error", "Label rate and mean score", "Drift by column"):
        assert title in page.text
    assert page.tags.count("svg") == 4
    assert "user=cold" in page.text  # quality by slice
    assert "the canary" not in page.text
    assert "2 of the newest 3 windows are bad: item_id, category, hit_rate" in page.text
    assert "version 4 (dlrm) serves everybody in place of version 3" in page.text
    assert "version 3 (dlrm) is withdrawn" in page.text
    assert page.text.index("2026-02-01 ✓ healthy") < page.text.index("2026-01-05 ✓ healthy")  # newest first
    for mark in ("✕ broken", "? unjudged", "▼ degraded", "✓ healthy"):
        assert mark in page.text


def test_served_features_are_shown_by_column_with_the_likely_cause() -> None:
    reason = "'by_item:rows': 30 of 200 values differ: 30 are of a stale snapshot, up to 9 h older"
    stale = ServedColumn(
        compared=200, equal=170, stale=30, counted=30, largest_difference=12.0, cause="stale snapshot", reason=reason
    )
    sound = ServedColumn(compared=200, equal=200, largest_difference=0.0)
    comparison = ServedFeaturesReport(
        spec="demo", made=NOW, first=NOW - DAY, last=NOW, requests=20, rows=200, waiting=70, max_unequal=0.1,
        columns={"by_item:rows": stale, "price": sound},
    )  # fmt: skip
    page = read(replace(story(), served_features=comparison))
    assert "85.0 %" in page.text and "stale snapshot" in page.text and reason in page.text
    assert "at most 10.0 % of a column's values may differ" in page.text
    assert "70 rows wait until their statistics are counted" in page.text
    empty_page = read(replace(story(), served_features=comparison.model_copy(update={"rows": 0, "columns": {}})))
    assert ".venv/bin/shortlist refresh, or the next training, publishes newer ones" in empty_page.text
    assert "serving.log.feature_sampling says how many keep them" in read(story()).text


def test_the_newest_windows_problems_are_shown_with_their_numbers() -> None:
    bad = window(4, drift=("item_id",), hit_rate=0.25).model_copy(update={"warnings": ("the mean score fell by half",)})
    text = read(loop((*GOOD, bad))).text
    assert "25.0 % (24.2 % to 25.8 %), past the limit of 32.0 %; 40.0 % on the test days." in text
    assert "item_id: index 0.900, counts from 0.200" in text
    assert "the mean score fell by half" in text
    assert "duration: 62.0 % are null" in read(loop((*GOOD, BROKEN))).text
    assert "Too little is known to judge it: 12 rows, 1000 are needed." in read(loop([window(0, judged=False)])).text


def test_quality_on_days_that_the_version_learnt_from_is_said_to_be_no_test() -> None:
    replayed = window(4).model_copy(update={"learnt_by": (3,)})
    sentence = "Replayed days that version 3 learnt from: the live quality is not that of new days, as the test's is."
    assert read(loop((*GOOD, replayed))).text.count(sentence) == 2  # beside the newest window, and by slice
    assert "learnt from" not in read(loop(GOOD)).text


@pytest.mark.parametrize(("low", "is_named"), [(0.031, True), (0.02, False)])
def test_the_cost_of_exploration_is_shown_with_its_limit(low: float, is_named: bool) -> None:
    cost = LiveExplorationCost(per_slate=0.02, share=0.04, low=low, limit=0.03)
    traffic = SlateTraffic(version=3, slates=600, sources={}, removed={}, short=0.0, fallback=0.0, explored=0.1,
                           items=9, judged=0, exploration=cost)  # fmt: skip
    text = read(loop([window(0).model_copy(update={"slates": (traffic,)})])).text
    assert "Exploration of version 3 drew 10.0 % of its slates and gave up 0.0200 of the expected label" in text
    assert "4.00% of it (limit 3.00%)" in text
    assert ("costly exploration" in " ".join(text.split())) == is_named
    assert ("ordering.explore.max_cost is 3.00%: declare a smaller share" in text) == is_named


def test_only_existing_pages_are_linked(tmp_path: Path) -> None:
    home = tmp_path / "monitoring" / "demo"
    run, promoted = tmp_path / "run", rollout(4, Phase.PROMOTED)
    page_data = loop(
        GOOD,
        retrainings=[retraining(1, "promoted", 4, str(run)), retraining(2, "failed", None, str(tmp_path / "gone"))],
        rollouts=[promoted, rollout(5, Phase.ROLLED_BACK, 1)],
        links={FIRST: ("windows/1/drift.html",)},
    )
    for page in (run / "report.html", tmp_path / "rollouts" / promoted.id / "rollout.html"):
        page.parent.mkdir(parents=True)
        page.touch()
    home.mkdir(parents=True)
    links = read(page_data, home).links
    assert sorted(links) == sorted(
        ["../../run/report.html", f"../../rollouts/{promoted.id}/rollout.html", "windows/1/drift.html"]
    )


def test_hostile_texts_are_escaped() -> None:
    page = render(planted(story(), kept={"kind", "rollout"}), Path("/nowhere"))
    assert injected(page, least=20) == []
    assert problems_of(page) == []


HOSTILE = '"><script>alert(1)</script>'


def test_hostile_names_are_escaped() -> None:
    broken = Problem(kind="nulls", column=HOSTILE, reason=HOSTILE)
    slice_ = quality(3, slice_=f"x={HOSTILE}", rows=300)
    last = window(1, drift=(HOSTILE,), columns=(HOSTILE,))
    last = last.model_copy(update={"quality": (*last.quality, slice_), "warnings": (HOSTILE,)})
    page_data = loop(
        (window(0, problems=(broken,)), last),
        spec=HOSTILE,
        waiting=HOSTILE,
        decisions=[decision(1, "page", (HOSTILE,), alarm=True).model_copy(update={"reasons": (HOSTILE,)})],
        retrainings=[retraining(1, "failed").model_copy(update={"reason": HOSTILE})],
        links={FIRST: ("javascript:alert(1)", "//evil.example/x.html", HOSTILE)},
    )
    page = render(page_data, Path("/nowhere"))
    assert "<script" not in page
    assert _Page(page).text.count("<script>alert(1)</script>") >= 8
    assert _Page(page).links == [
        "javascript%3Aalert%281%29",
        "evil.example/x.html",
        "%22%3E%3Cscript%3Ealert%281%29%3C/script%3E",
    ]


def test_a_broken_window_is_drawn_differently() -> None:
    text = read(loop((*GOOD, BROKEN))).text
    assert text.count("✓ healthy") == len(GOOD)
    assert "its data are broken, so these numbers count for nothing" in text
    (broken_plot, *_), (plain, *_) = kpi_plots(loop((*GOOD, BROKEN))), kpi_plots(loop((*GOOD, window(4))))
    assert "<pattern" in broken_plot.svg  # hatched
    assert "<pattern" not in plain.svg


def test_plots_mark_versions_alarms_and_decisions() -> None:
    (hit_rate, *other_plots) = kpi_plots(story())
    assert [plot.name for plot in (hit_rate, *other_plots)] == [
        "kpi_hit_rate",
        "kpi_auc",
        "kpi_rate_error",
        "kpi_label_rate",
    ]
    for mark in (">v3<", ">v4<", ">R<", ">P<", ">⋯<", ">5 Jan<"):
        assert mark in hit_rate.svg
    for plot in (hit_rate, *other_plots):
        assert len(plot.svg) < 60_000
        for colour in (INK, MUTED, GRID, *SERIES):
            assert not re.search(rf"(?<!, ){colour}", plot.svg), f"{plot.name} has {colour} outside of var()"


def test_a_missing_measure_has_no_plot() -> None:
    assert kpi_plots(loop([window(0, judged=False)])) == []
    assert "No window had enough rows with outcomes" in read(loop([window(0, judged=False)])).text


def test_consecutive_missing_windows_are_one_gap() -> None:
    window_slots = fill_gaps((window(0), window(1), window(40)))
    assert [slot and slot.start for slot in window_slots] == [FIRST, FIRST + DAY, None, FIRST + 40 * DAY]


def test_the_heat_map_begins_with_the_worst_column() -> None:
    heat = make_heat_map(story().windows)
    assert heat is not None
    assert [row.name for row in heat.rows][:4] == ["category", "item_id", "duration", "volume"]
    assert [row.marked for row in heat.rows] == [4, 4, 2, 1, 0, 0, 0]
    assert heat.rows[0].strongest == pytest.approx(0.9 / 0.2)
    text = read(loop((*GOOD, *BAD))).text
    assert "▲4.5" in text  # the mark and the number, without any colour


def test_a_columns_cell_shows_its_drifted_finding() -> None:
    shares, unknown_values = finding("item_id", 0.19), finding("item_id", 0.3, "unknown", 0.25)
    report = window(0).model_copy(update={"findings": (shares, unknown_values)})
    heat = make_heat_map((report,))
    assert heat is not None
    (cell,) = heat.rows[0].cells
    assert cell is not None
    assert (cell.mark, cell.reason) == ("drifted", "item_id: index 0.300, counts from 0.250")


def test_an_insignificant_effect_above_its_limit_is_shaded_but_not_marked() -> None:
    chance = finding("hour", 0.5).model_copy(update={"drifted": False})
    heat = make_heat_map((window(0).model_copy(update={"findings": (chance,)}),))
    assert heat is not None
    (cell,) = heat.rows[0].cells
    assert cell is not None
    assert (cell.mark, cell.shade, cell.marked) == ("calm", 4, False)


def test_hidden_columns_and_windows_are_counted() -> None:
    names = [f"column_{number:02d}" for number in range(60)]
    windows = [window(day, columns=names, drift=names[:30] if day == 69 else ()) for day in range(70)]
    page_data = loop(windows, decisions=[decision(day) for day in range(70)])
    heat = make_heat_map(page_data.windows)
    assert heat is not None
    assert (len(heat.slots), len(heat.rows), heat.hidden_columns, heat.hidden_marked) == (MAX_WINDOWS, MAX_ROWS, 35, 5)
    page = read(page_data)
    assert "and 35 more, 5 of them marked somewhere." in page.text
    assert page.text.count("and 10 older.") == 2  # windows, decisions
    assert "The newest 60 of 70 windows." in page.text
    assert not page.open


def test_the_age_of_the_champion_is_known_from_its_rollout() -> None:
    record = rollout(3, Phase.PROMOTED)
    changes = record.with_state(record.state).history
    at = changes[0].model_copy(update={"time": (NOW - 3 * DAY).isoformat()})
    page_data = loop(GOOD, champion_since=None, rollouts=[record.model_copy(update={"history": (at,)})])
    assert loop_status(page_data).sentence == "Healthy: version 3 has served for 3 days; no alarm"
    assert loop_status(replace(page_data, rollouts=())).sentence == "Healthy: version 3 serves; no alarm"


def test_the_page_does_not_depend_on_the_order_of_records() -> None:
    page_data = story()
    reversed_data = replace(
        page_data,
        reports=page_data.reports[::-1],
        decisions=page_data.decisions[::-1],
        rollouts=page_data.rollouts[::-1],
    )
    assert render(page_data, Path("/nowhere")) == render(reversed_data, Path("/nowhere"))


def test_the_page_shows_the_end_of_the_counted_statistics(tmp_path: Path) -> None:
    page = render(loop(counted_until=NOW - timedelta(hours=3)), tmp_path)
    assert "3 hours old" in page
    assert "features" in page
    assert " old</" not in render(loop(), tmp_path)
