"""Who is told what: the news that decisions and retrainings are, against what people were told before.

Three alerts, each with the labels `alertname`, `spec` and `severity`, each fired and in the end resolved:

- `ShortlistAlarm` (warning): live traffic or quality went bad; fired when the alarm is raised and when training begins.
- `ShortlistPage` (critical): a person must look, for nothing helps by itself; fired anew for every window.
- `ShortlistRetrainingFailed` (warning): a retraining led to no new champion; resolved by the next one that does.

What people were told is kept in the outbox, so whoever looks brings the same news, and nobody brings it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from monitoring.alerts.alert import Alert, digest
from monitoring.alerts.alert_queue import AlertQueue
from monitoring.alerts.alert_sender import AlertSender, Delivery
from monitoring.monitoring_store import MonitoringStore
from monitoring.records import RetrainDecision, Retraining
from monitoring.retraining.alarm import text_of
from monitoring.retraining.retrain_blockers import UNSUCCESSFUL_STATES
from shortlist.spec.monitoring import Alerts

ALARM: Final = "ShortlistAlarm"
PAGE: Final = "ShortlistPage"
RETRAINING_FAILED: Final = "ShortlistRetrainingFailed"
_SEVERITY: Final = {ALARM: "warning", PAGE: "critical", RETRAINING_FAILED: "warning"}


def send_alerts(
    monitoring_store: MonitoringStore, decision: RetrainDecision | None, alerts: Alerts, now: datetime, link: str = ""
) -> Delivery:
    """Tell people what is new, and deliver what still waits from before; return what came of it.

    Doing it again, or in ten processes at once, tells nothing twice. What no endpoint takes now is not lost: it goes
    out with the next call.

    Args:
        monitoring_store: Where the outbox and the retrainings are; the newest retraining that ended is told of.
        decision: What was decided now, if anything.
        alerts: As declared.
        now: The present moment.
        link: Where to look, such as the address of the status page.

    Raises:
        ShortlistError: The declared token is not in the environment.
    """
    outbox = AlertQueue(monitoring_store.records)
    courier = AlertSender(outbox, alerts)
    told = outbox.told()
    if decision is not None:
        courier.put(decision_alerts(decision, told, link))
    ended = [one for one in monitoring_store.retrainings() if one.state != "running"]
    if ended:
        courier.put(retraining_alerts(monitoring_store.spec, ended[-1], told, now, link))
    return courier.deliver()


def decision_alerts(decision: RetrainDecision, told: Mapping[str, Alert], link: str = "") -> tuple[Alert, ...]:
    """Return what a decision means to people; empty when there is no news.

    Args:
        decision: What was decided. What the schedule or a person started is no news.
        told: The newest alert that people were told, by name.
        link: Where to look.
    """
    if decision.trigger != "drift":
        return ()
    found = []
    for name, holds, always_news in _CONDITIONS:
        before = _firing(told, name)
        starts = before.starts if before else decision.made
        if holds(decision) and (before is None or decision.action == always_news):
            found.append(_of_decision(name, decision, starts, None, link))
        elif before is not None and not holds(decision):
            found.append(_of_decision(name, decision, starts, decision.made, link))
    return tuple(found)


def retraining_alerts(
    spec: str, retraining: Retraining, told: Mapping[str, Alert], now: datetime, link: str = ""
) -> tuple[Alert, ...]:
    """Return what the end of a retraining means to people; empty when there is no news.

    Args:
        spec: Name of the spec.
        retraining: One that ended.
        told: The newest alert that people were told, by name.
        now: The present moment.
        link: Where to look.
    """
    before = _firing(told, RETRAINING_FAILED)
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
"""Alert, when it holds, and the action that is news though it held before."""


def _firing(told: Mapping[str, Alert], name: str) -> Alert | None:
    alert = told.get(name)
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
        return "there is no reason to page any more" if is_over else "a person must look"
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
