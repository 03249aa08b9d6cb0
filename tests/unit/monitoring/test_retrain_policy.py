"""Decisions of the retrain policy for sequences of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.alerts.alerts import decision_alerts
from monitoring.retraining.retrain_policy import (
    decide_retraining,
    decide_scheduled_retraining,
    decision_key,
    same_log_reason,
)
from monitoring.windows.records import (
    Finding,
    LiveExplorationCost,
    Measure,
    Problem,
    Quality,
    RetrainDecision,
    Retraining,
    SlateTraffic,
    WindowReport,
)
from shortlist.spec.monitoring import RetrainPolicy

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DECIDED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SIGNS = {"hold": ".", "retrain": "R", "page": "P"}


def finding(column: str = "price", drifted: bool = True) -> Finding:
    return Finding(
        column=column,
        kind="numeric",
        effect=0.5 if drifted else 0.01,
        critical=0.2,
        p_value=0.0,
        drifted=drifted,
        reason=f"{column} moved by 0.50, critical is 0.20",
    )


def quality(version: int, auc: float, breached: bool) -> Quality:
    measure = Measure(
        name="auc", value=auc, low=auc - 0.01, high=auc + 0.01, reference=0.75, limit=0.72, breached=breached
    )
    return Quality(version=version, slice="all", rows=5_000, users=900, measures=(measure,))


def window(sign: str, number: int, champion: int = 1, length: timedelta = DAY) -> WindowReport:
    """Return the report of a window by its letter: Healthy, Drifted, deGraded, Broken or Unjudged."""
    start = FIRST + number * length
    broken = Problem(kind="nulls", column="brand", reason="brand is null in 80 % of the rows, in 2 % when trained")
    return WindowReport(
        spec="demo",
        start=start,
        end=start + length,
        made=start + length + timedelta(hours=1),
        champion=champion,
        versions={champion: 5_000},
        requests=1_000,
        rows=5_000,
        coverage=0.9,
        problems=(broken,) if sign == "b" else (),
        findings={"h": (finding(drifted=False),), "d": (finding(),), "g": (finding(drifted=False),)}.get(sign, ()),
        quality=(quality(champion, 0.7 if sign == "g" else 0.75, sign == "g"),) if sign in "hdg" else (),
    )


def windows(signs: str, champion: int = 1) -> list[WindowReport]:
    return [window(sign, number, champion) for number, sign in enumerate(signs)]


def retraining(day: float, state: str = "promoted", version: int | None = None, reason: str = "") -> Retraining:
    moment = FIRST + day * DAY
    return Retraining(
        key=decision_key("demo", "retrain", moment, "drift"),
        started=moment + DAY,
        window=moment,
        state=state,
        version=version,
        reason=reason,
    )


def decided(
    reports: Sequence[WindowReport], retrainings: Sequence[Retraining] = (), **policy: float
) -> RetrainDecision:
    return decide_retraining("demo", reports, retrainings, RetrainPolicy(**policy), DECIDED_AT)


@dataclass
class Story:
    """Return the decisions of windows; retrainings end as given, and a promoted model serves the next windows."""

    outcomes: list[str]
    policy: RetrainPolicy
    champion: int = 1
    reports: list[WindowReport] = field(default_factory=list)
    retrainings: list[Retraining] = field(default_factory=list)

    def see(self, sign: str) -> RetrainDecision:
        self.reports.append(window(sign, len(self.reports), self.champion))
        decision = decide_retraining("demo", self.reports, self.retrainings, self.policy, DECIDED_AT)
        if decision.action == "retrain":
            state = self.outcomes.pop(0)
            self.champion += state == "promoted"
            version = self.champion if state == "promoted" else None
            self.retrainings.append(retraining(len(self.reports) - 1, state, version))
        return decision


def play_windows(signs: str, outcomes: str = "", **policy: float) -> tuple[str, str]:
    """Return the actions and the alarms of windows, one character per window."""
    story = Story(outcomes.split(), RetrainPolicy(**policy))
    decisions = [story.see(sign) for sign in signs]
    return "".join(SIGNS[decision.action] for decision in decisions), "".join(
        "!" if decision.alarm else "." for decision in decisions
    )


@pytest.mark.parametrize(
    ("signs", "actions", "alarms"),
    [
        ("h" * 50, "." * 50, "." * 50),
        ("dhhhdhhhd", ".........", "........."),  # one bad window in three is chance
        ("hdd", "..R", "..!"),
        ("hgg", "..R", "..!"),
        ("hdg", "..R", "..!"),  # drift and falling quality are both bad
        ("hdhd", "...R", "...!"),
        ("d", ".", "."),
        ("duuuud", ".....R", ".....!"),  # what was not judged is skipped: these two are neighbours
        ("dhud", "...R", "...!"),
    ],
)
def test_two_bad_windows_of_three_judged_ones_start_a_training(signs: str, actions: str, alarms: str) -> None:
    assert play_windows(signs, "failed failed") == (actions, alarms)


@pytest.mark.parametrize(
    ("signs", "actions"),
    [
        ("b", "P"),
        ("hhb", "..P"),
        ("ddb", ".RP"),  # also while the alarm is raised
        ("db", ".P"),
        ("dbd", ".PR"),  # a broken window neither raises the alarm nor ends it
        ("dbbbb", ".PPPP"),
        ("bbbh", "PPP."),
        ("uub", "..P"),
    ],
)
def test_broken_data_page_and_never_retrain(signs: str, actions: str) -> None:
    assert play_windows(signs, "failed failed")[0] == actions


def test_broken_data_page_with_their_problems_as_reasons() -> None:
    decision = decided(windows("ddb"))
    assert decision.action == "page"
    assert decision.reasons == ("brand is null in 80 % of the rows, in 2 % when trained",)
    assert decision.columns == ("brand",)
    assert decision.alarm


@pytest.mark.parametrize(
    ("signs", "alarms"),
    [
        ("ddh", ".!!"),  # one good window is not the end of it
        ("ddhh", ".!!."),
        ("ddhdhh", ".!!!!."),
        ("ddhuh", ".!!!."),  # neither good nor bad
        ("ddhbh", ".!!!."),
        ("ddhhd", ".!!.."),  # what raised the last alarm does not raise the next one
        ("ddhhdd", ".!!..!"),
    ],
)
def test_the_alarm_stays_until_two_good_windows_in_a_row(signs: str, alarms: str) -> None:
    assert play_windows(signs, "failed " * 5, max_failures=9, max_per_week=9)[1] == alarms


def test_windows_of_a_cleared_alarm_do_not_raise_the_next_alarm() -> None:
    # Two of the five newest windows are bad all along; the second good one must end it for good.
    assert play_windows("ddhhhhd", "failed " * 5, of_windows=5, max_failures=9)[1] == ".!!...."


def test_windows_before_a_promotion_do_not_count() -> None:
    # The new model's first window is bad, and so were the two before: only its own count.
    assert play_windows("dddhh", "promoted") == (".R...", ".!...")


def test_a_promoted_model_that_is_no_better_leads_to_another_training() -> None:
    assert play_windows("dddd", "promoted promoted") == (".R.R", ".!.!")


def test_a_window_from_before_the_promoted_model_serves_holds() -> None:
    # The look at day 2 comes after the promotion, but version 1 served that day.
    decision = decided(windows("ddd"), [retraining(1, "promoted", 2)])
    assert (decision.action, decision.alarm) == ("hold", False)
    assert "was served by version 1" in decision.reasons[0]


def test_a_window_counts_when_the_new_model_serves_most_rows() -> None:
    reports = [*windows("dd"), window("d", 2, champion=1), window("d", 3, champion=2), window("d", 4, champion=2)]
    promoted = [retraining(1, "promoted", 2)]
    assert decided(reports[:4], promoted).alarm is False
    assert decided(reports, promoted).alarm is True


def test_windows_count_again_after_a_manual_rollback() -> None:
    served = [*windows("dd"), window("h", 2, champion=2), window("d", 3, champion=1), window("d", 4, champion=1)]
    assert decided(served, [retraining(1, "promoted", 2)]).action == "retrain"
    never_served = windows("d" * 11)
    assert decided(never_served[:9], [retraining(1, "promoted", 2)]).action == "hold"
    assert decided(never_served, [retraining(1, "promoted", 2)]).action == "retrain"


def test_a_running_retraining_blocks_a_second_retraining() -> None:
    decision = decided(windows("dddd"), [retraining(1, "running")])
    assert (decision.action, decision.alarm) == ("hold", True)
    assert decision.reasons[0] == (
        "the retraining of 2026-01-20 00:00 is running since 2026-01-21 00:00; there is one at a time"
    )


@pytest.mark.parametrize(("hours", "actions"), [(0, ".RRR"), (24, ".RRR"), (25, ".R.R"), (48, ".R.R"), (72, ".R..")])
def test_no_training_starts_during_the_cool_down(hours: float, actions: str) -> None:
    assert play_windows("dddd", "failed " * 3, cooldown_hours=hours, max_failures=9)[0] == actions


def test_a_window_leads_to_one_training_even_without_a_cool_down() -> None:
    decision = decided(windows("dd"), [retraining(1, "failed")], cooldown_hours=0)
    assert decision.action == "hold"
    assert decision.reasons[0] == (
        "the retraining of 2026-01-20 00:00 (failed) answered this window; a later one decides"
    )


def test_a_later_scheduled_training_blocks_retraining_for_the_window() -> None:
    assert decided(windows("dd"), [retraining(2.1, "promoted")], cooldown_hours=0).action == "hold"


def test_the_fourth_training_within_a_week_is_a_page() -> None:
    assert play_windows("d" * 11, "held " * 6, max_failures=99)[0] == ".RRRPPPPRRR"


def test_the_reason_of_a_weekly_cap_page_names_the_cap() -> None:
    decision = decided(windows("d" * 6), [retraining(day, "held") for day in (1, 2, 3)], max_failures=9)
    assert decision.action == "page"
    assert decision.reasons[0].startswith("3 retrainings within seven days (max_per_week 3). Check what")


@pytest.mark.parametrize("state", ["failed", "held", "not_promoted"])
def test_two_trainings_in_a_row_without_a_new_champion_are_a_page(state: str) -> None:
    assert play_windows("ddddd", f"{state} {state}")[0] == ".RRPP"


def test_a_promotion_ends_the_row_of_failures() -> None:
    # failed, promoted, failed: never two in a row.
    assert play_windows("dddddddd", "failed promoted failed failed", max_per_week=9)[0] == ".RR.RRPP"


def test_retrainings_may_be_listed_in_any_order() -> None:
    past = [retraining(1, "failed"), retraining(2, "promoted", 1), retraining(3, "failed")]
    decisions = [decided(windows("d" * 6), list(order)) for order in permutations(past)]
    assert {decision.action for decision in decisions} == {"page"}  # three within a week, whatever comes first
    assert len({decision.reasons for decision in decisions}) == 1
    relaxed = [decided(windows("d" * 6), list(order), max_per_week=9) for order in permutations(past)]
    assert {decision.action for decision in relaxed} == {"retrain"}  # never two failures in a row


def test_the_reason_of_a_failures_page_has_the_last_failure() -> None:
    failed = [retraining(1, "failed"), retraining(2, "failed", reason="the disk is full")]
    decision = decided(windows("ddddd"), failed)
    assert decision.action == "page"
    assert decision.reasons[0] == (
        "2 retrainings in a row led to no new champion (max_failures 2); the last one: failed, the disk is full."
        " Fix the cause, then train by hand"
    )


def test_unjudged_windows_hold() -> None:
    decision = decided(windows("ddu"))
    assert (decision.action, decision.alarm) == ("hold", True)
    small_window = window("u", 2).model_copy(update={"rows": 812, "min_rows": 1_000})
    (reason,) = decided([*windows("dd"), small_window]).reasons
    assert reason == (
        "the window of 2026-01-21 00:00 cannot be judged: it has 812 rows with an outcome, of 1,000 answered requests,"
        " and needs 1,000 (monitoring.window.min_rows). Missing data are never a success, and no reason to train"
    )


def test_a_large_window_that_could_not_be_measured_gives_its_reason() -> None:
    one_class = Quality(version=1, slice="all", rows=5_000, users=900, measures=(), problem="one class only")
    report = window("u", 0).model_copy(update={"quality": (one_class,)})
    assert report.unjudged_reason == "it has 5,000 rows with an outcome, of 1,000 answered requests; one class only"


def test_reasons_have_the_numbers_and_columns_name_what_is_wrong() -> None:
    hold = decided(windows("hd"))
    assert hold.reasons == (
        "1 of 2 windows is bad; 2 raise the alarm",
        "2026-01-20 00:00: price moved by 0.50, critical is 0.20",
    )
    assert hold.columns == ("price",)
    retrain = decided(windows("hdg"))
    assert retrain.reasons == (
        "the alarm is raised since the window of 2026-01-21 00:00: 2 of 3 windows are bad; it ends after 2 good in a"
        " row",
        "2026-01-21 00:00: auc of version 1 is 0.7 (0.69 to 0.71, limit 0.72)",
    )
    assert retrain.columns == ("auc", "price")


def test_a_healthy_window_has_a_reason_to_hold() -> None:
    decision = decided(windows("hhh"))
    assert decision.reasons == ("0 of 3 windows are bad; 2 raise the alarm",)
    assert decision.columns == ()


def test_trainings_read_rows_up_to_the_end_of_the_newest_window() -> None:
    decision = decided(windows("dd"))
    assert (decision.window, decision.until) == (FIRST + DAY, FIRST + 2 * DAY)


def test_the_key_depends_on_the_window_and_not_on_the_time_of_the_decision() -> None:
    policy = RetrainPolicy()
    first, second = (
        decide_retraining("demo", windows("dd"), [], policy, decided_at)
        for decided_at in (DECIDED_AT, DECIDED_AT + DAY)
    )
    assert first.key == second.key
    keys = {
        first.key,
        decide_retraining("other", windows("dd"), [], policy, DECIDED_AT).key,
        decided(windows("ddd")).key,
        decided(windows("db")).key,
        decide_scheduled_retraining("demo", first.window, [], RetrainPolicy(), DECIDED_AT).key,
    }
    assert len(keys) == 5
    assert all(len(key) == 16 and set(key) <= set("0123456789abcdef") for key in keys)


def test_the_key_does_not_depend_on_the_timezone() -> None:
    elsewhere = FIRST.astimezone(timezone(timedelta(hours=9)))
    assert decision_key("demo", "retrain", elsewhere, "drift") == decision_key("demo", "retrain", FIRST, "drift")
    with pytest.raises(AssertionError, match="without a timezone"):
        decision_key("demo", "retrain", FIRST.replace(tzinfo=None), "drift")


def test_a_scheduled_time_starts_a_training_unless_one_is_running() -> None:
    moment = FIRST + timedelta(days=2, hours=3)
    decision = decide_scheduled_retraining(
        "demo", moment, [retraining(0, "failed"), retraining(1, "failed")], RetrainPolicy(), DECIDED_AT
    )
    assert (decision.action, decision.trigger, decision.window, decision.until) == (
        "retrain",
        "schedule",
        moment,
        moment,
    )
    assert decision.reasons == ("the schedule's moment 2026-01-21 03:00 has come",)
    blocked = decide_scheduled_retraining("demo", moment, [retraining(0, "running")], RetrainPolicy(), DECIDED_AT)
    assert blocked.action == "hold"
    assert "is running since" in blocked.reasons[0]


def test_the_cool_down_is_in_hours_for_short_windows() -> None:
    hourly = [window("d", number, length=timedelta(hours=1)) for number in range(26)]
    failed = [retraining(1 / 24, "failed")]
    assert decided(hourly[:25], failed).action == "hold"
    assert decided(hourly, failed).action == "retrain"


def test_unordered_windows_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="oldest first"):
        decided(windows("dd")[::-1])
    with pytest.raises(AssertionError, match="without a window"):
        decided([])


STATES = st.sampled_from(["running", "promoted", "not_promoted", "held", "failed"])


@given(
    st.text("hdgbu", min_size=1, max_size=25),
    st.lists(st.tuples(st.integers(0, 25), STATES), max_size=5),
    st.randoms(use_true_random=False),
)
def test_every_retraining_has_an_alarm_valid_data_and_no_running_retraining(
    signs: str, past: list[tuple[int, str]], shuffler: Random
) -> None:
    reports = windows(signs)
    retrainings = [retraining(day, state, 2 if state == "promoted" else None) for day, state in past]
    decision = decided(reports, retrainings)
    shuffled = list(retrainings)
    shuffler.shuffle(shuffled)
    if len({retraining.started for retraining in retrainings}) == len(retrainings):
        assert decided(reports, shuffled) == decision  # a pure function of what happened, not of how it is listed
    assert (decision.action == "page") >= (signs[-1] == "b")
    if decision.action == "retrain":
        assert decision.alarm
        assert signs[-1] in "hdg"
        assert set(signs) & set("dg")
        assert "running" not in {state for _, state in past}
    assert decision.reasons


def test_unequal_served_features_block_only_retrainings() -> None:
    reason = "2 column(s) were served with other values"
    raised = decide_retraining("demo", windows("hddd"), [], RetrainPolicy(), DECIDED_AT, reason)
    assert (raised.action, raised.reasons[0], raised.alarm) == ("hold", reason, True)
    assert decide_retraining("demo", windows("hddd"), [], RetrainPolicy(), DECIDED_AT).action == "retrain"
    quiet = decide_retraining("demo", windows("hhh"), [], RetrainPolicy(), DECIDED_AT, reason)
    assert quiet.action == "hold" and reason not in quiet.reasons
    assert decide_retraining("demo", windows("hddb"), [], RetrainPolicy(), DECIDED_AT, reason).action == "page"
    decision = decide_scheduled_retraining("demo", DECIDED_AT, [], RetrainPolicy(), DECIDED_AT, reason)
    assert (decision.action, decision.reasons) == ("hold", (reason,))


def with_exploration(report: WindowReport, low: float) -> WindowReport:
    cost = LiveExplorationCost(per_slate=0.02, share=0.04, low=low, limit=0.03)
    traffic = SlateTraffic(version=1, slates=900, sources={}, removed={}, short=0.0, fallback=0.0, explored=0.1,
                           items=9, judged=0, exploration=cost)  # fmt: skip
    return report.model_copy(update={"slates": (traffic,)})


@pytest.mark.parametrize(
    ("signs", "low", "action"),
    [
        ("h", 0.031, "page"),
        ("h", 0.03, "hold"),  # not shown to be above the limit
        ("u", 0.031, "page"),  # needs no outcomes
        ("dd", 0.031, "retrain"),
        ("b", 0.031, "page"),
    ],
)
def test_exploration_above_its_declared_cost_pages(signs: str, low: float, action: str) -> None:
    *earlier, newest = windows(signs)
    reports = [*earlier, with_exploration(newest, low)]
    decision = decide_retraining("demo", reports, [], RetrainPolicy(), DECIDED_AT)
    assert decision.action == action
    sentence = "exploration of version 1 gave up 4.00% of the slates' expected label (at least 3.10%), 0.0200 per slate"
    assert any(sentence in reason for reason in decision.reasons) == (low > 0.03)
    assert ("exploration" in decision.columns) == (low > 0.03)
    if signs == "h" and low > 0.03:
        assert sentence in decision.reasons[0]
        (page,) = decision_alerts(decision, {})
        assert page.name == "ShortlistPage" and "ordering.explore.max_cost is 3.00%" in page.annotations["description"]


def test_exploration_of_an_earlier_model_sends_no_page() -> None:
    old = with_exploration(window("h", 0, champion=1), low=0.035)
    assert decide_retraining("demo", [old], [retraining(0, version=2)], RetrainPolicy(), DECIDED_AT).action == "hold"


@pytest.mark.parametrize(
    ("tags", "digest", "is_same"),
    [
        ({"data_digest": "a1/t1"}, "a1", True),
        ({"data_digest": "a1/t1", "until": "2026-01-20T00:00:00+00:00"}, "a1", True),
        ({"data_digest": "a1/t1", "until": "2026-01-19T00:00:00+00:00"}, "a1", False),  # a later row is read now
        ({"data_digest": "a1/t1"}, "b2", False),  # the log has grown
        ({"data_digest": "a1/t1"}, "", False),  # live rows are added, or nobody knows the log
        ({"data_digest": "/t1"}, "", False),
        ({}, "a1", False),
    ],
)
def test_a_training_on_the_log_of_the_serving_version_says_that_it_learns_nothing_new(
    tags: dict[str, str], digest: str, is_same: bool
) -> None:
    reason = same_log_reason(FIRST + DAY, 3, tags, digest)
    assert bool(reason) == is_same
    assert not is_same or ("version 3" in reason and "declare data.live.collect" in reason)
