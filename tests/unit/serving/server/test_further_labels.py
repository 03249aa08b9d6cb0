"""Scores of further labels in responses over both protocols, and in the prediction log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tritonclient.grpc import service_pb2

from shortlist.contracts import Columns, Files
from shortlist.features.fits.fit import fit
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.protocols.grpc_app import GRPCApp
from shortlist.serving.server.protocols.http_inference import RequestHead, answer
from shortlist.serving.server.protocols.v2 import read_body, write_outputs
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.request_errors import BadRequestError, BadScoresError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTableWriter
from tests.served_log import logged_rows

DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "price", "type": "number"},
            {"name": "seconds", "type": "number", "known": "after"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "labels": {"long": {"column": "seconds", "positive": {"at_least": 30}},
                   "never_scored": {"column": "seconds", "positive": {"at_least": 90}}},
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "split": {"warmup_days": 0, "validation_days": 1, "test_days": 1},
    }
)  # fmt: skip
FEATURES = Features.model_validate({"columns": [{"kind": "numeric", "each": "price"}]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: the score is the price, that of `long` ten times the price."""
    folder = tmp_path_factory.mktemp("labelled")
    days = pl.date_range(pl.date(2026, 3, 1), pl.date(2026, 3, 3), eager=True)
    writer = DayTableWriter(folder / "log", Files.LOG, 1_000)
    writer.append(
        pl.DataFrame({Columns.DAY: days, "price": [1.0, 2.0, 3.0], "seconds": 1.0, Columns.LABEL: [1, 0, 1]})
        .with_columns(pl.col(Columns.LABEL).cast(pl.Int8), pl.int_range(3, eager=True).alias(Columns.IMPRESSION))
        .with_columns(pl.col(Columns.DAY).cast(pl.Datetime("us", "UTC")).alias(Columns.TIME))
    )
    writer.close()
    fit(DATA, FEATURES, None, Runtime(engine="cpu"), folder / "log", folder / "fitted")
    graph = FeatureGraph(Preprocessing.load(folder / "fitted"))
    label_scores = graph.nodes.add("MatMul", graph.floats(["price_number"]), np.array([[1.0, 10.0]], np.float32))
    whole, signature = graph.finished(label_scores, SCORE, 2, "shop", "sum")
    (folder / "model" / FOLDER).mkdir(parents=True)
    save(whole, folder / "model" / FOLDER / MODEL_FILE)
    signature.model_copy(update={"labels": ("long",)}).write(folder / "model" / FOLDER)
    (folder / "model" / Files.PREPROCESSING).symlink_to(folder / "fitted")
    return folder / "model"


class Triton:
    """Return the price, and ten times the price, of each row."""

    async def scores(self, tensors: Any) -> np.ndarray:
        price = tensors["numbers"][:, 0].astype(np.float32)
        with np.errstate(over="ignore"):
            return np.stack([price, 10 * price], axis=1).ravel()

    def close(self) -> None:
        """Do nothing."""


def served(model: Path, folder: Path, ask: Any) -> Any:
    """Return the result of `ask` on a server with this predictor."""

    async def run() -> Any:
        settings = ServerSettings(
            model="shop", version=1, model_folder=model, predictor="localhost:1", http_port=1, grpc_port=2, store=None,
            project="shop", predictions=folder,
        )  # fmt: skip
        parts = ServerComponents(settings)
        parts.predictor._tritons = [Triton()]  # type: ignore[list-item]
        try:
            return await ask(parts)
        finally:
            await asyncio.sleep(0)  # a line of the log is written once the answer is on its way
            await parts.close()

    return asyncio.run(run())


def request(*prices: float) -> InferenceRequest:
    tensor = Tensor("price", "FP64", (len(prices),), np.array(prices))
    return InferenceRequest("shop", "", [tensor], RequestContext(request_id="r"))


