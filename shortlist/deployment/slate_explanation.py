"""Explains a logged answer: its events, of a slate its stages and a replay from the log and the version's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

from monitoring.windows.answered_requests import ROWS
from monitoring.windows.feature_sample import logged_tensors, select_readable
from shortlist.contracts import Files, ShortlistError
from shortlist.deployment.answer_events import event_lines
from shortlist.features.feast.feast_store_location import FeastStoreLocation
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.rollout.local.version import RELEASE
from shortlist.serving.export.onnx_session import create_session
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import ANSWER_SCHEMA, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.recommendations.recommendation_service import request_from_json
from shortlist.slates.candidate_columns import candidate_types
from shortlist.slates.recommender import Recommender, SlateRequest
from shortlist.slates.refreshed_releases import find_kept_folder
from shortlist.slates.release import open_release
from shortlist.spec.data import Data
from shortlist.storage.artefacts import digest_of_files, folder_digest, read_json

_MAX_LISTED: Final = 20
_FRAME: Final = "frame"
"""Key of a slate's row with the same row as a table."""


class ReplayDiffersError(ShortlistError):
    """A logged slate is not what its version's files make of the logged request."""


@dataclass(frozen=True)
class ServedVersion:
    """The files of a deployed version."""

    folder: Path
    data: Data
    """The data section that it was trained with."""
    signature: Signature

    @classmethod
    def open(cls, paths: ServingPaths, version: int) -> ServedVersion:
        """Return the files of a version.

        Raises:
            ShortlistError: They were removed.
        """
        folder = paths.versions / f"v{version}"
        if not (folder / "model").is_dir():
            raise _undeployed_error(folder / "model", version)
        declared = Preprocessing.load(folder / "model" / Files.PREPROCESSING).plan.declared
        return cls(folder, declared.data, Signature.read(folder / "model" / FOLDER))

    def release(self, digest: str | None, place: FeastStoreLocation | None) -> Path:
        """Return the folder of the release of a slate: that of the training, or a refreshed one.

        Args:
            digest: Digest of the slate's release; None in logs written before releases were refreshed.
            place: Location of refreshed releases.

        Raises:
            ShortlistError: It is gone.
        """
        deployed_release = self.folder / RELEASE
        declared = digest_of_files(
            read_json(deployed_release / Files.MANIFEST)["sha256"]
        )  # the files are verified by whoever opens it
        if digest is None or place is None or digest == declared:
            return deployed_release
        return find_kept_folder(place, digest)

    def recommender(self, digest: str | None = None, place: FeastStoreLocation | None = None) -> Recommender:
        """Return the verified stages without the model; see `release`."""
        return open_release(self.release(digest, place), self.data)


def _undeployed_error(missing: Path, version: int) -> ShortlistError:
    return ShortlistError(
        f"{missing}: missing; version {version} is not deployed here any more. Deploy it again to see how it came to"
        " its answers"
    )


def find_answer(paths: ServingPaths, request_id: str) -> dict[str, Any]:
    """Return the row of an answer in the prediction log.

    Raises:
        ShortlistError: The request is not logged, or the version's files were removed.
    """
    versions = _logged_rows(paths, ANSWER_SCHEMA, ["request_id", "version"], request_id)["version"].to_list()
    if versions:
        schema = prediction_schema(ServedVersion.open(paths, versions[-1]).data)
        rows = _logged_rows(paths, schema, schema.names, request_id).tail(1)
        row = rows.with_columns(pl.col("items").list.len().fill_null(0).alias(ROWS)).to_dicts()[0]
        return row | {_FRAME: rows}
    raise ShortlistError(
        f"{paths.predictions}: no answer to request '{request_id}' is logged. It may not be written yet, or"
        " serving.log.sampling left it out"
    )


