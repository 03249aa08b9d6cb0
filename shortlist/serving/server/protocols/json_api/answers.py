"""Responses in plain JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from shortlist.serving.export.signature import SCORE
from shortlist.serving.server.inference.service import InferenceResponse, Service


def ranking(service: Service, items: list[Any], response: InferenceResponse) -> dict[str, Any]:
    """Return the content of a response to a request for a ranking, the best item first.

    Args:
        service: The service of the server.
        items: Items as they were sent.
        response: Scores of the items.
    """
    item_column = service.data.item
    values_by_output = {output.name: np.asarray(output.values).tolist() for output in response.outputs}
    ranked = []
    for index in np.argsort(-np.asarray(response.scores), kind="stable").tolist():
        sent = items[index]
        item = sent.get(item_column) if isinstance(sent, dict) else sent
        scores = {name: values[index] for name, values in values_by_output.items()}
        ranked.append({"index": index, **({} if item_column is None else {"item": item}), **scores})
    return {"request_id": response.request_id, "degraded": response.degraded, "items": ranked}


def slate(service: Service, response: InferenceResponse) -> dict[str, Any]:
    """Return the content of a response to a request for recommendations, in the order in which to show them."""
    values_by_output = {
        "item" if output.name == service.data.item else output.name: _to_list(output.values)
        for output in response.outputs
    }
    values_by_output["index"] = list(range(len(response.scores)))
    names = ["index", "item", "position", SCORE]
    names += [name for name in values_by_output if name not in names]
    items = [
        dict(zip(names, values, strict=True))
        for values in zip(*(values_by_output[name] for name in names), strict=True)
    ]
    parameters = response.parameters
    content = {
        "request_id": response.request_id,
        "degraded": response.degraded,
        "items": items,
        "explored": parameters["explored"],
        "short": parameters["short"],
        "fallback": [source for source in str(parameters["fallback"]).split(",") if source],
    }
    return content | ({"empty": parameters["empty"]} if "empty" in parameters else {})


def _to_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else np.asarray(values).tolist()
