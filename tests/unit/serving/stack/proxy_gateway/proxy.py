"""The process of `ProxyGateway`: `python proxy.py PORT ROUTE LOG`."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from shortlist.rollout.evidence.access_log import SCHEMA
from shortlist.serving.server.requests.headers import (
    GATEWAY_HEADER,
    ROLLOUT_HEADER,
    STEP_HEADER,
    TRACK_HEADER,
    USER_HEADER,
    VERSION_HEADER,
)

PORT, ROUTE, LOG = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
Answer = tuple[int, dict[str, str], bytes]


def choose_track(route: dict[str, Any], user: str | None) -> tuple[str, int]:
    """Return track and version of a user; the users of the canary stay its users as its share grows."""
    hashed = int(hashlib.sha256(f"{route['rollout']}|{user or uuid.uuid4()}".encode()).hexdigest(), 16)
    if route["canary"] is not None and hashed % 100 < route["percent"]:
        return "canary", route["canary"]
    return "stable", route["stable"]


async def forward(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    """Return the answer of the version that a request is for, and log the request."""
    table = json.loads(ROUTE.read_text())
    if path == "/proxy/ready":
        return 200, {}, b""
    if table["route"] is None:
        return 503, {}, b'{"error": "no version is served"}'
    if (method, path) != ("POST", f"/v2/models/{table['model']}/infer"):
        return 404, {}, b'{"error": "only inference"}'
    track, version = choose_track(table["route"], headers.get(USER_HEADER))
    routed = {TRACK_HEADER: track, VERSION_HEADER: str(version), GATEWAY_HEADER: table["gateway_key"]}
    is_backend = headers.get("authorization") == f"Bearer {table['backend_token']}"
    if table["route"]["rollout"] is not None:
        routed |= {ROLLOUT_HEADER: table["route"]["rollout"], STEP_HEADER: str(table["route"]["step"])}
    identity, began = headers.get("x-request-id", str(uuid.uuid4())), time.perf_counter()
    line = {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "id": identity, "user": headers.get(USER_HEADER),
        "sender": "backend" if is_backend else "127.0.0.1", "track": track, "rollout": routed.get(ROLLOUT_HEADER),
        "step": routed.get(STEP_HEADER), "path": path, "grpc": None, "details": None,
    }  # fmt: skip
    kept = {name: value for name, value in headers.items() if name not in {"host", "content-length", *routed}}
    url = f"http://127.0.0.1:{table['ports'][str(version)]}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={**kept, **routed, "x-request-id": identity}) as answer,
    ):
        content = await answer.read()
    line |= {"status": answer.status, "us": round(1e6 * (time.perf_counter() - began))}
    assert line.keys() == set(SCHEMA)
    with LOG.open("a") as log:
        log.write(json.dumps(line) + "\n")
    return answer.status, {name: routed[name] for name in (TRACK_HEADER, VERSION_HEADER) if is_backend}, content


async def application(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    if scope["type"] != "http":
        return
    body, more_body = b"", True
    while more_body:
        part = await receive()
        body, more_body = body + part.get("body", b""), part.get("more_body", False)
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    status, answer_headers, content = await forward(scope["method"], scope["path"], headers, body)
    pairs = [(b"content-type", b"application/json")]
    pairs += [(name.encode(), value.encode()) for name, value in answer_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})


if __name__ == "__main__":
    uvicorn.run(application, host="127.0.0.1", port=PORT, lifespan="off", log_level="warning")