def explain(paths: ServingPaths, request_id: str, store: FeastStoreLocation | None = None) -> Iterator[str]:
    """Yield lines about a logged answer: what users did with it; of a slate also its stages and how it was made.

    These are the result of every stage, the features, the digests, and whether a replay agrees.

    Args:
        paths: Paths of the spec's logs and versions.
        request_id: Request id of the answer.
        store: Location of refreshed releases; None without any.

    Raises:
        ShortlistError: The answer is not logged, or the files of its version are missing.
        IntegrityError: The files of its version were changed.
        ReplayDiffersError: Its replay differs; raised after the last line.
    """
    row = find_answer(paths, request_id)
    version = ServedVersion.open(paths, row["version"])
    if row["slate:sources"] is None:
        yield f"{_heading(row)}: it ranked items that the request brought; only slates have stages"
        yield from event_lines(paths, version.data, row[_FRAME])
        return
    if not (version.folder / RELEASE).is_dir():
        raise _undeployed_error(version.folder / RELEASE, row["version"])
    stages = version.recommender(row["slate:release"], store)
    yield from _stage_lines(row, stages)
    yield from _item_lines(row)
    yield from event_lines(paths, version.data, row[_FRAME])
    yield from _feature_lines(row, version.signature)
    yield from _digest_lines(version, stages)
    yield from _replay_lines(row, version, stages)


def _logged_rows(paths: ServingPaths, schema: pa.Schema, columns: list[str], request_id: str) -> pl.DataFrame:
    """Return the rows of a request in the prediction log of this machine."""
    log = ServingLog.on_disk(paths.predictions, schema)
    follower = LogFollower(log, columns, where=ds.field("request_id") == request_id)
    frames = (frame.filter(pl.col("request_id") == request_id) for frame in follower.read_new())
    return pl.concat([log.empty(columns), *frames])


def _heading(row: Mapping[str, Any]) -> str:
    track = f", {row['track']}" if row["track"] else ""
    return f"request '{row['request_id']}' of {row['time']:%Y-%m-%d %H:%M:%S} UTC, version {row['version']}{track}"


def _stage_lines(row: Mapping[str, Any], stages: Recommender) -> Iterator[str]:
    yield _heading(row)
    if row["slate:request"] is not None:
        yield f"  asked      {row['slate:request']}"
    counts = _join_counts(row["slate:source_names"], row["slate:source_counts"])
    yield f"  retrieval  {row['slate:retrieved']} candidates; after filters: {counts or 'none'}"
    if row["slate:fallback"]:
        fallback_names = ", ".join(row["slate:fallback"])
        yield f"             fewer than {row['slate:asked']} were left: {fallback_names} gave more"
    yield f"  filters    removed: {_join_counts(row['slate:filter_names'], row['slate:filter_counts']) or 'none'}"
    for name, items in _removed_by(row).items():
        yield f"             {name}: {', '.join(map(str, items))}"
    scored = sum(row["slate:source_counts"])
    yield f"  scoring    {scored} candidates" + (", some features unknown" if row["degraded"] else "")
    ordering = stages.ordering
    steps = [f"value {ordering.value}", *(rule.kind for rule in ordering.rules)]
    steps += [part.kind for part in (ordering.diversity, ordering.explore) if part is not None]
    exploration_text = "drawn" if row["slate:explored"] else "not drawn"
    yield f"  ordering   {' > '.join(steps)}; {exploration_text}; {row['slate:without_value']} without a value"


def _item_lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield "  place  item  source  score  value  propensity"
    columns = (row["items"], *(row[f"slate:{name}"] for name in ("sources", "values", "conditional_propensities")))
    for place, (item, source, value, propensity) in enumerate(zip(*columns, strict=True), 1):
        yield f"  {place}  {item}  {source}  {row['scores'][place - 1]:.6g}  {value:.6g}  {propensity:.6g}"


def _feature_lines(row: Mapping[str, Any], signature: Signature) -> Iterator[str]:
    numbers, width = row["served:numbers"], len(signature.numbers)
    if numbers is None:
        return
    yield f"  features of place 1 to {row[ROWS]}"
    for number, name in enumerate(signature.numbers):
        yield f"    {name}: {', '.join(_format_number(value) for value in numbers[number::width])}"


def _digest_lines(version: ServedVersion, stages: Recommender) -> Iterator[str]:
    yield f"  model      {folder_digest(version.folder / 'model')}"
    deployed_digest, last = folder_digest(version.folder / RELEASE), stages.retriever.facts["last_day"]
    origin_text = (
        "of the training" if stages.digest == deployed_digest else f"a refresh of {deployed_digest}, the training's"
    )
    yield f"  release    {stages.digest}, {origin_text}; {stages.size} items, days up to {last}"
    for name, digest in stages.digests.items():
        yield f"    {digest[:16]}  {name}"


