"""How many ids the tables of a plan have: from a file of cardinalities, or from a feature table made here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.inputs import FeatureColumn, features_of
from shortlist.contracts import Files, ShortlistError
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.tables import DayTable


def given_cardinalities(spec: Path, file: Path | None) -> Mapping[str, int]:
    """Return distinct values by column, from a file or from the one beside the spec; none when there is none.

    Raises:
        ShortlistError: The file is not there, or holds something else.
    """
    beside = spec.with_suffix(".cardinalities.json")
    if file is None and not beside.is_file():
        return {}
    source = file or beside
    try:
        values = read_json(source)
    except IntegrityError as error:
        if not source.is_file():
            raise ShortlistError(f'--cardinalities: no file {source}; wanted JSON such as {{"C1": 40000000}}') from None
        raise ShortlistError(f"--cardinalities: {error}") from None
    for column, count in values.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ShortlistError(f"{source}: '{column}': got {count!r}, wanted a number of distinct values, at least 1")
    return values


def fitted_sizes(runs: Path, names: tuple[str, ...]) -> Mapping[str, int]:
    """Return ids (or a vector's width) by feature, from the newest table below `runs` that has just these features."""
    tables = sorted((runs / "cache").rglob(Files.TABLE), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in tables:
        columns = _columns(path.parent)
        if tuple(column.name for column in columns) == names:
            return {one.name: one.size or one.width or 1 for one in columns if one.kind != "dense"}
    return {}


def _columns(folder: Path) -> tuple[FeatureColumn, ...]:
    try:
        return features_of(DayTable.open(folder, Files.TABLE))
    except ShortlistError:  # a table of another version, or one that is being replaced
        return ()
