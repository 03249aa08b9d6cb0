"""A custom source, filter, ordering rule, diversity and exploration, from a spec to a served slate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
import yaml
from recommending_shop import RECOMMEND, Shop, outputs, tensors

from shortlist.contracts import Columns, Files
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.slates.filters.base import Filter, FilterRequest
from shortlist.slates.filters.rules import FILTERS
from shortlist.slates.ordering.base import Diversity, Exploration, Likeness, OrderingRule, Utilities
from shortlist.slates.ordering.diversity import DIVERSITIES
from shortlist.slates.ordering.exploration import EXPLORATIONS
from shortlist.slates.ordering.rules import ORDERING_RULES
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.slates.retrieval.source import FitInputs, Queries, RankedItems, Source, SourceKind
from shortlist.slates.retrieval.sources.registry import SOURCE_KINDS
from shortlist.spec.load import SpecError, parse_spec
from shortlist.storage.tables import DayTable
from tests.served_log import logged_rows

DEMO = Path(__file__).parents[4] / "pipelines" / "specs" / "demo.yaml"


class Backwards(SourceKind):
    """The items from the last id to the first."""

    kind: Literal["backwards"]
    """By id, the last one first."""

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        np.save(folder / "order.npy", np.arange(inputs.catalogue.size, dtype=np.int32)[::-1])

    def load(self, folder: Path) -> Source:
        return _FixedItems(np.load(folder / "order.npy"))


class _FixedItems(Source):
    def __init__(self, order: np.ndarray) -> None:
        self._order = order

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        items = np.tile(self._order[:max_items], (queries.size, 1))
        return RankedItems(items, -np.arange(items.shape[1], dtype=np.float32) + np.zeros(items.shape, np.float32))


class EvenIds(Filter):
    """Keep the items that end with an even digit."""

    kind: Literal["even"]
    """By the last digit."""
    name: str = "even"
    """In answers."""

    def keeps(self, candidates: pl.DataFrame, request: FilterRequest) -> np.ndarray:
        return np.array([str(item)[-1] in "02468" for item in candidates[Columns.ITEM]], np.bool_)


class Lift(OrderingRule):
    """Add to the value of the items with a last digit."""

    kind: Literal["lift"]
    """By the last digit."""
    digit: int
    """That is lifted."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (Columns.ITEM,)

    def adjust(self, candidates: pl.DataFrame, values: np.ndarray) -> np.ndarray:
        return values + [100.0 * (str(item)[-1] == str(self.digit)) for item in candidates[Columns.ITEM]]


class Seesaw(Diversity):
    """The best, then the worst, and so on."""

    kind: Literal["seesaw"]
    """Best and worst in turn."""

    def utilities(self, likeness: Likeness, values: np.ndarray) -> Utilities:
        return _Turned(values)


class _Turned:
    def __init__(self, values: np.ndarray) -> None:
        self.marginal = values

    def add(self, row: int) -> None:
        self.marginal = -self.marginal


class Second(Exploration):
    """Always places the second-best item."""

    kind: Literal["second"]
    """Places go to the second best."""

    def probabilities(self, utilities: np.ndarray) -> np.ndarray:
        shares = np.zeros(len(utilities))
        shares[np.argsort(-utilities, kind="stable")[min(1, len(utilities) - 1)]] = 1.0
        return shares


STAGES: Mapping[str, Any] = {
    "retrieval": {"candidates": 11, "sources": {"last": {"kind": "backwards"}}},
    "filters": {"rules": [{"kind": "even"}]},
    "ordering": {
        "value": "score", "rules": [{"kind": "lift", "digit": 2}], "diversity": {"kind": "seesaw", "by": "item"},
        "explore": {"kind": "second"},
    },
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def own_kinds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for registry, kind in (
            (SOURCE_KINDS, Backwards), (FILTERS, EvenIds), (ORDERING_RULES, Lift), (DIVERSITIES, Seesaw),
            (EXPLORATIONS, Second),
        ):  # fmt: skip
            patch.setitem(registry, kind.__annotations__["kind"][len("Literal['") : -len("']")], kind)
        yield


def declared(**changes: Any) -> str:
    spec = yaml.safe_load(DEMO.read_text())
    spec["gates"].pop("custom")
    return yaml.safe_dump({**spec, **STAGES, **changes})


def test_custom_stages_make_a_served_slate(published: Any, start: Any, triton: Any, tmp_path: Path) -> None:
    spec = parse_spec(declared())
    assert spec.retrieval is not None and spec.filters is not None and spec.ordering is not None
    log = DayTable.open(published.folder / "log", Files.LOG)
    days = frozenset(part.day for part in log.days)
    fit_retrieval(spec.retrieval, published.plan.declared.data, log, days, tmp_path / "sources", 1)
    shop = Shop(published, start.model, tmp_path / "sources", tmp_path)
    parts = shop.parts(spec.filters, spec.ordering, predictor=triton.http)

    async def whole() -> InferenceResponse:
        request = InferenceRequest(RECOMMEND, "", tensors(user_id=987654), RequestContext("own", user="u"))
        try:
            return await parts.service.answer(request)
        finally:
            await asyncio.sleep(0)  # the log is told after the answer
            await parts.close()

    slate = outputs(asyncio.run(whole()))
    # Scores are weights: 0: 1, 2: -2.5 and lifted to 97.5, 4: 1, 6: 3, 8: 0. The second best is item 6; turned around,
    # 8 is best, and 4 the second, before 0 because the source has it first; turned again, 2 is best and 0 the second.
    assert (slate["item_id"], slate["score"], slate["value"]) == (["item 6", "item 4", "item 0"], [3, 1, 1], [3, 1, 1])
    assert (slate["source"], slate["propensity"]) == (["last"] * 3, [1.0] * 3)
    (row,) = logged_rows(shop.folder / "predictions", prediction_schema(shop.data)).to_dicts()
    assert (row["slate:filter_names"], row["slate:filter_counts"], row["slate:explored"]) == (["even"], [6], True)


def test_settings_of_custom_stages_are_validated() -> None:
    with pytest.raises(SpecError, match=r"ordering.rules.0.lift.digt: unknown key; did you mean 'digit'"):
        parse_spec(declared(ordering={"rules": [{"kind": "lift", "digt": 2}]}))
