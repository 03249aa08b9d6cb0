"""All four stages behind Envoy."""

from __future__ import annotations

import urllib.error
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
from shortlist.slates.refreshed_releases import RELEASES, announced_releases

pytestmark = pytest.mark.long


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
        live.recommended("too-many", 1_000_000)
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
            live.recommended(f"refreshed-{number}", 5, user=number)
            return live.predictions("slate:release").filter(refreshed).height > 0

        live.until(is_logged, "no slate was made by the refreshed release")
        row = live.predictions().filter(refreshed).to_dicts()[0]
        text = "\n".join(explain(live.paths, row["request_id"], place))
        (blessed,) = (digest for digest, value in announced.items() if value.digest == row["slate:release"])
        assert f"release    {row['slate:release']}, a refresh of {blessed}, the training's; {items} items" in text
    finally:
        (world.store / RELEASES).unlink(missing_ok=True)
