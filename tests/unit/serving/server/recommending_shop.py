"""A server that recommends, run in the test's process; used by several test files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.request_errors import RequestError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.slates.release import write_release
from shortlist.spec.data import Data
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from tests.served_log import logged_rows

RECOMMEND = "shop.recommend"
BEST = {"value": "score"}


class Shop:
    """A server's components in this process; the score is the item's weight plus 1000 times the user's impressions."""

    def __init__(self, published: Any, model: Path, sources: Path, folder: Path) -> None:
        self._published, self._model, self._sources, self.folder = published, model, sources, folder
        self.data: Data = published.plan.declared.data

    def release(self, filters: Any = None, ordering: Any = None) -> Path:
        sections = Filters.model_validate(filters or {}), Ordering.model_validate(ordering or {})
        out = self.folder / "release"
        write_release(self._sources, self.data, *sections, self._published.folder / "log", None, out)
        return out

    def parts(
        self, filters: Any = None, ordering: Any = None, *, predictor: str | None = None, **serving: Any
    ) -> ServerComponents:
        """Return the components of a server.

        Args:
            filters: The section.
            ordering: The section.
            predictor: Address of a real model server; None: scores are made here.
            serving: Settings of `serving`.
        """
        settings = ServerSettings.model_validate({
            "model": "shop", "version": 3, "model_folder": self._model, "predictor": predictor or "127.0.0.1:1",
            "http_port": 1, "grpc_port": 1, "store": self._published.store, "project": "shop",
            "serving": {"log": {"feature_sampling": 1.0}, **serving},
            "predictions": self.folder / "predictions", "release": self.release(filters, ordering),
        })  # fmt: skip
        made_here: Any = None if predictor else SimpleNamespace(scores=self.scores, close=lambda: None)
        parts = ServerComponents(settings, made_here)
        parts.refresh.poll()
        return parts

    async def scores(self, tensors: Any, rows: int, place: Any = None) -> Any:
        """Return the scores of the model."""
        numbers = np.nan_to_num(tensors["numbers"][:, :2]) @ [1.0, 1000.0]
        return (numbers + 0.0 * tensors["numbers"][:, 2]).astype(np.float32)

    def ask(self, parts: ServerComponents, *requests: dict[str, Any]) -> list[InferenceResponse | RequestError]:
        async def whole() -> list[InferenceResponse | RequestError]:
            answers: list[InferenceResponse | RequestError] = []
            for number, inputs in enumerate(requests):
                request = InferenceRequest(RECOMMEND, "", tensors(**inputs), RequestContext(f"r{number}", user="u"))
                try:
                    answers.append(await parts.service.answer(request))
                except RequestError as error:
                    answers.append(error)
                await asyncio.sleep(0)  # the log is told after the answer
            return answers

        return asyncio.run(whole())

    def logged(self, parts: ServerComponents) -> list[dict[str, Any]]:
        asyncio.run(parts.close())
        return logged_rows(self.folder / "predictions", prediction_schema(self.data)).to_dicts()


def tensors(**inputs: Any) -> list[Tensor]:
    """Return inputs: numbers as INT64, texts as BYTES."""
    request_tensors = []
    for name, value in {"k": 3, "position": 1, **inputs}.items():
        if isinstance(value, Tensor):
            request_tensors.append(value)
            continue
        values = value if isinstance(value, list) else [value]
        if any(isinstance(value, str) for value in values):
            request_tensors.append(Tensor(name, "BYTES", (len(values),), values))
        elif value is not None:
            request_tensors.append(Tensor(name, "INT64", (len(values),), np.array(values)))
    return request_tensors


def outputs(answer: Any) -> dict[str, list[Any]]:
    assert isinstance(answer, InferenceResponse), answer
    return {name: np.asarray(values).tolist() for name, _, values in answer.outputs}


def places_of(local: Shop) -> ServingPaths:
    return ServingPaths(root=local.folder, rollouts=local.folder / "rollouts")
