"""A gateway is one folder with the interface: a small proxy serves a canary rollout in place of Envoy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shortlist.rollout.deployment import Deployment, Route
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.local.section import GATEWAYS, StackSection
from shortlist.rollout.local.stack import Stack
from shortlist.serving.paths import ServingPaths
from shortlist.spec.serving import KPI, Serving

INFER = "/v2/models/demo/infer"
HALF = Route(stable=1, canary=2, percent=50, rollout="r1", step=0)


def test_the_spec_names_a_gateway_that_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="unknown gateway 'proxy'; wanted one of envoy"):
        StackSection(gateway="proxy")
    monkeypatch.setitem(GATEWAYS, "proxy", "tests.unit.serving.stack.proxy_gateway.gateway:ProxyGateway")
    assert StackSection(gateway="proxy").gateway == "proxy"


def test_another_gateway_splits_users_and_its_log_is_evidence(
    tmp_path: Path,
    bring_up: Callable[..., Stack],
    deployment: Callable[[int], Deployment],
    ask: Callable[..., Any],
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GATEWAYS, "proxy", "tests.unit.serving.stack.proxy_gateway.gateway:ProxyGateway")
    paths = ServingPaths.for_spec(tmp_path, "demo")
    stack = bring_up(paths, gateway="proxy")
    for version in (1, 2):
        stack.deploy(deployment(version), Serving())
    for version in (1, 2):
        stack.wait_ready(version, 60)
    assert ask(stack, "POST", INFER, b"{}")[0] == 503
    stack.route(HALF)
    track_by_user, authorization = {}, f"Bearer {stack.backend_endpoint().token}"
    for user in (f"u{number}" for number in range(40)):
        status, headers, answer = ask(stack, "POST", INFER, b"{}", x_shortlist_user=user, authorization=authorization)
        track_by_user[user] = headers["x-shortlist-track"]
        assert (status, answer["version"]) == (200, {"stable": 1, "canary": 2}[track_by_user[user]])
    assert 8 <= list(track_by_user.values()).count("canary") <= 32
    status, headers, _ = ask(stack, "POST", INFER, b"answer 503", x_shortlist_user="u0", authorization=authorization)
    assert status == 503
    reader = EvidenceReader(paths, "r1", 1, KPI())
    reader.poll()
    whole = reader.snapshot().whole
    assert (whole.stable.requests + whole.canary.requests, whole.stable.failed + whole.canary.failed) == (41, 1)
    assert whole.canary.users == list(track_by_user.values()).count("canary")
    assert whole.users_on_both_tracks == 0

    (process,) = stack.status().gateway
    assert (process.program, process.ready, stack.status().problems) == ("proxy", True, ())
    stack.route(Route(stable=2))
    assert {ask(stack, "POST", INFER, b"{}", x_shortlist_user=user)[2]["version"] for user in track_by_user} == {2}
    stack.retire(1)
    assert Stack.connect(paths) is not None
    assert "proxy" in stack.stop()
    until(lambda: Stack.connect(paths) is None)
