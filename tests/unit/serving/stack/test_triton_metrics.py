"""The query of the cluster's autoscaler matches a real Triton's metrics: milliseconds in the queue per request."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.kserve.objects.manifests import Version, inference_service
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.serving.export.repository import write_repository
from shortlist.serving.triton.triton import RunningTriton, running_triton
from shortlist.spec.cluster import Cluster, Images
from shortlist.spec.serving import Batching

REQUESTS, ROWS = 24, 512


def queue_query() -> str:
    images = Images(pipeline="pipeline:1", triton="triton:1", allow_tags=True)
    owner = ObjectOwner(cluster="c", namespace="ml", spec="demo")
    version = Version(owner=owner, version=7, digest="0" * 16, repository="1" * 16, source="s3://b/p", settings={})
    (metric,) = inference_service(version, Cluster(images=images))["spec"]["predictor"]["autoScaling"]["metrics"]
    return str(metric["external"]["metric"]["query"])


def answer(query: str, counted: dict[str, float], pods: int) -> float:
    """Evaluate the query as Prometheus would for pods that each counted the same within the last minute."""
    of_pods = r"count\(count by \(pod\) \((\w+)\{[^}]*\}\)\)"
    text = re.sub(of_pods, lambda match: str(pods * (match[1] in counted)), query)
    text = re.sub(r"sum\(rate\((\w+)\{[^}]*\}\[1m\]\)\)", lambda match: repr(pods * counted[match[1]] / 60), text)
    assert re.fullmatch(r"[-+*/ ().,\de]*clamp_min[-+*/ ().,\de]*", text), f"not understood: {text}"
    return float(eval(text, {"clamp_min": max}))  # noqa: S307 - numbers and one function, see above


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, deployment: Callable[[int], Deployment]) -> dict[str, float]:
    """A real Triton's metrics for some requests of many rows."""
    repository = tmp_path_factory.mktemp("metrics") / "repository"
    write_repository(deployment(7).model_folder / "serving", 7, Batching(), repository, "python")
    with running_triton(repository) as server:

        def ask(_: int) -> None:
            numbers = triton.InferInput("numbers", [ROWS, 2], "FP64")
            numbers.set_data_from_numpy(np.zeros((ROWS, 2)))
            with triton.InferenceServerClient(server.grpc) as client:
                client.infer("demo", [numbers])

        old_metrics = read_metrics(server)  # of the warm-up
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(REQUESTS)))
        return {name: value - old_metrics[name] for name, value in read_metrics(server).items()}


def read_metrics(server: RunningTriton) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{server.ports.metrics}/metrics", timeout=30).text
    return {name: float(value) for name, value in re.findall(r"^(nv_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)}


def test_the_metric_is_milliseconds_of_queue_per_request(counted: dict[str, float]) -> None:
    assert counted["nv_inference_request_success"] == REQUESTS
    assert counted["nv_inference_count"] == REQUESTS * ROWS  # rows, which says nothing about how long one waits
    mean_ms = counted["nv_inference_queue_duration_us"] / REQUESTS / 1000
    assert answer(queue_query(), counted, pods=1) == pytest.approx(mean_ms, rel=1e-6)


def test_replicas_follow_the_mean_for_any_number_of_pods(counted: dict[str, float]) -> None:
    """KEDA divides by pods (AverageValue): wanted replicas are the query's answer over the threshold."""
    slow = {**counted, "nv_inference_queue_duration_us": REQUESTS * 12_000.0}  # 12 ms each
    threshold_ms = 8
    expected_replicas = [answer(queue_query(), slow, pods) / threshold_ms for pods in (2, 4, 6)]
    assert expected_replicas == pytest.approx(
        [3.0, 6.0, 9.0]
    )  # half as many again each time, until the queue is shorter


def test_without_requests_the_queue_time_is_zero(counted: dict[str, float]) -> None:
    quiet = {**counted, "nv_inference_queue_duration_us": 0.0}
    assert answer(queue_query(), quiet, pods=3) == 0.0