def test_a_response_and_its_log_row_have_a_score_per_label(model: Path, tmp_path: Path) -> None:
    async def ask(parts: ServerComponents) -> InferenceResponse:
        assert parts.service.outputs == ("score", "score_long")
        return await parts.service.answer(request(2.0, 3.0))

    response = served(model, tmp_path, ask)
    assert [(output.name, list(output.values)) for output in response.outputs] == [
        ("score", [2.0, 3.0]),
        ("score_long", [20.0, 30.0]),
    ]
    (line,) = logged_rows(tmp_path, prediction_schema(DATA)).to_dicts()
    assert (line["scores"], line["score_long"], line["score_never_scored"]) == ([2.0, 3.0], [20.0, 30.0], None)


def test_a_request_of_no_rows_gets_no_scores(model: Path, tmp_path: Path) -> None:
    response = served(model, tmp_path, lambda parts: parts.service.answer(request()))
    assert [(output.name, len(output.values)) for output in response.outputs] == [("score", 0), ("score_long", 0)]


def test_a_score_that_is_not_finite_is_an_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadScoresError, match="the model returned 1 of 2 scores that are not finite"):
        served(model, tmp_path, lambda parts: parts.service.answer(request(1.0, 1e38)))  # ten times it is infinite
    (line,) = logged_rows(tmp_path, prediction_schema(DATA)).to_dicts()
    assert line["status"] == 500


def test_a_triton_with_scores_of_one_label_is_refused(model: Path, tmp_path: Path) -> None:
    class OneLabel(Triton):
        async def scores(self, tensors: Any) -> np.ndarray:
            return np.asarray((await super().scores(tensors))[::2])

    async def ask(parts: ServerComponents) -> Any:
        parts.predictor._tritons = [OneLabel()]  # type: ignore[list-item]
        return await parts.service.answer(request(1.0, 2.0))

    with pytest.raises(BadScoresError, match="the model gave 2 scores for 2 rows; wanted 4"):
        served(model, tmp_path, ask)


@pytest.mark.parametrize(
    ("output_parameters", "names"),
    [({}, ["score", "score_long"]), ({"outputs": [{"name": "score"}]}, ["score"]),
     ({"outputs": [{"name": "score_long"}]}, ["score", "score_long"])],
)  # fmt: skip
def test_http_returns_the_requested_outputs(
    model: Path, tmp_path: Path, output_parameters: dict[str, Any], names: list[str]
) -> None:
    body = {"inputs": [{"name": "price", "datatype": "FP64", "shape": [2], "data": [1, 2]}], **output_parameters}

    async def ask(parts: ServerComponents) -> Any:
        head = RequestHead(model="shop", version="", headers={})
        return await answer(parts.service, head, json.dumps(body).encode())

    answer_fields = json.loads(served(model, tmp_path, ask).content)
    assert [output["name"] for output in answer_fields["outputs"]] == names
    assert answer_fields["outputs"][-1]["data"] == ([1, 2] if names == ["score"] else [10, 20])


def test_an_unknown_output_is_refused() -> None:
    body = json.dumps({"inputs": [], "outputs": [{"name": "score_like"}]}).encode()
    with pytest.raises(BadRequestError, match="no output 'score_like'; wanted 'score' or 'score_long'"):
        read_body(body, None, ("score", "score_long"))


def test_binary_outputs_follow_each_other_in_order() -> None:
    scores, further = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    content, headers = write_outputs({}, [("score", "FP32", scores), ("score_long", "FP32", further)], True)
    end = int(headers["inference-header-content-length"])
    outputs = json.loads(content[:end])["outputs"]
    assert [(output["name"], output["parameters"]["binary_data_size"]) for output in outputs] == [
        ("score", 8),
        ("score_long", 8),
    ]
    assert np.frombuffer(content[end:], np.float32).tolist() == [1, 2, 10, 20]


def test_grpc_returns_an_output_per_label(model: Path, tmp_path: Path) -> None:
    async def ask(parts: ServerComponents) -> Any:
        response = await parts.service.answer(request(2.0))
        return GRPCApp(parts.service)._response(service_pb2.ModelInferRequest(), response, {})

    response = served(model, tmp_path, ask)
    assert [output.name for output in response.outputs] == ["score", "score_long"]
    assert [np.frombuffer(raw, np.float32).tolist() for raw in response.raw_output_contents] == [[2.0], [20.0]]


def test_a_signature_without_labels_is_read_as_one_score() -> None:
    assert Signature(model="shop", kind="xgboost").scores == ("score",)
