"""Schemas of the prediction log and the outcome log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from shortlist.contracts import Columns, score_column
from shortlist.spec.data import Column, Data

REPLAYED_ID: Final = "rollout-replay-"
"""Start of the ids of requests that a rollout plays from the log; no user sent them."""
_ANSWERS: Final = {
    "time": pa.timestamp("us", "UTC"),  # of the answer
    "request_id": pa.string(),  # of the x-request-id header, or given by the server
    "user": pa.string(),  # of the x-shortlist-user header, else of the request's user column; null when it names none
    "routed_by_user": pa.bool_(),  # it had that header, by which the track is chosen; without one, chance chooses
    "sender": pa.string(),  # who sent it: an identity that was proved, or an address; null where no gateway says it
    "track": pa.string(),  # stable or canary; null outside Envoy
    "rollout": pa.string(),  # id of the rollout under way; null when there is none
    "step": pa.int32(),  # its step, from 0
    "version": pa.int64(),  # registered version that scored
    "status": pa.int16(),  # 200, or 500 when the model gave no usable score
    "digest": pa.string(),  # 16 hexadecimal digits over the request's inputs
    "latency_ms": pa.float32(),  # inside the server
    "degraded": pa.bool_(),  # features could not be read and count as unknown
    "counts_delay_ms": pa.float32(),  # how far behind the counts of the open tiles were; null where nothing is counted
    "uncounted_rows": pa.list_(pa.int64()),  # rows that live counts lack, being beyond a share; null: none
    "sampling": pa.float32(),  # share of the answers that were logged when this one was
    "items": pa.list_(pa.int64()),  # item keys, in the order of the request; null for logs without items
    "scores": pa.list_(pa.float32()),
}
_FEATURES: Final = {
    "served:counted_until": pa.timestamp("us", "UTC"),  # of the snapshot that was looked up; null: nothing was
    "served:numbers": pa.list_(
        pa.float64()
    ),  # the model's `numbers`, row after row; null: not sampled, or no such input
    "served:codes": pa.list_(pa.int64()),  # likewise
    "served:lists": pa.list_(pa.list_(pa.int64())),  # of every list input all rows, one input after another
    "served:vectors": pa.list_(pa.float32()),  # likewise
}
FEATURE_COLUMNS: Final = tuple(_FEATURES)
"""Columns of the prediction log with the model's features, filled for a sample of the responses."""
_SLATE: Final = {
    # Of every slate, whose `items` and `scores` are what was shown; null where requests brought their candidates.
    "slate:release": pa.string(),  # digest of the sources, filters and ordering that made it
    "slate:sources": pa.list_(pa.string()),  # source of each item
    "slate:values": pa.list_(pa.float64()),  # what each is worth by the formula and the boosts
    "slate:conditional_propensities": pa.list_(pa.float64()),  # probability of each place, given those above
    "slate:place_propensities": pa.list_(pa.float64()),  # probability of each item at its place, over all slates
    "slate:place_propensity_errors": pa.list_(pa.float64()),  # error of each: 0, Monte Carlo, or half the bounds
    "slate:explored": pa.bool_(),  # places were drawn
    "slate:given_up": pa.float64(),  # expected label that the draws gave up against the best order, by the scores
    "slate:asked": pa.int32(),  # items wanted
    "slate:retrieved": pa.int32(),  # candidates before filters
    "slate:source_names": pa.list_(pa.string()),  # sources that gave candidates ...
    "slate:source_counts": pa.list_(pa.int64()),  # ... and how many each ranked highest, after filters
    "slate:filter_names": pa.list_(pa.string()),  # every filter ...
    "slate:filter_counts": pa.list_(pa.int64()),  # ... and how many candidates it removed first
    "slate:fallback": pa.list_(pa.string()),  # sources that were asked for more
    "slate:without_value": pa.int32(),  # candidates that were left out because their value is no number
    # Of drawn slates, and of those that are logged with features: all stages of the request.
    "slate:request": pa.string(),  # JSON: user, k, now, context, recent, history
    "slate:candidates": None,  # those that were scored, of the type of `items`
    "slate:candidate_scores": pa.list_(pa.float32()),
    "slate:candidate_further": pa.list_(pa.float32()),  # of all candidates the model's scores of its first further
    # label, then of its second, and so on
    "slate:candidate_sources": pa.list_(pa.string()),
    "slate:removed": None,  # of the type of `items`
    "slate:removed_by": pa.list_(pa.string()),  # filter that removed each first
}
SLATE_COLUMNS: Final = tuple(_SLATE)
"""Columns of the prediction log that are filled for requests for recommendations only."""
NO_SLATE: Final = (None,) * len(SLATE_COLUMNS)
"""Values of `SLATE_COLUMNS` for a request that contained its candidates."""
ANSWER_SCHEMA: Final = pa.schema(
    {**_ANSWERS, "items": pa.null(), **{name: kind for name, kind in _SLATE.items() if kind is not None}}
)
"""Columns of the prediction log that are the same for every spec; `items` is read as it was written."""
_VALUE_TYPES: Final = {
    "integer": pa.int64(),
    "hex": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
}


