"""Endpoints in plain JSON: a ranking of given items, recommendations, and what users saw and did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from shortlist.serving.server.inference.service import InferenceRequest, Service
from shortlist.serving.server.protocols.json_api.answers import ranking, slate
from shortlist.serving.server.protocols.json_api.requests import (
    parse_json,
    read_rank_request,
    read_recommend_request,
    unsent_columns,
)
from shortlist.serving.server.requests.admission import AdmissionSlot
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.http_messages import HttpResponse, decode_content, json_response
from shortlist.serving.server.requests.paths import EVENTS, RANK, RECOMMEND

Endpoint = Callable[[Service, Any, RequestContext, AdmissionSlot], Awaitable[dict[str, Any]]]
"""From the service, the content of a body, the headers and the admission slot to the content of the response."""


async def rank(service: Service, document: Any, context: RequestContext, slot: AdmissionSlot) -> dict[str, Any]:
    """Return the given items in the order of their scores.

    Raises:
        RequestError: The request is invalid, or the model cannot score it.
    """
    request = read_rank_request(service, document, context)
    answer = ranking(service, document["items"], await service.answer(request, slot))
    return answer | _not_sent(service, request)


async def recommend(service: Service, document: Any, context: RequestContext, slot: AdmissionSlot) -> dict[str, Any]:
    """Return a slate.

    Raises:
        RequestError: The request is invalid, or the model cannot score its candidates.
    """
    request = read_recommend_request(service, document, context)
    return slate(service, await service.answer(request, slot)) | _not_sent(service, request)


def _not_sent(service: Service, request: InferenceRequest) -> dict[str, Any]:
    names = unsent_columns(service, request)
    return {"not_sent": names} if names else {}


async def take_events(service: Service, document: Any, context: RequestContext, slot: AdmissionSlot) -> dict[str, Any]:
    """Append what users saw and did to the outcome log; it is on the disk when this returns.

    Raises:
        RequestError: The body is invalid, or the disk does not take the events.
    """
    assert service.events is not None
    receipt = await service.events.receive(document)
    return asdict(receipt)


JSON_ENDPOINTS: Final[Mapping[str, Endpoint]] = {RANK: rank, RECOMMEND: recommend, EVENTS: take_events}


async def answer_json(
    endpoint: Endpoint, service: Service, headers: Mapping[str, str], content: bytes | bytearray
) -> HttpResponse:
    """Return the response to a request in plain JSON.

    Args:
        endpoint: What answers.
        service: The service of the server.
        headers: Headers of the request, their names in lower case.
        content: The body.

    Raises:
        RequestError: The request cannot be answered.
    """
    if endpoint is take_events:
        assert service.events is not None
        service.events.senders.check(headers)
    context = service.request_context(headers)
    async with service.admission.slot(context.sender) as slot:  # before the body is parsed: a refusal must cost nothing
        document = parse_json(decode_content(content, headers, service.settings.serving.limits.max_request_bytes))
        del content
        response = await endpoint(service, document, context, slot)
    return json_response(response, service.response_headers(context))
