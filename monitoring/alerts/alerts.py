"""Which alerts decisions and retrainings fire or resolve, given the alerts that were sent before.

Three alerts, each with the labels `alertname`, `spec` and `severity`, each fired and in the end resolved:

- `ShortlistAlarm` (warning): traffic or quality went bad; fired when the alarm is raised and when a training starts.
- `ShortlistPage` (critical): a person must act, because no training will help; fired again for every window.
- `ShortlistRetrainingFailed` (warning): a retraining led to no new champion; resolved by the next one that does.

Sent alerts are kept in the outbox, so that every process computes the same alerts and none is sent twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from monitoring.alerts.alert import Alert, digest
from monitoring.alerts.alert_queue import AlertQueue
from monitoring.alerts.alert_sender import AlertSender, Delivery
from monitoring.retraining.alarm import format_utc
from monitoring.retraining.retrain_blockers import UNSUCCESSFUL_STATES
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision, Retraining
from shortlist.spec.monitoring import Alerts

ALARM: Final = "ShortlistAlarm"
PAGE: Final = "ShortlistPage"
RETRAINING_FAILED: Final = "ShortlistRetrainingFailed"
_SEVERITY: Final = {ALARM: "warning", PAGE: "critical", RETRAINING_FAILED: "warning"}


def send_alerts(
    monitoring_store: MonitoringStore, decision: RetrainDecision | None, alerts: Alerts, now: datetime, link: str = ""
) -> Delivery:
    """Queue new alerts, send all queued ones, and return the numbers of sent and waiting alerts.

    Calling it again, or in ten processes at once, sends no alert twice. An alert that its endpoint does not accept now
    is sent by the next call.

    Args:
        monitoring_store: The store with the outbox and the retrainings; the newest ended retraining is reported.
        decision: The new decision; None when there is none.
        alerts: The declared alerts.
        now: The present moment.
        link: Address of the status page.

    Raises:
        ShortlistError: The declared token is not in the environment.
    """
    outbox = AlertQueue(monitoring_store.records)
    sender = AlertSender(outbox, alerts)
    latest = outbox.latest()
    if decision is not None:
        sender.put(decision_alerts(decision, latest, link))
    ended = [retraining for retraining in monitoring_store.retrainings() if retraining.state != "running"]
    if ended:
        sender.put(retraining_alerts(monitoring_store.spec, ended[-1], latest, now, link))
    return sender.deliver()


def decision_alerts(decision: RetrainDecision, latest: Mapping[str, Alert], link: str = "") -> tuple[Alert, ...]:
    """Return the alerts that a decision fires or resolves.

    Args:
        decision: The decision; one that the schedule or a person triggered changes no alert.
        latest: The newest alert that was sent, by name.
        link: Address of the status page.
    """
    if decision.trigger != "drift":
        return ()
    alerts = []
    for name, holds, fires_again in _CONDITIONS:
        firing = _firing_alert(latest, name)
        starts = firing.starts if firing else decision.made
        if holds(decision) and (firing is None or decision.action == fires_again):
            alerts.append(_decision_alert(name, decision, starts, None, link))
        elif firing is not None and not holds(decision):
            alerts.append(_decision_alert(name, decision, starts, decision.made, link))
    return tuple(alerts)


def retraining_alerts(
    spec: str, retraining: Retraining, latest: Mapping[str, Alert], now: datetime, link: str = ""
) -> tuple[Alert, ...]:
    """Return the alerts that the end of a retraining fires or resolves.

    Args:
        spec: Name of the spec.
        retraining: A retraining that ended.
        latest: The newest alert that was sent, by name.
        now: The present moment.
        link: Address of the status page.
    """
    firing = _firing_alert(latest, RETRAINING_FAILED)
    starts = firing.starts if firing else now
    subject = f"{spec}: the retraining of {format_utc(retraining.window)}"
    if retraining.state in UNSUCCESSFUL_STATES:
        summary, ends = f"{subject} led to no new champion ({retraining.state})", None
    elif retraining.state == "promoted" and firing is not None:
        summary, ends = f"{subject} led to version {retraining.version}", now
    else:
        return ()
    notes = {"summary": summary, "description": retraining.reason, "run": retraining.run, "key": retraining.key}
    return (_alert(RETRAINING_FAILED, spec, retraining.key, notes, (starts, ends), link),)


_CONDITIONS: Final[tuple[tuple[str, Callable[[RetrainDecision], bool], str], ...]] = (
    (ALARM, lambda decision: decision.alarm, "retrain"),
    (PAGE, lambda decision: decision.action == "page", "page"),
)
"""Name of the alert, its condition, and the action that fires it again while the condition holds."""


def _firing_alert(latest: Mapping[str, Alert], name: str) -> Alert | None:
    alert = latest.get(name)
    return alert if alert is not None and alert.ends is None else None


def _decision_alert(name: str, decision: RetrainDecision, starts: datetime, ends: datetime | None, link: str) -> Alert:
    notes = {
        "summary": f"{decision.spec}: {_decision_summary(name, decision, ends is not None)}",
        "description": "; ".join(decision.reasons),
        "action": decision.action,
        "columns": ", ".join(decision.columns),
        "window": f"{format_utc(decision.window)} to {format_utc(decision.until)}",
        "key": decision.key,
    }
    return _alert(name, decision.spec, decision.key, notes, (starts, ends), link)


def _decision_summary(name: str, decision: RetrainDecision, is_over: bool) -> str:
    if name == PAGE:
        return "there is no reason to page any more" if is_over else "a person must act"
    if is_over:
        return "the alarm is over"
    return f"the alarm is raised; {'a' if decision.action == 'retrain' else 'no'} training starts"


def _alert(
    name: str, spec: str, key: str, notes: dict[str, str], span: tuple[datetime, datetime | None], link: str
) -> Alert:
    starts, ends = span
    return Alert(
        id=digest(name, "firing" if ends is None else "resolved", key),
        labels={"alertname": name, "spec": spec, "severity": _SEVERITY[name]},
        annotations={name: note for name, note in notes.items() if note},
        starts=starts,
        ends=ends,
        link=link,
    )
