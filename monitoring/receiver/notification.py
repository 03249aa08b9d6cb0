"""What Alertmanager sends to a webhook, version 4."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from monitoring.alerts.alerts import ALARM
from shortlist.contracts import ShortlistError

_Text = Annotated[str, StringConstraints(max_length=4_096)]
_Texts = Annotated[dict[_Text, _Text], Field(max_length=64)]
_MOST_ALERTS: Final = 1_000


class NotificationError(ShortlistError):
    """A body is no notification of Alertmanager's; sending it again does not help."""


class _Received(BaseModel):
    # Alertmanager adds fields from release to release; what is not read here may be anything.
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReceivedAlert(_Received):
    """One alert of a notification."""

    status: Literal["firing", "resolved"]
    labels: _Texts
    annotations: _Texts = {}
    startsAt: AwareDatetime  # noqa: N815 - Alertmanager's name
    fingerprint: _Text = ""


class Notification(_Received):
    """A group of alerts, as Alertmanager posts it (https://prometheus.io/docs/alerting/latest/configuration)."""

    version: Literal["4"]
    status: Literal["firing", "resolved"]
    alerts: tuple[ReceivedAlert, ...] = Field(max_length=_MOST_ALERTS)

    @property
    def alarmed(self) -> tuple[str, ...]:
        """The specs whose alarm is firing, each once, in the order of the alerts.

        Every other alert, and the end of an alarm, is for people.
        """
        firing = (one for one in self.alerts if one.status == "firing" and one.labels.get("alertname") == ALARM)
        return tuple(dict.fromkeys(one.labels["spec"] for one in firing if one.labels.get("spec")))


def read_notification(body: bytes) -> Notification:
    """Return what a body says.

    Raises:
        NotificationError: It is something else; the message names the field, and never what it held.
    """
    try:
        return Notification.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise NotificationError(
            f"{where}: {first['msg']}; wanted a notification of Alertmanager's, version 4"
        ) from None
