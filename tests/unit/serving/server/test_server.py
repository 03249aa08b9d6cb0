"""The complete server as a process, with a real Triton."""

import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

INFER = "/v2/models/shop/infer"


def column(name: str, datatype: str, *values: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": list(values)}


USER = column("user_id", "INT64", 1)
THREE = column("item_id", "BYTES", "item 0", "item 2", "nowhere")
FIRST = column("position", "INT64", 1)


@pytest.fixture(scope="module")
def server(start: Any, triton: Any) -> Any:
    server = start(triton.http, max_rows=40, batching={"max_batch_rows": 16})
    server.until_ready()
    return server


def logged(server: Any, request_id: str) -> dict[str, Any]:
    log_rows: list[dict[str, Any]] = []

    def has_row() -> bool:
        rows = server.logged().filter(pl.col("request_id") == request_id)
        log_rows.extend(rows.to_dicts())
        return bool(log_rows)

    server.until(has_row)
    assert len(log_rows) == 1
    return log_rows[0]


def test_a_user_and_items_get_a_score_each_from_feast_and_the_snapshot(server: Any, impressions: Any) -> None:
    status, answer = server.infer(USER, THREE, FIRST)
    assert status == 200
    (output,) = answer["outputs"]
    user_part = 1000.0 * impressions[1]
    assert output == {
        "name": "score",
        "datatype": "FP32",
        "shape": [3],
        "data": [user_part + 1.0, user_part - 2.5, user_part],
    }
    assert (answer["model_name"], answer["model_version"]) == ("shop", "3")
    assert answer["parameters"]["degraded"] is False


def test_every_row_may_have_a_different_user(server: Any, impressions: Any) -> None:
    users = column("user_id", "INT64", 2, 1, None, 4711)
    _, answer = server.infer(users, column("item_id", "BYTES", *["nowhere"] * 4), FIRST)
    assert answer["outputs"][0]["data"] == [1000.0 * impressions[2], 1000.0 * impressions[1], 0.0, 0.0]


def test_a_request_without_a_user_still_gets_scores(server: Any) -> None:
    status, answer = server.infer(THREE, FIRST)
    assert (status, answer["outputs"][0]["data"]) == (200, [1.0, -2.5, 0.0])


def test_no_candidates_get_an_empty_answer(server: Any) -> None:
    status, answer = server.infer(USER, column("item_id", "BYTES"))
    assert (status, answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == (200, [0], [])


def test_more_rows_than_triton_takes_at_once_are_cut_and_keep_their_order(server: Any) -> None:
    names = [f"item {number % 7}" for number in range(40)]
    _, answer = server.infer(column("item_id", "BYTES", *names), FIRST)
    weights = [1.0, 0.0, -2.5, 0.0, 1.0, 2.0, 3.0]
    assert answer["outputs"][0]["data"] == [weights[number % 7] for number in range(40)]


def test_what_was_answered_is_in_the_log_with_who_answered_whom(server: Any) -> None:
    status, headers, body = server.get(
        INFER, {"id": "mine", "inputs": [USER, THREE, FIRST]},
        x_request_id="one", x_shortlist_user="someone", x_shortlist_track="canary", x_shortlist_rollout="r1",
        x_shortlist_step="2", x_forwarded_for="10.0.0.1, 192.0.2.7",
    )  # fmt: skip
    assert status == 200
    assert json.loads(body)["id"] == "mine"
    assert not {"x-shortlist-track", "x-shortlist-version"} & set(headers)
    assert "model_version" not in json.loads(body)
    row = logged(server, "one")
    assert (row["user"], row["routed_by_user"], row["sender"]) == ("someone", True, "192.0.2.7")
    assert (row["track"], row["rollout"], row["step"], row["version"]) == ("canary", "r1", 2, 3)
    assert (row["status"], row["degraded"], row["items"]) == (200, False, ["item 0", "item 2", "nowhere"])
    assert row["scores"] == json.loads(body)["outputs"][0]["data"]
    assert (row["user_id"], row["position"], row["page"], row["event_time"]) == ([1], [1], None, None)  # as sent
    assert len(row["digest"]) == 16
    assert 0 < row["latency_ms"] < 60_000
    server.infer(USER, THREE, FIRST, x_request_id="two")
    row = logged(server, "two")
    assert (row["user"], row["routed_by_user"]) == ("1", False)  # the request's own column; chance chose the track


def test_both_protocols_and_both_forms_give_the_same_answer_and_digest(server: Any) -> None:
    _, plain = server.infer(USER, THREE, FIRST, x_request_id="json")
    expected = plain["outputs"][0]["data"]
    texts = np.array(["item 0", "item 2", "nowhere"], np.object_)
    values = {"user_id": np.array([1]), "item_id": texts, "position": np.array([1], np.int32)}
    inputs = []
    for name, value in values.items():
        datatype = {"O": "BYTES", "l": "INT64", "i": "INT32"}[value.dtype.char]
        inputs.append(triton_grpc.InferInput(name, list(value.shape), datatype).set_data_from_numpy(value))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        headers = {"x-request-id": "raw", "x-shortlist-track": "stable"}
        answer = client.infer("shop", inputs, headers=headers, request_id="of the client")
    assert answer.get_response().id == "of the client"  # whatever id a gateway adds for the logs
    assert answer.as_numpy("score").tolist() == expected
    assert answer.get_response().model_version == ""  # who is on a track is not told of which version
    status, headers, body = _binary(server, values, "binary")
    length = int(headers["inference-header-content-length"])
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert np.frombuffer(body[length:], np.float32).tolist() == expected
    assert logged(server, "json")["digest"] == logged(server, "binary")["digest"] == logged(server, "raw")["digest"]
    assert logged(server, "raw")["track"] == "stable"


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_tritons_grpc_client_is_answered_with_and_without_gzip(server: Any, compression: str | None) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        answer = client.infer("shop", items_of(triton_grpc), compression_algorithm=compression)
    assert answer.as_numpy("score").tolist() == [1.0, -2.5, 0.0]


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_tritons_http_client_is_answered_with_and_without_compression(server: Any, algorithm: str | None) -> None:
    pytest.importorskip("geventhttpclient", reason="needs tritonclient[http]")
    from tritonclient import http as triton_http

    with triton_http.InferenceServerClient(f"127.0.0.1:{server.http}") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("shop", "3")
        assert client.get_model_metadata("shop")["outputs"][0]["name"] == "score"
        answer = client.infer(
            "shop", items_of(triton_http), request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )  # fmt: skip
    assert answer.as_numpy("score").tolist() == [1.0, -2.5, 0.0]


KSERVE_CLIENT = """
import asyncio, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

async def ask(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, "shop")
    items = InferInput("item_id", [3], "BYTES", data=["item 0", "item 2", "nowhere"])
    position = InferInput("position", [1], "INT64", data=[1])
    answer = await client.infer(url, InferRequest("shop", [items, position]), model_name="shop")
    print(*answer.outputs[0].data)

asyncio.run(ask(sys.argv[1]))
"""
"""In a process of its own: it and Triton's client define the protocol's messages under the same names."""


def test_kserves_client_is_answered(server: Any) -> None:
    installed = find_spec("kserve")
    if installed is None or installed.origin is None:  # a folder of tests has the same name
        pytest.skip("needs kserve, whose client is tried beside this project")
    command = [sys.executable, "-c", KSERVE_CLIENT, f"http://127.0.0.1:{server.http}"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr[-2_000:]
    assert asked.stdout.split() == ["1.0", "-2.5", "0.0"]


def items_of(client: Any) -> list[Any]:
    """Return the inputs of three candidates, as a module of Triton's client has them."""
    items = client.InferInput("item_id", [3], "BYTES")
    items.set_data_from_numpy(np.array(["item 0", "item 2", "nowhere"], np.object_))
    position = client.InferInput("position", [1], "INT64")
    position.set_data_from_numpy(np.array([1]))
    return [items, position]


def _binary(server: Any, values: dict[str, Any], request_id: str) -> tuple[int, dict[str, str], bytes]:
    """Send a binary request and ask for a binary response."""
    heads, tail = [], b""
    for name, value in values.items():
        texts = [text.encode() for text in value] if value.dtype == np.object_ else []
        raw = b"".join(struct.pack("<I", len(text)) + text for text in texts) or value.tobytes()
        datatype = {"O": "BYTES", "l": "INT64", "i": "INT32"}[value.dtype.char]
        size = {"binary_data_size": len(raw)}
        heads.append({"name": name, "datatype": datatype, "shape": value.shape, "parameters": size})
        tail += raw
    head = json.dumps({"inputs": heads, "outputs": [{"name": "score", "parameters": {"binary_data": True}}]}).encode()
    named = {"Inference_Header_Content_Length": str(len(head)), "x_request_id": request_id}
    return server.get(INFER, head + tail, **named)  # type: ignore[no-any-return]


def test_typed_contents_are_accepted(server: Any) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="shop", model_version="3", id="typed")
    item = request.inputs.add(name="item_id", datatype="BYTES", shape=[2])
    item.contents.bytes_contents.extend([b"item 0", b"item 2"])
    position = request.inputs.add(name="position", datatype="INT16", shape=[1])
    position.contents.int_contents.append(1)
    price = request.inputs.add(name="price", datatype="FP32", shape=[1])
    price.contents.fp32_contents.append(0.5)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer, call = stub.ModelInfer.with_call(request, metadata=(("x-shortlist-track", "stable"),))
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [1.0, -2.5]
    assert (answer.id, answer.parameters["x-shortlist-track"].string_param) == ("typed", "stable")
    assert dict(call.initial_metadata())["x-shortlist-version"] == "3"


def test_grpc_says_what_is_served_and_refuses_with_a_sentence(server: Any) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("shop", "3")
        assert client.get_server_metadata().name == "shortlist"
        inputs = {model_input.name: model_input.datatype for model_input in client.get_model_metadata("shop").inputs}
        assert inputs == {"user_id": "INT64", "item_id": "BYTES", "position": "INT64", "event_time": "INT64"}
        wrong = triton_grpc.InferInput("itm_id", [1], "INT64")
        wrong.set_data_from_numpy(np.array([1]))
        with pytest.raises(InferenceServerException, match="no input 'itm_id'; did you mean 'item_id'") as refused:
            client.infer("shop", [wrong])
        assert "INVALID_ARGUMENT" in refused.value.status()
        with pytest.raises(
            InferenceServerException, match=r"got model 'shop' version 4; here is 'shop' version 3"
        ) as no:
            client.infer("shop", [wrong], model_version="4")
        assert "NOT_FOUND" in no.value.status()


def test_http_says_what_is_served_and_refuses_with_a_sentence(server: Any) -> None:
    assert server.get("/v2/health/live")[0] == server.get("/v2/models/shop/versions/3/ready")[0] == 200
    assert json.loads(server.get("/v2")[2])["name"] == "shortlist"
    described = json.loads(server.get("/v2/models/shop")[2])
    item = next(model_input for model_input in described["inputs"] if model_input["name"] == "item_id")
    assert item == {"name": "item_id", "datatype": "BYTES", "shape": [-1], "parameters": {"optional": False}}
    assert described["outputs"] == [{"name": "score", "datatype": "FP32", "shape": [-1]}]
    for path in ("/v2/models/shop/versions/4/ready", "/v2/models/other", "/v2/models/other/ready", "/nowhere"):
        status, _, body = server.get(path)
        assert status == 404, path
        assert json.loads(body)["error"], path
    assert server.infer(THREE, model="other") == (404, {"error": "got model 'other'; here is 'shop' version 3"})
    assert server.infer(USER)[0] == 400
    assert server.get(INFER, b"nonsense")[0] == 400
    assert server.infer(THREE, FIRST)[0] == 200  # it lives on


def test_scores_that_are_no_numbers_are_an_error_and_are_logged(server: Any) -> None:
    positions = column("position", "INT64", 1, None, 2)
    status, answer = server.infer(THREE, positions, x_request_id="bad")
    assert (status, answer["error"]) == (500, "the model returned 1 of 3 scores that are not finite")
    row = logged(server, "bad")
    assert row["status"] == 500
    assert row["scores"][0] == 1.0
    assert np.isnan(row["scores"][1])


def test_metrics_count_requests_by_outcome(server: Any) -> None:
    old_count = server.metric('shortlist_requests_total{outcome="answered",protocol="http",status="200"}')
    server.infer(THREE, FIRST)
    assert server.metric('shortlist_requests_total{outcome="answered",protocol="http",status="200"}') == old_count + 1
    assert server.metric("shortlist_log_dropped") == 0
    assert 0 <= server.metric("shortlist_snapshot_age_seconds") < 3600
