"""Responses of inference requests, independent of the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

Scores = npt.NDArray[np.float32]

_GRPC_STATUS: Final = {0: 200, 3: 400, 5: 404, 7: 403, 9: 400, 11: 400, 12: 404, 16: 401, 4: 504, 14: 503}
"""HTTP status per gRPC status; all others are 500. Failures are 5xx exactly as in the access log."""


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """Response to one request; its status is 0 when there was no response."""

    status: int
    """HTTP status, or the one that corresponds to a gRPC status."""
    scores: Scores | None = None
    version: str = ""
    """Registered version that scored, from the response."""
    track: str = ""
    """`stable`, `canary`, or empty when the response has no track."""
    error: str = ""
    retries: int = 0
    """Number of further attempts to connect."""
    resent: bool = False
    """Whether the request was sent a second time; see `Endpoint.resend`."""

    @property
    def failed(self) -> bool:
        """Whether the request failed: no response, or a status of 500 and above."""
        return self.status == 0 or self.status >= 500


def http_status(code: int) -> int:
    """Return the HTTP status for a gRPC status.

    >>> [http_status(code) for code in (0, 3, 14, 13)]
    [200, 400, 503, 500]
    """
    return _GRPC_STATUS.get(code, 500)


def read_json(body: bytes, header_length: int | None) -> tuple[Scores, str]:
    """Return scores and model version in the body of an HTTP response.

    Args:
        body: The complete body.
        header_length: Length of the JSON before binary tensors; None when the body is JSON alone.

    Raises:
        ValueError: It is not a response of the protocol.
    """
    answer = orjson.loads(body if header_length is None else memoryview(body)[:header_length])
    version = str(answer.get("model_version", ""))
    for output in answer["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is not None:
            assert header_length is not None
            return np.frombuffer(body, np.float32, count=size // 4, offset=header_length), version
        return np.array(output["data"], np.float32).ravel(), version  # null becomes NaN
    raise ValueError("the answer holds no output")


def read_protobuf(answer: Any) -> tuple[Scores, str]:
    """Return scores and model version in a `ModelInferResponse`.

    Raises:
        ValueError: It holds no scores.
    """
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32), answer.model_version
    if not answer.outputs:
        raise ValueError("the answer holds no output")
    return np.array(answer.outputs[0].contents.fp32_contents, np.float32), answer.model_version
