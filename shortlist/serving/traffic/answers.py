"""What came back for a request, whatever the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

Scores = npt.NDArray[np.float32]

_GRPC_STATUS: Final = {0: 200, 3: 400, 5: 404, 7: 403, 9: 400, 11: 400, 12: 404, 16: 401, 4: 504, 14: 503}
"""HTTP's status for a gRPC one; every other one is a 500. Failures are 5xx exactly as in the access log."""


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """One answer; a status of 0 when there was none."""

    status: int
    """HTTP's, or the one that stands for a gRPC status."""
    scores: Scores | None = None
    version: str = ""
    """The registered version that scored, as the answer names it."""
    track: str = ""
    """`stable`, `canary`, or empty when the answer names none."""
    error: str = ""
    retries: int = 0
    """Fresh connections tried because one could not be made."""
    resent: bool = False
    """Whether the request was sent a second time; see `Endpoint.resend`."""

    @property
    def failed(self) -> bool:
        """Whether the system is to blame: no answer, or one of 500 and above."""
        return self.status == 0 or self.status >= 500


def http_status(code: int) -> int:
    """Return HTTP's status for a gRPC one.

    >>> [http_status(code) for code in (0, 3, 14, 13)]
    [200, 400, 503, 500]
    """
    return _GRPC_STATUS.get(code, 500)


def read_json(body: bytes, header_length: int | None) -> tuple[Scores, str]:
    """Return scores and model version in the body of an HTTP answer.

    Args:
        body: All of it.
        header_length: Bytes of JSON in front of binary tensors; None when everything is JSON.

    Raises:
        ValueError: It is not an answer of the protocol.
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
