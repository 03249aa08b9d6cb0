"""Which alerts decisions and retrainings fire or resolve, given the alerts that were sent before.

Three alerts, each with the labels `alertname`, `spec` and `severity`, each fired and in the end resolved:

- `ShortlistAlarm` (warning): traffic or quality went bad; fired when the alarm is raised and when a training starts.
- `ShortlistPage` (critical): a person must act, because no training will help; fired again for every window.
- `ShortlistRetrainingFailed` (warning): a retraining led to no new champion; resolved by the next one that does.

The newest alert of each name is recorded before it is sent, so that a restarted process sends what its predecessor
could not, and none is sent twice. An alert that a destination does not accept is sent again by each monitoring run
until it is accepted, or until a newer alert of the same name takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from monitoring.alerts.alert import Alert, digest
from monitoring.alerts.alert_records import AlertRecord, AlertRecords
from monitoring.alerts.destinations import DeliveryError, Destination, TemporaryDeliveryError
from monitoring.retraining.alarm import format_utc
from monitoring.retraining.retrain_blockers import UNSUCCESSFUL_STATES, describe_retraining
from monitoring.store.monitoring_store import MonitoringStore
from monitoring.windows.records import RetrainDecision, Retraining
from shortlist.storage.records.store import LockedError

ALARM: Final = "ShortlistAlarm"
PAGE: Final = "ShortlistPage"
RETRAINING_FAILED: Final = "ShortlistRetrainingFailed"
TEST: Final = "ShortlistTest"
_SEVERITY: Final = {ALARM: "warning", PAGE: "critical", RETRAINING_FAILED: "warning", TEST: "none"}
_LOCK_SECONDS: Final = 60.0
"""Wait for another process that sends alerts."""


@dataclass(frozen=True)
class Delivery:
    """Numbers of deliveries in one monitoring run."""

    sent: int = 0
    waiting: int = 0
    """Deliveries that the next monitoring run tries again."""
    problems: tuple[str, ...] = ()
    """Why destinations did not accept alerts, a sentence each."""


def send_alerts(
    monitoring_store: MonitoringStore,
    decision: RetrainDecision | None,
    destinations: Mapping[str, Destination],
    now: datetime,
    link: str = "",
) -> Delivery:
    """Send new alerts and those that were not accepted before.

    Calling it again, or in ten processes at once, sends no alert twice. A destination that got an alert just before a
    crash gets it again: receivers recognise it by its fingerprint and times.

    Args:
        monitoring_store: The store with the alerts and the retrainings; the newest ended retraining is reported.
        decision: The new decision; None when there is none.
        destinations: The declared destinations, by digest.
        now: The present moment.
        link: Address of the status page.
    """
    records = AlertRecords(monitoring_store.records)
    ended = [retraining for retraining in monitoring_store.retrainings() if retraining.state != "running"]
    if not destinations:
        return Delivery()
    try:
        with records.lock(_LOCK_SECONDS):
            latest = {name: record.alert for name, record in records.read().items()}
            alerts = [*(decision_alerts(decision, latest, link) if decision is not None else ())]
            alerts += retraining_alerts(monitoring_store.spec, ended[-1], latest, now, link) if ended else ()
            for alert in alerts:
                if latest.get(alert.name) is None or latest[alert.name].id != alert.id:
                    records.write(AlertRecord(alert=alert, waiting=dict.fromkeys(destinations, "")))
            return _deliver(records, destinations)
    except LockedError:
        return Delivery(problems=("another process is sending alerts; the next monitoring run sends what is left",))


def send_test_alert(spec: str, destinations: Mapping[str, Destination], now: datetime) -> dict[str, str]:
    """Send a test alert to every destination, firing and then resolved; return each refusal, empty when accepted.

    Args:
        spec: Name of the spec.
        destinations: The declared destinations, by digest.
        now: The present moment.
    """
    notes = {"summary": f"{spec}: a test of the alerts", "description": "Nothing is wrong."}
    alerts = [_alert(TEST, spec, now.isoformat(), notes, (now, ends), now, "") for ends in (None, now)]
    answers = {}
    for destination in destinations.values():
        try:
            for alert in alerts:
                destination.send(alert)
            answers[str(destination)] = ""
        except DeliveryError as error:
            answers[str(destination)] = str(error)
    return answers


def _deliver(records: AlertRecords, destinations: Mapping[str, Destination]) -> Delivery:
    """Send what waits, oldest incident first; a destination that does not answer is not asked again in this run."""
    sent, problems = 0, dict[str, str]()
    for record in sorted(records.read().values(), key=lambda record: (record.alert.starts, record.alert.name)):
        waiting = {}
        for digest_of_url in sorted(record.waiting.keys() & destinations.keys()):
            if digest_of_url not in problems:
                try:
                    destinations[digest_of_url].send(record.alert)
                    sent += 1
                    continue
                except TemporaryDeliveryError as error:
                    problems[digest_of_url] = str(error)
                except DeliveryError as error:
                    waiting[digest_of_url] = str(error)
                    continue
            waiting[digest_of_url] = problems[digest_of_url]
        if waiting != record.waiting:
            records.write(record.model_copy(update={"waiting": waiting}))
    left = [record.waiting for record in records.read().values()]
    reasons = dict.fromkeys(problem for waiting in left for problem in waiting.values() if problem)
    return Delivery(sent, sum(map(len, left)), tuple(reasons))


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
    subject = f"{spec}: {describe_retraining(retraining)}"
    if retraining.state in UNSUCCESSFUL_STATES:
        summary, ends = f"{subject} led to no new champion ({retraining.state})", None
    elif retraining.state == "promoted" and firing is not None:
        failure = firing.annotations["summary"].removeprefix(f"{spec}: ")
        summary, ends = f"{subject} led to version {retraining.version}, after {failure}", now
    else:
        return ()
    notes = {"summary": summary, "description": retraining.reason, "run": retraining.run, "key": retraining.key}
    return (_alert(RETRAINING_FAILED, spec, retraining.key, notes, (starts, ends), now, link),)


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
    return _alert(name, decision.spec, decision.key, notes, (starts, ends), decision.made, link)


def _decision_summary(name: str, decision: RetrainDecision, is_over: bool) -> str:
    if name == PAGE:
        subject = f": {decision.reasons[0]}" if decision.reasons else ""
        return "there is no reason to page any more" if is_over else f"a person must act{subject}"
    if is_over:
        return "the alarm is over"
    columns = f" (columns {', '.join(decision.columns)})" if decision.columns else ""
    return f"the alarm is raised; {'a' if decision.action == 'retrain' else 'no'} training starts{columns}"


def _alert(
    name: str, spec: str, key: str, notes: dict[str, str], span: tuple[datetime, datetime | None], changed: datetime,
    link: str,
) -> Alert:  # fmt: skip
    starts, ends = span
    return Alert(
        id=digest(name, "firing" if ends is None else "resolved", key),
        labels={"alertname": name, "spec": spec, "severity": _SEVERITY[name]},
        annotations={name: note for name, note in notes.items() if note},
        starts=starts,
        ends=ends,
        changed=changed,
        link=link,
    )
