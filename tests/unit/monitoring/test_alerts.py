"""Alerts fire once per event, and resolve when it ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from monitoring.alerts.alert import Alert
from monitoring.alerts.alerts import decision_alerts, retraining_alerts
from monitoring.retraining.retrain_policy import decision_key
from monitoring.windows.records import RetrainDecision, Retraining

FIRST = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)


def decision(number: int, action: str, alarm: bool = False, trigger: str = "drift") -> RetrainDecision:
    start = FIRST + number * DAY
    return RetrainDecision(
        spec="demo",
        action=action,
        trigger=trigger,
        key=decision_key("demo", action, start, trigger),
        window=start,
        until=start + DAY,
        reasons=("price moved", "so did brand"),
        columns=("price", "brand"),
        alarm=alarm,
        made=start + DAY + timedelta(hours=1),
    )


def retraining(number: int, state: str, reason: str = "") -> Retraining:
    moment = FIRST + number * DAY
    return Retraining(
        key=decision_key("demo", "retrain", moment, "drift"),
        started=moment + DAY,
        window=moment,
        state=state,
        version=7 if state == "promoted" else None,
        reason=reason,
        run="runs/x",
    )


STORY = {
    ".": ("hold", False),
    "!": ("hold", True),  # the alarm is raised, and something keeps a training from starting
    "R": ("retrain", True),
    "P": ("page", False),
    "Q": ("page", True),
}


def latest_by_name(*alerts: Alert) -> dict[str, Alert]:
    return {alert.name: alert for alert in alerts}


def news(story: str) -> list[str]:
    """Return the alerts of each decision: A for the alarm, P for the page, lower case when they resolve."""
    latest: dict[str, Alert] = {}
    new_alerts = []
    for number, sign in enumerate(story):
        alerts = decision_alerts(decision(number, *STORY[sign]), latest)
        latest |= latest_by_name(*alerts)
        signs = [alert.name.removeprefix("Shortlist")[0] for alert in alerts]
        new_alerts.append("".join(x if a.ends is None else x.lower() for x, a in zip(signs, alerts, strict=True)))
    return new_alerts


@pytest.mark.parametrize(
    ("story", "alerts"),
    [
        ("...", ["", "", ""]),
        (".R!!.", ["", "A", "", "", "a"]),  # raised, still raised, over
        ("!R", ["A", "A"]),  # first it could not train, now it does: news
        ("RRQ.", ["A", "A", "P", "ap"]),
        ("PP.", ["P", "P", "p"]),  # every window anew
        (".QQ!.", ["", "AP", "P", "p", "a"]),
        ("R.R", ["A", "a", "A"]),
        (".", [""]),
    ],
)
def test_alerts_fire_and_resolve(story: str, alerts: list[str]) -> None:
    assert news(story) == alerts


def test_an_event_has_the_same_id_in_every_process() -> None:
    (first,) = decision_alerts(decision(1, "page"), {})
    (repeated,) = decision_alerts(decision(1, "page"), latest_by_name(first))
    assert first == repeated
    (next_alert,) = decision_alerts(decision(2, "page"), latest_by_name(first))
    assert next_alert.id != first.id
    assert next_alert.fingerprint == first.fingerprint
    assert next_alert.starts == first.starts  # one story that goes on


def test_an_alarm_cleared_within_one_window_resolves_its_alert() -> None:
    # The window was looked at with the alarm raised; then a new model was promoted, and it was looked at again.
    (raised,) = decision_alerts(decision(1, "hold", alarm=True), {})
    (resolved,) = decision_alerts(decision(1, "hold", alarm=False), latest_by_name(raised))
    assert (resolved.status, resolved.starts, resolved.id != raised.id) == ("resolved", raised.starts, True)


def test_scheduled_decisions_fire_and_resolve_no_alert() -> None:
    (raised,) = decision_alerts(decision(0, "retrain", alarm=True), {})
    assert decision_alerts(decision(1, "retrain", trigger="schedule"), latest_by_name(raised)) == ()
    assert decision_alerts(decision(1, "retrain", trigger="schedule"), {}) == ()


def test_an_alert_has_the_reasons_and_the_action() -> None:
    (alert,) = decision_alerts(decision(1, "retrain", alarm=True), {}, link="http://127.0.0.1:5000/loop.html")
    assert alert.labels == {"alertname": "ShortlistAlarm", "spec": "demo", "severity": "warning"}
    assert alert.annotations == {
        "summary": "demo: the alarm is raised; a training starts (columns price, brand)",
        "description": "price moved; so did brand",
        "action": "retrain",
        "columns": "price, brand",
        "window": "2026-01-20 00:00 to 2026-01-21 00:00",
        "key": decision_key("demo", "retrain", FIRST + DAY, "drift"),
    }


def test_the_webhooks_body_is_alertmanagers_version_4() -> None:
    (alert,) = decision_alerts(decision(1, "page"), {}, link="http://127.0.0.1:5000/loop.html")
    body = alert.webhook()
    assert {name: body[name] for name in ("version", "status", "receiver", "truncatedAlerts", "externalURL")} == {
        "version": "4",
        "status": "firing",
        "receiver": "shortlist",
        "truncatedAlerts": 0,
        "externalURL": "http://127.0.0.1:5000/loop.html",
    }
    assert body["groupLabels"] == {"alertname": "ShortlistPage", "spec": "demo"}
    assert body["groupKey"] == '{}:{alertname="ShortlistPage", spec="demo"}'
    (webhook_alert,) = body["alerts"]
    assert (body["commonLabels"], body["commonAnnotations"]) == (webhook_alert["labels"], webhook_alert["annotations"])
    assert webhook_alert == {
        "status": "firing",
        "labels": {"alertname": "ShortlistPage", "spec": "demo", "severity": "critical"},
        "annotations": alert.annotations,
        "startsAt": "2026-01-21T01:00:00.000Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://127.0.0.1:5000/loop.html",
        "fingerprint": alert.fingerprint,
    }
    assert len(alert.fingerprint) == 16


def test_a_resolved_alert_ends_and_keeps_its_fingerprint() -> None:
    (fired,) = decision_alerts(decision(1, "page"), {})
    (resolved,) = decision_alerts(decision(2, "hold"), latest_by_name(fired))
    (webhook_alert,) = resolved.webhook()["alerts"]
    assert (webhook_alert["status"], webhook_alert["startsAt"], webhook_alert["endsAt"]) == (
        "resolved",
        "2026-01-21T01:00:00.000Z",
        "2026-01-22T01:00:00.000Z",
    )
    assert resolved.fingerprint == fired.fingerprint


@pytest.mark.parametrize("state", ["failed", "held", "not_promoted"])
def test_a_retraining_without_a_new_champion_fires_an_alert_with_its_reason(state: str) -> None:
    (alert,) = retraining_alerts("demo", retraining(1, state, "auc 0.70 < 0.72"), {}, FIRST + 3 * DAY)
    assert alert.status == "firing"
    assert alert.annotations == {
        "summary": f"demo: the retraining of 2026-01-20 00:00 led to no new champion ({state})",
        "description": "auc 0.70 < 0.72",
        "key": retraining(1, state).key,
        "run": "runs/x",
    }


def test_a_promotion_resolves_the_alert_of_failed_retrainings() -> None:
    now = FIRST + 5 * DAY
    (first,) = retraining_alerts("demo", retraining(1, "failed"), {}, now - DAY)
    (second,) = retraining_alerts("demo", retraining(2, "held"), latest_by_name(first), now)
    assert (second.starts, second.fingerprint, second.id != first.id) == (first.starts, first.fingerprint, True)
    (resolved,) = retraining_alerts("demo", retraining(3, "promoted"), latest_by_name(second), now)
    assert (resolved.status, resolved.starts, resolved.ends) == ("resolved", first.starts, now)
    assert resolved.annotations["summary"] == (
        "demo: the retraining of 2026-01-22 00:00 led to version 7,"
        " after the retraining of 2026-01-21 00:00 led to no new champion (held)"
    )
    assert retraining_alerts("demo", retraining(4, "promoted"), latest_by_name(resolved), now) == ()
    assert retraining_alerts("demo", retraining(4, "promoted"), {}, now) == ()


def test_the_version_of_a_persons_training_is_not_said_to_be_that_of_the_retraining_of_its_window() -> None:
    (held,) = retraining_alerts("demo", retraining(1, "held"), {}, FIRST + 3 * DAY)
    by_hand = retraining(1, "promoted").model_copy(update={"trigger": "manual", "started": FIRST + 3.5 * DAY})
    (resolved,) = retraining_alerts("demo", by_hand, latest_by_name(held), FIRST + 4 * DAY)
    assert resolved.annotations["summary"] == (
        "demo: the training that a person started at 2026-01-22 12:00 led to version 7,"
        " after the retraining of 2026-01-20 00:00 led to no new champion (held)"
    )


def test_the_line_of_an_alert_has_the_time_at_which_it_fired_again_or_was_resolved() -> None:
    (raised,) = decision_alerts(decision(1, "hold", alarm=True), {})
    (trains,) = decision_alerts(decision(2, "retrain", alarm=True), latest_by_name(raised))
    (over,) = decision_alerts(decision(3, "hold", alarm=False), latest_by_name(trains))
    assert [alert.line for alert in (raised, trains, over)] == [
        "firing  2026-01-21 01:00  demo: the alarm is raised; no training starts (columns price, brand)",
        "firing  2026-01-22 01:00  demo: the alarm is raised; a training starts (columns price, brand)"
        " (the incident began 2026-01-21 01:00)",
        "resolved  2026-01-23 01:00  demo: the alarm is over (the incident began 2026-01-21 01:00)",
    ]


def test_a_running_retraining_fires_no_alert() -> None:
    (failed,) = retraining_alerts("demo", retraining(0, "failed"), {}, FIRST)
    assert retraining_alerts("demo", retraining(1, "running"), latest_by_name(failed), FIRST + 3 * DAY) == ()


def test_an_alert_round_trips_through_json() -> None:
    (alert,) = decision_alerts(decision(1, "page"), {})
    assert Alert.model_validate_json(alert.model_dump_json()) == alert
