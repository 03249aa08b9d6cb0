"""What the slates of a model would earn on the requests of some days, from rows with known propensities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from scipy.special import logit

from shortlist.contracts import Columns
from shortlist.data.world.generate import FIRST_USER
from shortlist.data.world.true_value import CONTEXT, TrueValues
from shortlist.evaluation.value.estimate import LogExtent
from shortlist.evaluation.value.evaluation import (
    BEST_POSSIBLE,
    CHANCE,
    write_unknown_value,
    write_value,
)
from shortlist.evaluation.value.evidence import Floats, Ints, ValueEvidence
from shortlist.evaluation.value.lists import ItemLists, RandomLists, ShownRows, ValuedList, collect_evidence
from shortlist.slates.retrieval.catalogue import Catalogue, Rows
from shortlist.spec.data import Data, GeneratedSource
from shortlist.storage.positive_rows import is_further_positive
from shortlist.storage.tables import DayTable
from shortlist.system.row_expressions import compile_expression

_RANDOM_ITEMS: Final = 10
"""Random items per user, whose expected reward stands for that of all items."""
_SEED: Final = 0
_CERTAIN: Final = 1e-6

ScorePairs = Callable[[Ints, pl.Series], np.ndarray]
"""Function from numbers of users, in ascending order, and ids of items to the scores of these pairs."""


@dataclass(frozen=True)
class LoggedRequests:
    """The requests of some users, and what they were shown."""

    reward: str
    """Formula of the reward of a row."""
    shown: ShownRows
    days: int
    places: int
    """Number of places of a slate."""
    truth: TrueValues | None
    """Planted values of lists in a generated world; None for other logs and rewards."""

    @cached_property
    def true_bounds(self) -> dict[str, float]:
        """Planted values of random items and of the best possible lists; empty where not known."""
        truth = self.truth
        if truth is None:
            return {}
        return {
            CHANCE: truth.of_lists(truth.random_lists(self.places, _SEED)),
            BEST_POSSIBLE: truth.of_lists(truth.best_lists(self.places)),
        }


def read_logged_requests(
    data: Data, log: DayTable, days: frozenset[date], users: pl.Series, catalogue: Catalogue, reward: str, places: int
) -> LoggedRequests | str:
    """Return the requests of users on some days; or, as a sentence, why they say nothing of other slates.

    Args:
        data: The spec's section.
        log: The validated log.
        days: The days.
        users: The users; a user's number is the position here.
        catalogue: Items that lists may hold.
        reward: Formula of the reward of a row.
        places: Number of places of a slate.
    """
    if data.propensity is None or data.position is None or data.request is None:
        missing = [name for name in ("request", "position", "propensity") if getattr(data, name) is None]
        return (
            f"the log does not say with which probability its items were shown; declare data.{', data.'.join(missing)}"
        )
    assert data.user and data.item
    labels = [
        is_further_positive(pl.col(label.column), label).fill_null(value=False).cast(pl.Int8).alias(name)
        for name, label in data.labels.items()
    ]
    label = pl.col(Columns.LABEL).alias(data.label or Columns.LABEL)
    declared = {column.name for column in data.columns}
    context = [name for name in CONTEXT if name in declared or name == Columns.TIME]
    names = list(
        dict.fromkeys((data.user, data.item, data.request, data.position, data.propensity, Columns.TIME, *context))
    )
    rows = (
        log.scan(days)
        .filter(pl.col(data.propensity).is_not_null() & pl.col(data.position).is_not_null())
        .filter(pl.col(data.user).is_in(users.implode()))
        .select(*names, label, *labels)
        .sort(Columns.TIME, data.request, data.position, maintain_order=True)
        .collect()
    )
    if not rows.height:
        return f"no row of the evaluated days has a propensity in '{data.propensity}'"
    user = users.to_frame("user").with_row_index("number")
    requests = rows.unique([data.request, data.user], keep="first", maintain_order=True)
    request_user = requests.join(user, left_on=data.user, right_on="user", how="left", maintain_order="left")["number"]
    numbered = requests.select(data.request, data.user).with_row_index("request:number")
    numbers = rows.select(data.request, data.user).join(
        numbered, on=[data.request, data.user], how="left", maintain_order="left"
    )["request:number"]
    shown_rows = ShownRows(
        request_R=numbers.cast(pl.Int64).to_numpy(),
        user_Q=request_user.cast(pl.Int64).to_numpy(),
        item_R=catalogue.find_rows(rows[data.item]).astype(np.int64),
        place_R=rows[data.position].cast(pl.Int64).to_numpy() - 1,
        propensity_R=rows[data.propensity].cast(pl.Float64).to_numpy(),
        reward_R=compile_expression(reward).evaluate_numbers(rows),
    )
    return LoggedRequests(reward, shown_rows, len(days), places, _read_truth(data, requests, reward))


def _read_truth(data: Data, requests: pl.DataFrame, reward: str) -> TrueValues | None:
    source = data.source
    if not isinstance(source, GeneratedSource) or source.recommender is None or reward != data.label:
        return None
    is_generated = {*CONTEXT} <= {*requests.columns} and requests["user_id"].is_between(
        FIRST_USER, FIRST_USER + source.users - 1
    ).all()
    if not is_generated or requests.select(CONTEXT).null_count().sum_horizontal().item():
        return None  # of a column that was broken, the world's value is not known
    return TrueValues(source, requests.select(CONTEXT))


def write_slate_value(
    folder: Path, requests: LoggedRequests | str, lists: Mapping[str, Rows], catalogue: Catalogue,
    score_pairs: ScorePairs,
) -> None:  # fmt: skip
    """Write the value of a model's slates and of the lists beside them.

    The reward model of all lists reads the log-odds of the model's scores, which were learnt on earlier days.

    Args:
        folder: Folder of an evaluation that is being written.
        requests: From `read_logged_requests`.
        lists: Rows of the items in the catalogue, best first, by the name of the list, a list per user.
        catalogue: Items that lists hold.
        score_pairs: Function that scores items for users.
    """
    if isinstance(requests, str):
        write_unknown_value(folder, requests)
        return
    evidence = collect_list_evidence(requests, lists, catalogue, score_pairs)
    extent = LogExtent(days=requests.days, explored=requests.shown.explored)
    write_value(folder, requests.reward, evidence, extent, true_values(requests, lists, catalogue))


def collect_list_evidence(
    requests: LoggedRequests, lists: Mapping[str, Rows], catalogue: Catalogue, score_pairs: ScorePairs
) -> dict[str, ValueEvidence]:
    """Return the evidence on lists and on random items, with the arguments of `write_slate_value`."""
    shown_rows, places = requests.shown, requests.places
    items_by_list: dict[str, Ints] = {name: rows[:, :places].astype(np.int64) for name, rows in lists.items()}
    users = len(next(iter(items_by_list.values())))
    sample = np.random.default_rng(_SEED).integers(0, catalogue.size, (users, _RANDOM_ITEMS))
    features = _ItemFeatures(shown_rows, [*items_by_list.values(), sample], sample, catalogue, score_pairs)
    valued: dict[str, ValuedList] = {
        name: ItemLists(items, features.of(items)) for name, items in items_by_list.items()
    }
    valued[CHANCE] = RandomLists(catalogue.size, places, features.of(sample))
    return collect_evidence(shown_rows, features.of_rows(), valued)


class _ItemFeatures:
    """Features of the reward model: log-odds of the score, whether there is none, mean log-odds of the user's items.

    Scores tell more of the items of one user than of users. Without the last feature, what a model overstates between
    users would flatten what it knows within each, and lists of each user's best items would be undervalued.
    """

    def __init__(
        self, shown_rows: ShownRows, lists: list[Ints], sample: Ints, catalogue: Catalogue, score_pairs: ScorePairs
    ) -> None:
        self._shown = shown_rows
        self._stride = catalogue.size + 1
        users = len(lists[0])
        of_lists = [np.repeat(np.arange(users), items.shape[1]) * self._stride + items.reshape(-1) for items in lists]
        of_rows = shown_rows.user_R * self._stride + shown_rows.item_R
        keys = np.unique(np.concatenate([*of_lists, of_rows]))
        self._keys = keys[(keys % self._stride) < catalogue.size]
        user_of_key, item = np.divmod(self._keys, self._stride)
        scores = score_pairs(user_of_key, catalogue.ids.gather(item))
        self._log_odds = logit(np.clip(np.nan_to_num(scores, nan=0.5), _CERTAIN, 1 - _CERTAIN))
        self._user_log_odds = self._find(np.arange(users)[:, None] * self._stride + sample).mean(axis=1)

    def of(self, items: Ints) -> Floats:
        """Return the features of lists, shape (users, items, features)."""
        users = np.arange(len(items))[:, None]
        return self._of_pairs(np.broadcast_to(users, items.shape), items)

    def of_rows(self) -> Floats:
        """Return the features of the shown rows."""
        return self._of_pairs(self._shown.user_R, self._shown.item_R)

    def _of_pairs(self, users: Ints, items: Ints) -> Floats:
        is_item = items >= 0
        log_odds = np.where(is_item, self._find(users * self._stride + items), 0.0)
        return np.stack([log_odds, ~is_item, self._user_log_odds[users]], axis=-1).astype(np.float64)

    def _find(self, keys: Ints) -> Floats:
        positions = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        log_odds: Floats = self._log_odds[positions]
        return log_odds


def true_values(requests: LoggedRequests, lists: Mapping[str, Rows], catalogue: Catalogue) -> dict[str, float]:
    """Return the planted values of lists, of random items and of the best possible ones; empty where not known."""
    truth = requests.truth
    if truth is None:
        return {}
    users, ids = requests.shown.user_Q, catalogue.ids.to_numpy()
    values = {
        name: truth.of_lists(np.where(rows >= 0, ids[np.maximum(rows, 0)], -1)[users, : requests.places])
        for name, rows in lists.items()
    }
    return {**values, **requests.true_bounds}
