"""All four stages behind Envoy: a release that orders otherwise reaches everybody as any candidate does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tritonclient import grpc as triton_grpc

from shortlist.deployment.refreshed_releases import refresh_releases
from shortlist.deployment.slate_explanation import explain
from shortlist.features.feast.feast_store_location import feast_store_location
from shortlist.rollout.states.phases import Phase
from shortlist.slates.refreshed_releases import RELEASES, announced_releases

pytestmark = pytest.mark.long


def recommended(live: Any, request_id: str, k: int, user: int = 5) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """Return the headers of a slate that Envoy's port gives, and its outputs by name."""
    numbers = {"k": k, "user_id": user}
    inputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [value]} for name, value in numbers.items()]
    token = live.stack.backend_endpoint().token
    headers = {"x-request-id": request_id, "x-shortlist-user": str(user), "authorization": f"Bearer {token}"}
    address = f"{live.stack.url}/v2/models/{live.world.spec.name}.recommend/infer"
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(address, body, headers)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        answered = json.loads(answer.read())
    return dict(answer.headers), {value["name"]: value["data"] for value in answered["outputs"]}


def test_a_release_that_orders_otherwise_is_promoted_and_every_slate_can_be_explained(live: Any) -> None:
    order_of = {live.world.versions["first"]: -1, live.world.versions["second"]: 1}
    shown_slates: list[Any] = []
    for number in range(2):
        if number:
            assert live.roll_out(live.other_version).state.phase is Phase.PROMOTED
        version = live.champion
        headers, slate = recommended(live, f"slate-{number}-{version}", 5)
        assert (headers["x-shortlist-version"], headers["x-shortlist-track"]) == (str(version), "stable")
        assert slate["score"] == sorted(slate["score"], key=lambda score: order_of[version] * score)
        assert set(slate["source"]) <= {"popular", "together"} and slate["position"] == [1, 2, 3, 4, 5]
        assert not {*slate["item_id"]} & {*shown_slates}  # seen, also where another version showed it
        shown_slates += slate["item_id"]
        request = pl.col("request_id") == f"slate-{number}-{version}"
        live.until(lambda: live.predictions("request_id").filter(request).height == 1, "the slate was not logged")  # noqa: B023
        row = live.predictions().filter(request).to_dicts()[0]
        assert (row["items"], row["version"], row["track"]) == (slate["item_id"], version, "stable")
        text = "\n".join(explain(live.paths, f"slate-{number}-{version}"))
        assert f"version {version}, stable" in text and "retrieval  50 candidates" in text


def test_slates_are_served_over_grpc(live: Any) -> None:
    client = triton_grpc.InferenceServerClient(f"127.0.0.1:{live.stack.port}")
    inputs = []
    for name, number in {"k": 5, "user_id": 7}.items():
        inputs.append(triton_grpc.InferInput(name, [1], "INT64"))
        inputs[-1].set_data_from_numpy(np.array([number]))
    try:
        headers = {"x-request-id": "over-grpc", "x-shortlist-user": "7"}
        slate = client.infer(f"{live.world.spec.name}.recommend", inputs, headers=headers)
    finally:
        client.close()
    items = slate.as_numpy("item_id").tolist()
    assert slate.as_numpy("position").tolist() == [1, 2, 3, 4, 5]
    request = pl.col("request_id") == "over-grpc"
    live.until(lambda: live.predictions("request_id").filter(request).height == 1, "the slate was not logged")
    row = live.predictions().filter(request).to_dicts()[0]
    assert (row["items"], row["user"], row["version"]) == (items, "7", live.champion)


def test_more_items_than_there_are_is_the_clients_mistake(live: Any) -> None:
    try:
        recommended(live, "too-many", 1_000_000)
    except urllib.error.HTTPError as error:
        with error:
            assert (error.code, "k: got 1000000; wanted 1 to" in error.read().decode()) == (400, True)
    else:
        raise AssertionError("it was answered")


def test_a_refreshed_release_reaches_the_servers_and_the_log(live: Any, tmp_path: Path) -> None:
    world, numbers = live.world, count()
    place = feast_store_location(world.store)
    try:
        items = refresh_releases(world.origin, world.spec.data, world.log, "", tmp_path / "releases", 1)
        announced = announced_releases(place)
        registry = world.origin.tracker.registry
        served = {registry.version_of(alias) for alias in ("champion", "candidate")}
        assert set(announced) == {registry.tags_of(version)["release"] for version in served} and items > 50
        refreshed = pl.col("slate:release").is_in([value.digest for value in announced.values()])

        def is_logged() -> bool:
            number = next(numbers)
            recommended(live, f"refreshed-{number}", 5, user=number)
            return live.predictions("slate:release").filter(refreshed).height > 0

        live.until(is_logged, "no slate was made by the refreshed release")
        row = live.predictions().filter(refreshed).to_dicts()[0]
        text = "\n".join(explain(live.paths, row["request_id"], place))
        (blessed,) = (digest for digest, value in announced.items() if value.digest == row["slate:release"])
        assert f"release    {row['slate:release']}, a refresh of {blessed}, the training's; {items} items" in text
    finally:
        (world.store / RELEASES).unlink(missing_ok=True)
