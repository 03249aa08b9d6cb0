"""What came into the log since the run before."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from shortlist.contracts import Files
from shortlist.report.titles import step_title
from shortlist.storage.artefacts import IntegrityError, read_json

NEVER_REUSED: Final = frozenset(("find_champion", "register", "report", "roll_out"))
"""Steps of a training that run again in every run."""
_GATES: Final = "gates of the project and of packages"


def describe_growth(run: Path) -> str:
    """Return how much of the log is new since the newest earlier run of the spec; empty where there is none.

    A log without a single new row is said to be so: a scheduled training of it learns nothing. Where the spec or the
    code changed between the runs, that is said instead, with the steps that ran again: such a run is not expected to
    find new rows.

    Args:
        run: Folder of the run, beside those of earlier ones.
    """
    summary = _read_json(run / Files.SUMMARY)
    earlier = sorted(
        (path for path in run.parent.glob("*") if path.name < run.name and not path.is_symlink()), reverse=True
    )
    for folder in earlier:
        previous = _read_json(folder / Files.SUMMARY)
        if previous.get("spec") == summary.get("spec") and _is_known(previous) and _is_known(summary):
            return _describe(summary, previous["rows"], folder.name, _read_declared(run), _read_declared(folder))
    return ""


def _describe(
    summary: dict[str, Any], previous: dict[str, Any], name: str, spec: dict[str, Any], previous_spec: dict[str, Any]
) -> str:
    rows = summary["rows"]
    # An earlier program wrote no digest of gates.
    unwritten = {_GATES} if None in (spec.get(_GATES), previous_spec.get(_GATES)) else set()
    keys = (spec.keys() | previous_spec.keys()) - unwritten
    edited = sorted(key for key in keys if spec.get(key) != previous_spec.get(key))
    new_rows, day, earlier_day = rows["valid"] - previous["valid"], rows["newest_day"], previous["newest_day"]
    newest = (
        f"the newest day is still {day}" if day == earlier_day else f"the newest day is {day}, it was {earlier_day}"
    )
    fewer = f", {-new_rows:,} fewer" if new_rows else ""
    if "data" in edited:  # other rows are valid now, be there new ones or not
        change = f", {new_rows:,} more" if new_rows > 0 else fewer
        return f"The spec's data section was edited since run {name}: {rows['valid']:,} valid rows{change}; {newest}."
    if new_rows > 0:
        return f"New since run {name}: {new_rows:,} valid rows; {newest}."
    if day > earlier_day:
        return f"New since run {name}: rows of later days, {rows['valid']:,} valid rows in all{fewer}; {newest}."
    if edited and not new_rows:
        return (
            f"The log is as in run {name}: {rows['valid']:,} valid rows, {newest}. Changed since: {', '.join(edited)};"
            f" steps that ran again: {', '.join(_list_repeated_steps(summary)) or 'none'}."
        )
    if _is_generated(spec) and not rows.get("collected"):
        return ""  # it is the same in every run
    same = f"The log is as in run {name}" if not new_rows else f"Nothing came into the log since run {name}"
    return (
        f"{same}: {rows['valid']:,} valid rows{fewer}, {newest}. If it should have grown, look at what writes it, and"
        " whether data.source.path reads its new files."
    )


def _list_repeated_steps(summary: dict[str, Any]) -> list[str]:
    steps: dict[str, Any] = summary.get("steps", {})
    return [step_title(name) for name, step in steps.items() if not step["cached"] and name not in NEVER_REUSED]


def _read_declared(run: Path) -> dict[str, Any]:
    """Return the sections of a run's spec by name, and the versions of the code and of added gates."""
    arguments = _read_json(run / "arguments.json")
    return _read_json(run / Files.SPEC) | {"code": arguments.get("code"), _GATES: arguments.get("gate_code")}


def _is_known(summary: dict[str, Any]) -> bool:
    rows = summary.get("rows") or {}
    return rows.get("valid") is not None and rows.get("newest_day") is not None


def _is_generated(spec: dict[str, Any]) -> bool:
    return bool(spec.get("data", {}).get("source", {}).get("kind") == "generated")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (IntegrityError, OSError):
        return {}
