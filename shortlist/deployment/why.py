"""The stages of a recommendation request, from the prediction log and the version's files; and the slate again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from monitoring.windows.answered import ROWS
from monitoring.windows.feature_sample import logged_tensors, readable
from shortlist.contracts import Files, ShortlistError
from shortlist.features.feast_store_location import FeastStoreLocation
from shortlist.features.preprocessing import Preprocessing
from shortlist.recommending.candidate_columns import candidate_types
from shortlist.recommending.recommender import Recommender, SlateRequest
from shortlist.recommending.refreshed import kept_release
from shortlist.recommending.release import open_release
from shortlist.rollout.local.version import RELEASE
from shortlist.serving.export.onnx_session import session
from shortlist.serving.export.signature import FOLDER, SCORE, Signature
from shortlist.serving.log.log_reader import parts, read_parts
from shortlist.serving.log.logs import prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.serving.server.recommending import request_of
from shortlist.spec.data import Data
from shortlist.storage.artefacts import digest_of_files, folder_digest, read_json

_MOST_LISTED: Final = 20
_FRAME: Final = "frame"
"""Of a slate's row: the same as a table of one row."""


@dataclass(frozen=True)
class ServedVersion:
    """The files of a version as it was served."""

    folder: Path
    data: Data
    """Declaration of the log that it was trained with."""
    signature: Signature

    @classmethod
    def open(cls, paths: ServingPaths, version: int) -> ServedVersion:
        """Return the files of a version.

        Raises:
            ShortlistError: They are gone, or the version brought no candidates.
        """
        folder = paths.versions / f"v{version}"
        if not (folder / RELEASE).is_dir():
            raise ShortlistError(
                f"{folder / RELEASE}: missing; version {version} is not deployed here any more. Deploy it again to see"
                " how it came to its slates"
            )
        declared = Preprocessing.load(folder / "model" / Files.PREPROCESSING).plan.declared
        return cls(folder, declared.data, Signature.read(folder / "model" / FOLDER))

    def release(self, digest: str | None, place: FeastStoreLocation | None) -> Path:
        """Return the folder of the release that made a slate: the training's own, or one that a refresh made of it.

        Args:
            digest: That of the slate; None in logs of before there were refreshed ones.
            place: Where refreshed ones are kept.

        Raises:
            ShortlistError: It is gone.
        """
        own = self.folder / RELEASE
        declared = digest_of_files(
            read_json(own / Files.MANIFEST)["sha256"]
        )  # the files are verified by whoever opens it
        if digest is None or place is None or digest == declared:
            return own
        return kept_release(place, digest)

    def recommender(self, digest: str | None = None, place: FeastStoreLocation | None = None) -> Recommender:
        """Return the stages but for the model, verified; see `release`."""
        return open_release(self.release(digest, place), self.data)


def find_slate(paths: ServingPaths, request_id: str) -> dict[str, Any]:
    """Return a slate's row of the prediction log.

    Raises:
        ShortlistError: There is none, or the request brought its candidates.
    """
    for path in reversed(parts(paths.predictions)):
        version = _version_of(path, request_id)
        if version is not None:
            declared = ServedVersion.open(paths, version).data
            rows = read_parts([path], prediction_schema(declared)).filter(pl.col("request_id") == request_id)
            row = rows.with_columns(pl.col("items").list.len().fill_null(0).alias(ROWS)).to_dicts()[0]
            if row["slate:sources"] is None:
                raise ShortlistError(f"request '{request_id}' brought its candidates; only slates have stages")
            return row | {_FRAME: rows}
    raise ShortlistError(
        f"{paths.predictions}: no answer to request '{request_id}' is logged. It may not be written yet, or"
        " serving.log.sampling left it out"
    )


def explain(paths: ServingPaths, request_id: str, store: FeastStoreLocation | None = None) -> Iterator[str]:
    """Give the lines about a slate: what every stage did, what was used, and whether it comes out the same again.

    Args:
        paths: Where the spec's log and versions are.
        request_id: Of the slate.
        store: Where refreshed releases are kept; None: there are none.

    Raises:
        ShortlistError: It is not logged, or the files of its version are gone or were changed.
        IntegrityError: Likewise.
    """
    row = find_slate(paths, request_id)
    version = ServedVersion.open(paths, row["version"])
    stages = version.recommender(row["slate:release"], store)
    yield from _stages(row, stages)
    yield from _paths(row)
    yield from _features(row, version.signature)
    yield from _digests(version, stages)
    yield from _again(row, version, stages)


def _version_of(path: Path, request_id: str) -> int | None:
    import pyarrow.parquet as pq

    found = pl.from_arrow(pq.read_table(path, columns=["request_id", "version"]))
    assert isinstance(found, pl.DataFrame)
    versions = found.filter(pl.col("request_id") == request_id)["version"].to_list()
    return int(versions[0]) if versions else None


