"""Requests and responses over HTTP, as all endpoints read and return them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson

from shortlist.serving.server.requests.request_errors import (
    BadRequestError,
    RequestError,
    TooLargeError,
    UnsupportedEncodingError,
    shorten,
)

JSON_TYPE: Final = {"content-type": "application/json"}
_RETRYABLE_STATUSES: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
"""zlib's window bits by content encoding; see RFC 9110, section 8.4.1."""


class RequestHead(NamedTuple):
    """Model, version and headers of an inference request."""

    model: str
    version: str
    """Empty: the version that is served."""
    headers: Mapping[str, str]
    """Headers, their names in lower case."""


class HttpResponse(NamedTuple):
    """Status, headers and content of an HTTP response."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def json_response(content: Any, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return a successful response in JSON; arrays of numpy become lists."""
    return HttpResponse(
        HTTPStatus.OK, {**(headers or {}), **JSON_TYPE}, orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    )


def error_response(error: RequestError) -> HttpResponse:
    """Return the response to a failed request; the only place where errors become HTTP responses."""
    retry_headers = {"retry-after": "1"} if error.http in _RETRYABLE_STATUSES else {}
    headers = {**JSON_TYPE, **retry_headers, **error.headers}
    return HttpResponse(error.http, headers, orjson.dumps({"error": str(error)}))


def decode_content(content: bytes | bytearray, headers: Mapping[str, str], max_bytes: int) -> bytes | bytearray:
    """Return a body without its content encoding.

    Args:
        content: The body as received.
        headers: Headers of the request, their names in lower case.
        max_bytes: Most bytes that may come out.

    Raises:
        UnsupportedEncodingError: The encoding is neither gzip nor deflate.
        BadRequestError: The body is not in this encoding.
        TooLargeError: More bytes would come out.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return content
    if encoding not in _WINDOW_BITS:
        raise UnsupportedEncodingError(f"content-encoding: got {shorten(encoding)}; wanted gzip, deflate or none")
    decoder = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        decoded = decoder.decompress(content, max_bytes)
    except zlib.error as error:
        raise BadRequestError(f"the body: got bytes that are not {encoding} ({error})") from None
    if not decoder.eof and decoder.unconsumed_tail:
        raise TooLargeError(
            f"the body: wanted at most {max_bytes} bytes after decoding (serving.limits.max_request_bytes)"
        )
    if not decoder.eof or decoder.unused_data:
        raise BadRequestError(f"the body: wanted one complete {encoding} stream")
    return decoded
