"""A stub of a version's server: returns its version and the headers of the request."""

import asyncio
import collections
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

SETTINGS = {}


REQUEST_COUNTS = collections.Counter()


async def echo(scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
    if scope["type"] != "http":
        return
    body, more_body = b"", True
    while more_body:
        part = await receive()
        body, more_body = body + part.get("body", b""), part.get("more_body", False)
    REQUEST_COUNTS[body] += 1
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    port = SETTINGS["http_port"]
    answer = {
        "version": SETTINGS["version"],
        "headers": headers,
        "bytes": len(body),
        "seen": REQUEST_COUNTS[body],
        "port": port,
    }
    if body == b"take your time":
        await asyncio.sleep(0.2)
    unready = body == f"unready at {port}".encode()
    status = 503 if unready or body.startswith(b"answer 503") else 200
    kind = [(b"content-type", b"application/json"), *([(b"x-shortlist-unready", b"1")] if unready else [])]
    await send({"type": "http.response.start", "status": status, "headers": kind})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


class Echo(services.GRPCInferenceServiceServicer):
    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802  (its name in the protocol)
        return messages.ServerReadyResponse(ready=True)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = messages.ModelInferResponse(model_name=request.model_name, model_version=str(SETTINGS["version"]))
        for key, value in context.invocation_metadata():
            if isinstance(value, str):
                answer.parameters[key].string_param = value
        return answer


async def main() -> None:
    grpc_server = grpc.aio.server()
    services.add_GRPCInferenceServiceServicer_to_server(Echo(), grpc_server)
    grpc_server.add_insecure_port(f"127.0.0.1:{SETTINGS['grpc_port']}")
    await grpc_server.start()
    health = uvicorn.Server(uvicorn.Config(echo, lifespan="off", port=SETTINGS["health_port"], log_level="warning"))
    answering = asyncio.create_task(health.serve())
    await uvicorn.Server(uvicorn.Config(echo, lifespan="off", port=SETTINGS["http_port"], log_level="warning")).serve()
    health.should_exit = True
    await answering
    await grpc_server.stop(1)


if __name__ == "__main__":
    SETTINGS.update(json.loads(Path(sys.argv[1]).read_text()))
    asyncio.run(main())
