"""All four stages behind Envoy: a release that orders otherwise reaches everybody as any candidate does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import polars as pl
import pytest

from shortlist.deployment.why import explain
from shortlist.rollout.phases import Phase

pytestmark = pytest.mark.servers


def recommended(live: Any, request_id: str, k: int, user: int = 5) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Return the headers of a slate that Envoy's port gives, and its outputs by name."""
    numbers = {"k": k, "user_id": user}
    inputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [one]} for name, one in numbers.items()]
    headers = {"x-request-id": request_id, "x-shortlist-user": str(user)}
    address = f"{live.stack.url}/v2/models/{live.world.spec.name}.recommend/infer"
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(address, body, headers)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        said = json.loads(answer.read())
    return dict(answer.headers), {one["name"]: one["data"] for one in said["outputs"]}


def test_a_release_that_orders_otherwise_is_promoted_and_every_slate_can_be_explained(live: Any) -> None:
    order_of = {live.world.versions["first"]: -1, live.world.versions["second"]: 1}
    shown: list[Any] = []
    for number in range(2):
        if number:
            assert live.roll_out(live.other).state.phase is Phase.PROMOTED
        version = live.champion
        headers, slate = recommended(live, f"slate-{number}-{version}", 5)
        assert (headers["x-shortlist-version"], headers["x-shortlist-track"]) == (str(version), "stable")
        assert slate["score"] == sorted(slate["score"], key=lambda score: order_of[version] * score)
        assert set(slate["source"]) <= {"popular", "together"} and slate["position"] == [1, 2, 3, 4, 5]
        assert not {*slate["item_id"]} & {*shown}  # seen, also where another version showed it
        shown += slate["item_id"]
        request = pl.col("request_id") == f"slate-{number}-{version}"
        live.until(lambda: live.predictions().filter(request).height == 1, "the slate was not logged")  # noqa: B023
        row = live.predictions().filter(request).to_dicts()[0]
        assert (row["items"], row["version"], row["track"]) == (slate["item_id"], version, "stable")
        text = "\n".join(explain(live.places, f"slate-{number}-{version}"))
        assert f"version {version}, stable" in text and "retrieval  50 candidates" in text


def test_more_items_than_there_are_is_the_clients_mistake(live: Any) -> None:
    try:
        recommended(live, "too-many", 1_000_000)
    except urllib.error.HTTPError as error:
        with error:
            assert (error.code, "k: got 1000000; wanted 1 to" in error.read().decode()) == (400, True)
    else:
        raise AssertionError("it was answered")
