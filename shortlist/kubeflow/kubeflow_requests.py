"""Calls of Kubeflow Pipelines' API with time limits, retries and error messages."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import redact_passwords

TOKEN_VARIABLE: Final = "SHORTLIST_KFP_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the bearer token; inside a cluster the pod's own is read from the file that
`KF_PIPELINES_SA_TOKEN_PATH` names."""

_TRIES: Final = 4
_CONNECT_SECONDS: Final = 10
_PAGE: Final = 100


class KubeflowError(ShortlistError):
    """The server cannot be reached, or refuses a call.

    Args:
        message: Message for the user.
        status: HTTP status; 0 when there was no answer.
        passing: Whether the same call may succeed when it is repeated.
    """

    def __init__(self, message: str, status: int = 0, *, passing: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.passing = passing


class KubeflowRequests:
    """Calls of one server's API.

    Args:
        host: Address of the server.
        token: Bearer token; it appears in no message and may be empty.
        seconds: Longest wait for one answer.
        pause: Seconds before the first retry; they double.
    """

    def __init__(self, host: str, token: str, seconds: float, pause: float) -> None:
        self._host = host
        self._token = token
        self._wait = (_CONNECT_SECONDS, seconds)
        self._pause = pause

    def call(self, method: Callable[..., Any], *arguments: Any, tries: int = _TRIES, **options: Any) -> Any:
        """Return the answer of a method of the generated client; transient failures are retried up to `tries` times.

        Raises:
            KubeflowError: There is no answer, or the server refuses.
        """
        return self._retrying(tries)(self._call_once, method, *arguments, **options)

    def get_or_create(self, find: Callable[[], Any], create: Callable[[], Any]) -> tuple[Any, bool]:
        """Return the existing object, or create it; after a failed creation, look again before creating it again.

        Returns:
            The object, and whether it was created.

        Raises:
            KubeflowError: It cannot be created, or the answer is not that of the API.
        """
        for attempt in self._retrying(_TRIES, 409):
            existing = find()
            if existing is not None:
                return existing, False
            with attempt:
                created = create()
                if created is None:
                    raise self._not_the_api_error()
                return created, True
        raise AssertionError("every try either returns or raises")

    def list_all(self, listing: Callable[..., Any], field: str, **filters: Any) -> Iterator[Any]:
        """Yield all objects of a listing, page by page.

        Raises:
            KubeflowError: There is no answer, or the server refuses.
        """
        token = ""
        while True:
            answer = self.call(listing, page_size=_PAGE, page_token=token, **filters)
            yield from getattr(answer, field) or ()
            token = answer.next_page_token
            if not token:
                return

    def delete_if_exists(self, delete: Callable[..., Any], resource_id: str) -> None:
        """Delete an object by its id, if it exists.

        Raises:
            KubeflowError: It cannot be deleted.
        """
        try:
            self.call(delete, resource_id)
        except KubeflowError as error:
            if error.status != 404:
                raise

    def _retrying(self, tries: int, *statuses: int) -> Retrying:
        """Return retries of what may pass, and of what is refused with some statuses."""

        def may_pass(error: BaseException) -> bool:
            return isinstance(error, KubeflowError) and (error.passing or error.status in statuses)

        wait = wait_exponential(multiplier=self._pause)
        return Retrying(retry=retry_if_exception(may_pass), stop=stop_after_attempt(tries), wait=wait, reraise=True)

    def _call_once(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return method(*arguments, _request_timeout=self._wait, **options)
        except ApiException as error:
            raise self._refusal(error) from None
        except HTTPError as error:
            raise self._unreachable_error(type(getattr(error, "reason", None) or error).__name__) from None

    def _refusal(self, error: Any) -> KubeflowError:
        reason, status = _server_message(error.body, self._token), int(error.status or 0)
        if not status:
            return self._unreachable_error(str(error.reason).partition("\n")[0])
        prefix = f"{self._host} answers {status}"
        if status == 401:
            token_problem = "does not accept the token" if self._token else "wants a token"
            return KubeflowError(f"{prefix}: it {token_problem}. Put a fresh one into {TOKEN_VARIABLE}.", status)
        if re.search(r"quota|resource_?exhausted", reason, re.IGNORECASE):
            return KubeflowError(
                f"{prefix}: a quota refuses it: {reason}. Nothing was started. Raise the quota of the namespace, or"
                " lower runtime.cluster.tasks.",
                status,
            )
        if status == 403:
            return KubeflowError(f"{prefix}: the token's owner may not do this: {reason}", status)
        if status == 404:
            return KubeflowError(f"{prefix}: {reason}. Is it Kubeflow Pipelines (2.x), and is the path right?", status)
        return KubeflowError(f"{prefix}: {reason}", status, passing=status == 429 or status >= 500)

    def _not_the_api_error(self) -> KubeflowError:
        # The generated client reads any page as an answer without fields.
        return KubeflowError(
            f"{self._host} does not answer as Kubeflow Pipelines' API does; it may be a login page. Is the address that"
            f" of the API, and does it need a token in {TOKEN_VARIABLE}?"
        )

    def _unreachable_error(self, reason: str) -> KubeflowError:
        return KubeflowError(
            f"{self._host}: no answer from Kubeflow Pipelines ({reason}). Is the address right, is the network or the"
            " port-forward up? It is safe to repeat the command: nothing is started twice.",
            passing=True,
        )


def check_host(host: str) -> str:
    """Return an address without the slash at its end.

    Raises:
        KubeflowError: It is no HTTP address, or contains a user and password.
    """
    if not re.fullmatch(r"https?://[^\s@]+", host):
        raise KubeflowError(f"HOST: got '{redact_passwords(host)}', wanted http(s)://host[:port] of Kubeflow Pipelines")
    return host.rstrip("/")


def read_token() -> str:
    """Return the bearer token of the environment; empty when there is none."""
    if os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE].strip()
    path = os.environ.get("KF_PIPELINES_SA_TOKEN_PATH", "")
    return Path(path).read_text().strip() if path and Path(path).is_file() else ""


def _server_message(body: Any, token: str) -> str:
    """Return the server's message in one line and without the token."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        content = json.loads(text)
        text = str(content.get("error") or content.get("message") or text)
    except (ValueError, AttributeError):
        text = re.sub(r"<[^>]*>", " ", text)  # a proxy's page
    redacted = text.replace(token, "***") if token else text
    return " ".join(redacted.split())[:300] or "no reason given"
