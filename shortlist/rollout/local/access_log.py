"""The access log: one line of JSON for every request that Envoy saw, answered or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shortlist.serving.server.headers import ROLLOUT_HEADER, STEP_HEADER, TRACK_HEADER, USER_HEADER, VERSION_HEADER

FLUSH_MS = 200
"""A line is on disk after this long."""


def access_log(path: Path) -> dict[str, Any]:
    """Return Envoy's configuration of an access log.

    Fields: `time` (ISO 8601, UTC, microseconds), `id` (x-request-id), `user`, `track`, `rollout`, `step`, `version`
    (null where there is none; the last four as the route set them, only for inference), `path`, `protocol`,
    `status` (0: the client went away before an answer), `grpc` (status code or null), `flags` (Envoy's response
    flags or null), `details` (why Envoy answered or ended it as it did), `us` (from the request's last byte to the
    answer's first: neither a slow upload nor a slow download is the release's doing; null when there was no answer).
    """
    fields = {
        "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%6fZ)%",
        "id": "%REQ(X-REQUEST-ID)%",
        "user": f"%REQ({USER_HEADER})%",
        "track": f"%REQ({TRACK_HEADER})%",
        "rollout": f"%REQ({ROLLOUT_HEADER})%",
        "step": f"%REQ({STEP_HEADER})%",
        "version": f"%REQ({VERSION_HEADER})%",
        "path": "%REQ(:PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc": "%GRPC_STATUS_NUMBER%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "us": "%COMMON_DURATION(DS_RX_END:DS_TX_BEG:us)%",
    }
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": str(path),
            "log_format": {"json_format": fields},
        },
    }
