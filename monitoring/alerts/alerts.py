"""Which alerts decisions and retrainings fire or resolve, given the alerts that were sent before.

Three alerts, each with the labels `alertname`, `spec` and `severity`, each fired and in the end resolved:

- `ShortlistAlarm` (warning): live traffic or quality went bad; fired when the alarm is raised and when training begins.
- `ShortlistPage` (critical): a person must act, because no training will help; fired again for every window.
- `ShortlistRetrainingFailed` (warning): a retraining led to no new champion; resolved by the next one that does.

Alerts that were sent are kept in the outbox, so that every process computes the same alerts and sends none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from monitoring.alerts.alert import Alert, digest
from monitoring.alerts.alert_queue import AlertQueue
from monitoring.alerts.alert_sender import AlertSender, Delivery
from monitoring.retraining.alarm import text_of
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
    """Queue new alerts, and send what waits; return what was sent and what was not.

    Calling it again, or in ten processes at once, sends no alert twice. What no endpoint accepts now is sent by the
    next call.

    Args:
        monitoring_store: Where the outbox and the retrainings are; the newest retraining that ended is reported.
        decision: What was decided now, if anything.
        alerts: As declared.
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
    ended = [one for one in monitoring_store.retrainings() if one.state != "running"]
    if ended:
        sender.put(retraining_alerts(monitoring_store.spec, ended[-1], latest, now, link))
    return sender.deliver()


def decision_alerts(decision: RetrainDecision, latest: Mapping[str, Alert], link: str = "") -> tuple[Alert, ...]:
    """Return the alerts that a decision fires or resolves.

    Args:
        decision: What was decided. One of the schedule or of a person changes no alert.
        latest: The newest alert that was sent, by name.
        link: Address of the status page.
    """
    if decision.trigger != "drift":
        return ()
    found = []
    for name, holds, fires_again in _CONDITIONS:
        before = _firing(latest, name)
        starts = before.starts if before else decision.made
        if holds(decision) and (before is None or decision.action == fires_again):
            found.append(_of_decision(name, decision, starts, None, link))
        elif before is not None and not holds(decision):
            found.append(_of_decision(name, decision, starts, decision.made, link))
    return tuple(found)


def retraining_alerts(
    spec: str, retraining: Retraining, latest: Mapping[str, Alert], now: datetime, link: str = ""
) -> tuple[Alert, ...]:
    """Return the alerts that the end of a retraining fires or resolves.

    Args:
        spec: Name of the spec.
        retraining: One that ended.
        latest: The newest alert that was sent, by name.
        now: The present moment.
        link: Address of the status page.
    """
    before = _firing(latest, RETRAINING_FAILED)
    starts = before.starts if before else now
    about = f"{spec}: the retraining of {text_of(retraining.window)}"
    if retraining.state in UNSUCCESSFUL_STATES:
        summary, ends = f"{about} led to no new champion ({retraining.state})", None
    elif retraining.state == "promoted" and before is not None:
        summary, ends = f"{about} led to version {retraining.version}", now
    else:
        return ()
    notes = {"summary": summary, "description": retraining.reason, "run": retraining.run, "key": retraining.key}
    return (_alert(RETRAINING_FAILED, spec, retraining.key, notes, (starts, ends), link),)


_CONDITIONS: Final[tuple[tuple[str, Callable[[RetrainDecision], bool], str], ...]] = (
    (ALARM, lambda one: one.alarm, "retrain"),
    (PAGE, lambda one: one.action == "page", "page"),
)
"""Alert, its condition, and the action with which it fires again while the condition holds."""


def _firing(latest: Mapping[str, Alert], name: str) -> Alert | None:
    alert = latest.get(name)
    return alert if alert is not None and alert.ends is None else None


def _of_decision(name: str, decision: RetrainDecision, starts: datetime, ends: datetime | None, link: str) -> Alert:
    notes = {
        "summary": f"{decision.spec}: {_says(name, decision, ends is not None)}",
        "description": "; ".join(decision.reasons),
        "action": decision.action,
        "columns": ", ".join(decision.columns),
        "window": f"{text_of(decision.window)} to {text_of(decision.until)}",
        "key": decision.key,
    }
    return _alert(name, decision.spec, decision.key, notes, (starts, ends), link)


def _says(name: str, decision: RetrainDecision, is_over: bool) -> str:
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
