"""One alert, as Alertmanager sends it to webhooks."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

_STILL_FIRING: Final = "0001-01-01T00:00:00Z"  # Alertmanager's value for no end


class Alert(BaseModel):
    """One alert, firing or resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Digest of the event, the same in every process that reports it: 16 hexadecimal digits."""
    labels: dict[str, str]
    """Labels, including `alertname` and `spec`; alerts with the same labels belong to one incident."""
    annotations: dict[str, str]
    """Texts for people."""
    starts: datetime
    """When the incident began."""
    ends: datetime | None = None
    """When the incident ended; None while it lasts."""
    changed: datetime | None = None
    """When it fired, fired again, or was resolved; None in records of earlier versions."""
    link: str = ""
    """Address of the status page."""

    @property
    def name(self) -> str:
        """Name of the alert."""
        return self.labels["alertname"]

    @property
    def status(self) -> Literal["firing", "resolved"]:
        """Status of the alert."""
        return "firing" if self.ends is None else "resolved"

    @property
    def line(self) -> str:
        """Status, time of its newest change and summary, with the beginning of an incident that fired before."""
        changed = f"{self.changed or self.starts:%Y-%m-%d %H:%M}"
        began = f"{self.starts:%Y-%m-%d %H:%M}"
        since = f" (the incident began {began})" if began != changed else ""
        return f"{self.status}  {changed}  {self.annotations.get('summary', self.name)}{since}"

    @property
    def fingerprint(self) -> str:
        """Digest of the labels: 16 hexadecimal digits."""
        return digest(*(f"{name}={value}" for name, value in sorted(self.labels.items())))

    def webhook(self) -> dict[str, Any]:
        """Return the alert as the body of Alertmanager's webhook, version 4."""
        group = {name: self.labels[name] for name in ("alertname", "spec")}
        selector = ", ".join(f'{name}="{value}"' for name, value in group.items())
        return {
            "version": "4",
            "groupKey": f"{{}}:{{{selector}}}",
            "truncatedAlerts": 0,
            "status": self.status,
            "receiver": "shortlist",
            "groupLabels": group,
            "commonLabels": self.labels,
            "commonAnnotations": self.annotations,
            "externalURL": self.link,
            "alerts": [
                {
                    "status": self.status,
                    "labels": self.labels,
                    "annotations": self.annotations,
                    "startsAt": _format_time(self.starts),
                    "endsAt": _format_time(self.ends) if self.ends else _STILL_FIRING,
                    "generatorURL": self.link,
                    "fingerprint": self.fingerprint,
                }
            ],
        }


def digest(*parts: str) -> str:
    """Return the digest of some texts: 16 hexadecimal digits."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