def prediction_schema(data: Data) -> pa.Schema:
    """Return the columns of the prediction log: one row per answered request.

    After the columns of the response come the inputs as they were sent: `event_time`, and the columns of
    `logged_inputs`, each a list with one value per row of the request. A list of length 1 holds for every row; null was
    not sent. Types are those of the valid log. The last columns are `FEATURE_COLUMNS` and `SLATE_COLUMNS`.

    After `scores` come the scores of further labels, one column each: `score_<label>`; null when the model has none.

    Args:
        data: Declared columns of the log.
    """
    further_scores = {score_column(label): pa.list_(pa.float32()) for label in data.labels}
    inputs = {logged_name(name): pa.list_(_value_type(column)) for name, column in logged_inputs(data).items()}
    times = {Columns.TIME: pa.list_(pa.timestamp("us", "UTC"))}
    items = pa.list_(item_type(data))
    slates = {name: kind or items for name, kind in _SLATE.items()}
    return pa.schema({**_ANSWERS, "items": items, **further_scores, **times, **inputs, **_FEATURES, **slates})


def logged_inputs(data: Data) -> Mapping[str, Column]:
    """Return the declared columns whose values as sent are logged, by name.

    They are the columns known before the impression. Items have their own column; vectors are left out, because they
    are many times as large as everything else and their numbers are not monitored.
    """
    excluded = (*data.names_of_rows, data.item)
    return {
        column.name: column
        for column in data.columns
        if column.known == "before" and column.name not in excluded and column.type != "vector"
    }


def logged_name(name: str) -> str:
    """Return the log's column for a declared column: the same name, or with a prefix if the log uses the name.

    >>> logged_name("page"), logged_name("status")
    ('page', 'sent:status')
    """
    return f"sent:{name}" if name in _ANSWERS else name


RECEIVED: Final = "received"
"""Column of the outcome log with the time of receipt, by a clock of ours; `time` is the client's."""
EVENT_ID: Final = "event_id"
"""Column of the outcome log with the id that the application gave an event; an event that is sent twice counts once."""
SEEN: Final = "seen"
"""Column of the outcome log: whether the user saw the item; null: not reported."""
_OUTCOME: Final = ("time", "request_id", "item", "row", "label", RECEIVED, EVENT_ID, SEEN)


def outcome_schema(item: pa.DataType, after_columns: Mapping[str, Column] | None = None) -> pa.Schema:
    """Return the columns of the outcome log: one row per shown item whose outcome is known.

    Args:
        item: Type of the item keys.
        after_columns: Further columns of outcomes, from `outcome_columns`; a file may lack them.
    """
    columns = {
        "time": pa.timestamp("us", "UTC"),
        "request_id": pa.string(),
        "item": item,  # null for logs without items
        "row": pa.int32(),  # its row in the request
        "label": pa.int8(),
        RECEIVED: pa.timestamp("us", "UTC"),  # by a clock of ours
        EVENT_ID: pa.string(),  # given by the application; null for outcomes without one
        SEEN: pa.bool_(),  # the user saw the item; null: not reported
    }
    return pa.schema(
        {**columns, **{outcome_name(name): _value_type(column) for name, column in (after_columns or {}).items()}}
    )


def outcome_columns(data: Data) -> Mapping[str, Column]:
    """Return the declared columns, besides the label, that an outcome may bring, by name.

    How a row was shown (`data.placement`) is known from the answer, not from its outcome.
    """
    excluded = (data.label, *data.placement.values())
    return {
        column.name: column
        for column in data.columns
        if column.known == "after" and column.name not in excluded and column.type != "vector"
    }


def outcome_name(name: str) -> str:
    """Return the outcome log's column for a declared column: the same name, or with a prefix if the log uses it.

    >>> outcome_name("watch_seconds"), outcome_name("row")
    ('watch_seconds', 'sent:row')
    """
    return f"sent:{name}" if name in _OUTCOME else name


REQUIRED_COLUMNS: Final = frozenset(("time", "request_id", "version", "status", "scores", "row", "label"))
"""Columns that rows of their log must have; other missing columns are null."""


def item_type(data: Data) -> pa.DataType:
    """Return the type of the item keys of a log."""
    return pa.string() if data.item is not None and data.by_name[data.item].type == "string" else pa.int64()


def _value_type(column: Column) -> pa.DataType:
    if column.type == "tags":
        return pa.list_(pa.string() if column.tag_type == "string" else pa.int64())
    return _VALUE_TYPES[column.type]