def _stages(row: Mapping[str, Any], stages: Recommender) -> Iterator[str]:
    track = f", {row['track']}" if row["track"] else ""
    yield f"request '{row['request_id']}' of {row['time']:%Y-%m-%d %H:%M:%S} UTC, version {row['version']}{track}"
    if row["slate:request"] is not None:
        yield f"  asked      {row['slate:request']}"
    counts = _counted(row["slate:source_names"], row["slate:source_counts"])
    yield f"  retrieval  {row['slate:retrieved']} candidates; after filters: {counts or 'none'}"
    if row["slate:fallback"]:
        more = ", ".join(row["slate:fallback"])
        yield f"             fewer than {row['slate:asked']} were left: {more} gave more"
    yield f"  filters    removed: {_counted(row['slate:filter_names'], row['slate:filter_counts']) or 'none'}"
    for name, items in _removed_by(row).items():
        yield f"             {name}: {', '.join(map(str, items))}"
    scored = sum(row["slate:source_counts"])
    yield f"  scoring    {scored} candidates" + (", some features unknown" if row["degraded"] else "")
    ordering = stages.ordering
    steps = [f"value {ordering.value}", *(rule.kind for rule in ordering.rules)]
    steps += [part.kind for part in (ordering.diversity, ordering.explore) if part is not None]
    drawn = "drawn" if row["slate:explored"] else "not drawn"
    yield f"  ordering   {' > '.join(steps)}; {drawn}; {row['slate:without_value']} without a value"


def _paths(row: Mapping[str, Any]) -> Iterator[str]:
    yield "  place  item  source  score  value  propensity"
    columns = (row["items"], *(row[f"slate:{name}"] for name in ("sources", "values", "propensities")))
    for place, (item, source, value, propensity) in enumerate(zip(*columns, strict=True), 1):
        yield f"  {place}  {item}  {source}  {row['scores'][place - 1]:.6g}  {value:.6g}  {propensity:.6g}"


def _features(row: Mapping[str, Any], signature: Signature) -> Iterator[str]:
    numbers, width = row["served:numbers"], len(signature.numbers)
    if numbers is None:
        return
    yield f"  features of place 1 to {row[ROWS]}"
    for number, name in enumerate(signature.numbers):
        yield f"    {name}: {', '.join(_shown(value) for value in numbers[number::width])}"


def _digests(version: ServedVersion, stages: Recommender) -> Iterator[str]:
    yield f"  model      {folder_digest(version.folder / 'model')}"
    own, last = folder_digest(version.folder / RELEASE), stages.retriever.facts["last_day"]
    how = "of the training" if stages.digest == own else f"a refresh of {own}, the training's"
    yield f"  release    {stages.digest}, {how}; {stages.size} items, days up to {last}"
    for name, digest in stages.digests.items():
        yield f"    {digest[:16]}  {name}"


def _again(row: Mapping[str, Any], version: ServedVersion, stages: Recommender) -> Iterator[str]:
    if row["slate:request"] is None:
        yield "  again      only slates that are logged with features can be made again (serving.log.feature_sampling)"
        return
    differing = replay(row, version, stages)
    said = f"differ: {', '.join(differing)}" if differing else "the same, bit by bit"
    yield f"  again      candidates, filters, order and propensities are {said}"
    largest = score_difference(row, version)
    if largest is not None:
        yield f"             scores by the exported graph from the logged features differ by at most {largest:.2g}"


def replay(row: Mapping[str, Any], version: ServedVersion, stages: Recommender) -> list[str]:
    """Make a slate again from its logged request and scores; return what comes out differently.

    Args:
        row: Of the prediction log, with the slate's stages.
        version: That made it.
        stages: Of the version.
    """
    types = candidate_types(version.data)
    asked: SlateRequest = request_of(row["request_id"], row["slate:request"], stages.item_type, types)
    found = stages.find(asked).head(len(row["slate:candidates"]))
    if found.items.to_list() != row["slate:candidates"]:
        return ["candidates"]
    names = version.signature.scores[1:]
    others = np.array(row["slate:candidate_further"], np.float32).reshape(len(names), len(found.items))
    further = dict(zip(names, others, strict=True))
    slate = stages.slate(asked, found, np.array(row["slate:candidate_scores"], np.float32), further)
    made = {
        "sources of candidates": (list(found.sources), row["slate:candidate_sources"]),
        "removed": (found.removed.items.to_list(), row["slate:removed"]),
        "filters": (list(found.removed.filters), row["slate:removed_by"]),
        "items": (slate.items.to_list(), row["items"]),
        "values": (slate.values.tolist(), row["slate:values"]),
        "propensities": (slate.propensities.tolist(), row["slate:propensities"]),
    }
    return [name for name, (now, then) in made.items() if now != then]


def score_difference(row: Mapping[str, Any], version: ServedVersion) -> float | None:
    """Return the largest difference between logged scores and those of the exported graph; None without features."""
    frame = row[_FRAME].with_columns(pl.col("items").list.len().fill_null(0).cast(pl.Int64).alias(ROWS))
    kept = readable(frame, version.signature)
    if not kept.height or not row[ROWS]:
        return None
    tensors = logged_tensors(kept, version.signature)
    (scores,) = session(version.folder / "model" / FOLDER).run([SCORE], tensors)
    of_label = np.asarray(scores).reshape(row[ROWS], -1)[:, 0]
    return float(np.abs(of_label - np.array(row["scores"], np.float32)).max())


def _removed_by(row: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item, name in zip(row["slate:removed"] or (), row["slate:removed_by"] or (), strict=True):
        found.setdefault(name, []).append(item)
    return {name: _cut(items) for name, items in found.items()}


def _cut(items: list[Any]) -> list[Any]:
    more = len(items) - _MOST_LISTED
    return items if more <= 0 else [*items[:_MOST_LISTED], f"and {more} more"]


def _counted(names: list[str] | None, counts: list[int] | None) -> str:
    return ", ".join(f"{name} {count}" for name, count in zip(names or (), counts or (), strict=True))


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"