def _replay_lines(row: Mapping[str, Any], version: ServedVersion, stages: Recommender) -> Iterator[str]:
    if row["slate:request"] is None:
        yield "  again      only slates that are logged with features can be made again (serving.log.feature_sampling)"
        return
    differing = replay(row, version, stages)
    comparison_text = f"differ: {', '.join(differing)}" if differing else "the same, bit by bit"
    yield f"  again      candidates, filters, order and propensities are {comparison_text}"
    largest = score_difference(row, version)
    if largest is not None:
        yield f"             scores by the exported graph from the logged features differ by at most {largest:.2g}"
    if differing:
        raise ReplayDiffersError(
            f"request '{row['request_id']}' cannot be reproduced: its {', '.join(differing)} differ from what version"
            f" {row['version']} gives; a stage of your own may draw without the request's id, or the log was changed"
        )


def replay(row: Mapping[str, Any], version: ServedVersion, stages: Recommender) -> list[str]:
    """Replay a slate from its logged request and scores; return the names of the values that differ.

    Args:
        row: The slate's row of the prediction log.
        version: The version that served it.
        stages: Stages of the version.
    """
    types = candidate_types(version.data)
    request: SlateRequest = request_from_json(row["request_id"], row["slate:request"], stages.item_type, types)
    candidates = stages.find(request).head(len(row["slate:candidates"]))
    if candidates.items.to_list() != row["slate:candidates"]:
        return ["candidates"]
    names = version.signature.scores[1:]
    further_scores = np.array(row["slate:candidate_further"], np.float32).reshape(len(names), len(candidates.items))
    further = dict(zip(names, further_scores, strict=True))
    slate = stages.slate(request, candidates, np.array(row["slate:candidate_scores"], np.float32), further)
    replayed_by_name = {
        "sources of candidates": (list(candidates.sources), row["slate:candidate_sources"]),
        "removed": (candidates.removed.items.to_list(), row["slate:removed"]),
        "filters": (list(candidates.removed.filters), row["slate:removed_by"]),
        "items": (slate.items.to_list(), row["items"]),
        "values": (slate.values.tolist(), row["slate:values"]),
        "propensities": (slate.propensities.tolist(), row["slate:conditional_propensities"]),
        "propensities of places": (slate.place_propensities().probabilities.tolist(), row["slate:place_propensities"]),
    }
    return [name for name, (replayed, logged) in replayed_by_name.items() if replayed != logged]


def score_difference(row: Mapping[str, Any], version: ServedVersion) -> float | None:
    """Return the largest difference between logged scores and scores of the exported graph; None without features."""
    frame = row[_FRAME].with_columns(pl.col("items").list.len().fill_null(0).cast(pl.Int64).alias(ROWS))
    readable_rows = select_readable(frame, version.signature)
    if not readable_rows.height or not row[ROWS]:
        return None
    tensors = logged_tensors(readable_rows, version.signature)
    (scores,) = create_session(version.folder / "model" / FOLDER).run([SCORE], tensors)
    of_label = np.asarray(scores).reshape(row[ROWS], -1)[:, 0]
    return float(np.abs(of_label - np.array(row["scores"], np.float32)).max())


def _removed_by(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    items_by_filter: dict[str, list[Any]] = {}
    for item, name in zip(row["slate:removed"] or (), row["slate:removed_by"] or (), strict=True):
        items_by_filter.setdefault(name, []).append(item)
    return {name: _first_items(items) for name, items in items_by_filter.items()}


def _first_items(items: list[Any]) -> list[Any]:
    hidden_count = len(items) - _MAX_LISTED
    return items if hidden_count <= 0 else [*items[:_MAX_LISTED], f"and {hidden_count} more"]


def _join_counts(names: list[str] | None, counts: list[int] | None) -> str:
    return ", ".join(f"{name} {count}" for name, count in zip(names or (), counts or (), strict=True))


def _format_number(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"
