"""Client for instant queries of Prometheus."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Final

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from shortlist.contracts import ShortlistError

PATIENCE_SECONDS: Final = 10.0
"""How long one query is retried while Prometheus restarts; the next analysis queries again anyway."""
_TIMEOUT_SECONDS: Final = 5.0


class PrometheusUnavailableError(ShortlistError):
    """Prometheus does not answer, or not with a vector."""


class _Sample(BaseModel):
    model_config = ConfigDict(frozen=True)

    metric: Mapping[str, str]
    value: tuple[float, str]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True)

    resultType: str  # noqa: N815  (Prometheus' own name)
    result: tuple[_Sample, ...]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)

    status: str
    data: _Data


class Prometheus:
    """Runs instant queries on a Prometheus server.

    Args:
        url: `http(s)://host:port[/path]`.
        patience_seconds: How long one query is retried.
    """

    def __init__(self, url: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.url, self._patience_seconds = url.rstrip("/"), patience_seconds

    def query_by(self, label: str, query: str) -> dict[str, float]:
        """Return the finite values of a vector by one of its labels; empty when the vector is empty.

        Raises:
            PrometheusUnavailableError: It does not answer, or not with a vector.
        """
        return {labels.get(label, ""): value for labels, value in self._query(query)}

    def query_values(self, query: str) -> list[float]:
        """Return the finite values of a vector.

        Raises:
            PrometheusUnavailableError: It does not answer, or not with a vector.
        """
        return [value for _, value in self._query(query)]

    def _query(self, query: str) -> list[tuple[Mapping[str, str], float]]:
        answer = self._ask(query)
        if answer.status != "success" or answer.data.resultType != "vector":
            raise PrometheusUnavailableError(
                f"{self.url}: got {answer.status}, {answer.data.resultType}; wanted a vector of '{query}'"
            )
        samples = [(sample.metric, float(sample.value[1])) for sample in answer.data.result]
        return [(labels, value) for labels, value in samples if math.isfinite(value)]

    def _ask(self, query: str) -> _Answer:
        retrying = Retrying(
            retry=retry_if_exception_type(httpx.HTTPError),
            stop=stop_after_delay(self._patience_seconds),
            wait=wait_exponential_jitter(initial=0.1, max=2, jitter=0.1),
            reraise=True,
        )
        try:
            answer = retrying(self._get, query)
            return _Answer.model_validate_json(answer.content)
        except httpx.HTTPError as error:
            raise PrometheusUnavailableError(
                f"Prometheus at {self.url} does not answer ({type(error).__name__}: {error})"
            ) from None
        except ValidationError:
            raise PrometheusUnavailableError(
                f"Prometheus at {self.url}: the answer to '{query}' is not Prometheus'"
            ) from None

    def _get(self, query: str) -> httpx.Response:
        address, parameters = f"{self.url}/api/v1/query", {"query": query}
        return httpx.get(address, params=parameters, timeout=_TIMEOUT_SECONDS, verify=_tls()).raise_for_status()


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context with the CA certificates; httpx would read them for every query, in 0.04 s."""
    return httpx.create_ssl_context()
