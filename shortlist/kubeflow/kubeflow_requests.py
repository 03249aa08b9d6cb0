"""Asks a Kubeflow Pipelines server: for how long, how often, and what an answer that is a refusal means."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from shortlist.contracts import ShortlistError
from shortlist.storage.storage_config import redact_passwords

TOKEN_VARIABLE: Final = "SHORTLIST_KFP_TOKEN"  # noqa: S105 - the variable's name
"""Environment variable with the bearer token; inside a cluster the pod's own is read from the file that
`KF_PIPELINES_SA_TOKEN_PATH` names."""

_TRIES: Final = 4
_CONNECT_SECONDS: Final = 10
_PAGE: Final = 100


class KubeflowError(ShortlistError):
    """The server cannot be reached, or refuses.

    Args:
        message: For the user.
        status: HTTP status; 0 when there was no answer.
        passing: Whether the same question may be answered when it is asked again.
    """

    def __init__(self, message: str, status: int = 0, *, passing: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.passing = passing


class KubeflowRequests:
    """Questions to one server.

    Args:
        host: Its address.
        token: Bearer token, to be kept out of every message; may be empty.
        seconds: Longest wait for one answer.
        pause: Seconds before the first repeated question; it doubles.
    """

    def __init__(self, host: str, token: str, seconds: float, pause: float) -> None:
        self._host = host
        self._token = token
        self._wait = (_CONNECT_SECONDS, seconds)
        self._pause = pause

    def ask(self, question: Callable[..., Any], *arguments: Any, tries: int = _TRIES, **options: Any) -> Any:
        """Return the answer; what fails in passing is asked again, so the question must change nothing twice.

        Raises:
            KubeflowError: There is no answer, or it is a refusal.
        """
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError

        for attempt in range(tries):
            try:
                return question(*arguments, _request_timeout=self._wait, **options)
            except ApiException as error:
                problem = self._refused(error)
            except HTTPError as error:
                problem = self._unreachable(type(getattr(error, "reason", None) or error).__name__)
            if not problem.passing or attempt == tries - 1:
                raise problem from None
            time.sleep(self._pause * 2**attempt)
        raise AssertionError("every try either returns or raises")

    def get_or_create(self, find: Callable[[], Any], make: Callable[[], Any]) -> tuple[Any, bool]:
        """Return what is there, or make it; after a question without a clear answer, look before making it again.

        Returns:
            The thing, and whether it was made.

        Raises:
            KubeflowError: It cannot be made, or the answer names nothing.
        """
        for attempt in range(_TRIES):
            found = find()
            if found is not None:
                return found, False
            try:
                made = make()
                if made is None:
                    raise self._no_api()
                return made, True
            except KubeflowError as error:
                if not (error.passing or error.status == 409) or attempt == _TRIES - 1:
                    raise
                time.sleep(self._pause * 2**attempt)
        raise AssertionError("every try either returns or raises")

    def all(self, listing: Callable[..., Any], field: str, **where: Any) -> Iterator[Any]:
        """Give everything that a listing holds, page by page.

        Raises:
            KubeflowError: There is no answer, or it is a refusal.
        """
        token = ""
        while True:
            answer = self.ask(listing, page_size=_PAGE, page_token=token, **where)
            yield from getattr(answer, field) or ()
            token = answer.next_page_token
            if not token:
                return

    def gone(self, delete: Callable[..., Any], ident: str) -> None:
        """Delete a thing; that it is gone already is fine.

        Raises:
            KubeflowError: It cannot be deleted.
        """
        try:
            self.ask(delete, ident)
        except KubeflowError as error:
            if error.status != 404:
                raise

    def _refused(self, error: Any) -> KubeflowError:
        said, status = _message(error.body, self._token), int(error.status or 0)
        if not status:
            return self._unreachable(str(error.reason).partition("\n")[0])
        where = f"{self._host} answers {status}"
        if status == 401:
            given = "does not accept the token" if self._token else "wants a token"
            return KubeflowError(f"{where}: it {given}. Put a fresh one into {TOKEN_VARIABLE}.", status)
        if re.search(r"quota|resource_?exhausted", said, re.IGNORECASE):
            return KubeflowError(
                f"{where}: a quota refuses it: {said}. Nothing was started. Raise the quota of the namespace, or lower"
                " runtime.cluster.tasks.",
                status,
            )
        if status == 403:
            return KubeflowError(f"{where}: the token's owner may not do this: {said}", status)
        if status == 404:
            return KubeflowError(f"{where}: {said}. Is it Kubeflow Pipelines (2.x), and is the path right?", status)
        return KubeflowError(f"{where}: {said}", status, passing=status == 429 or status >= 500)

    def _no_api(self) -> KubeflowError:
        # The generated client takes a page for an answer whose every field is left out.
        return KubeflowError(
            f"{self._host} answers with something else than Kubeflow Pipelines' API, such as a login page. Is the"
            f" address that of the API, and does it need a token in {TOKEN_VARIABLE}?"
        )

    def _unreachable(self, reason: str) -> KubeflowError:
        return KubeflowError(
            f"{self._host}: no answer from Kubeflow Pipelines ({reason}). Is the address right, is the network or the"
            " port-forward up? It is safe to ask again: nothing is started twice.",
            passing=True,
        )


def checked_host(host: str) -> str:
    """Return an address without the slash at its end.

    Raises:
        KubeflowError: It is none, or holds a user and password.
    """
    if not re.fullmatch(r"https?://[^\s@]+", host):
        raise KubeflowError(f"HOST: got '{redact_passwords(host)}', wanted http(s)://host[:port] of Kubeflow Pipelines")
    return host.rstrip("/")


def token_of_environment() -> str:
    """Return the bearer token that the environment gives; empty when it gives none."""
    if os.environ.get(TOKEN_VARIABLE):
        return os.environ[TOKEN_VARIABLE].strip()
    path = os.environ.get("KF_PIPELINES_SA_TOKEN_PATH", "")
    return Path(path).read_text().strip() if path and Path(path).is_file() else ""


def _message(body: Any, token: str) -> str:
    """Return the server's own words, in one line and without the token."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        content = json.loads(text)
        text = str(content.get("error") or content.get("message") or text)
    except (ValueError, AttributeError):
        text = re.sub(r"<[^>]*>", " ", text)  # a proxy's page
    shown = text.replace(token, "***") if token else text
    return " ".join(shown.split())[:300] or "no reason given"
