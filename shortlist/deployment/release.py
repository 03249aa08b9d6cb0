"""Export of a registered version in the format of another model server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Final, cast, get_args

from shortlist.contracts import ShortlistError
from shortlist.ranking.registry import kind_of, known_kinds
from shortlist.serving.export.repository import Form, write_repository
from shortlist.serving.export.signature import FOLDER
from shortlist.spec.serving import Scoring, Serving
from shortlist.tracking.run_context import RunContext

WriteForm = Callable[[Path, int, Serving, Path], None]
"""write(model folder, version, serving, out), as `shortlist.ranking.kind.ModelKind.forms` names it."""
_COMMON_FORMS: Final[tuple[str, ...]] = get_args(Form)


def release_forms() -> list[str]:
    """Return all export formats; some are for one kind of model only."""
    return [*_COMMON_FORMS, *(form for kind in known_kinds() for form in kind_of(kind).forms)]


def release(context: RunContext, version: int | None, form: str, serving: Serving, out: Path) -> int:
    """Export a version for the user's own server; return its number.

    Args:
        context: Spec and storage.
        version: Registered version; the champion by default.
        form: `python` or `onnxruntime` for a Triton repository of that backend, or a format of the model's kind, such
            as `fil` or `torchscript`.
        serving: The spec's section, with batching and placement.
        out: Folder to write; a file for TorchScript.

    Raises:
        ShortlistError: The version or the format does not exist, or `out` exists already.
    """
    registry = context.tracker.registry
    number = version if version is not None else registry.version_of("champion")
    if number is None:
        raise ShortlistError(f"spec '{context.name}' has no champion yet; make run SPEC={context.name}")
    if out.exists():
        raise ShortlistError(f"{out}: is there already; choose another name or delete it")
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        registered = registry.fetch(number, Path(scratch) / "files")
        forms_of_kind = kind_of(registered.kind).forms
        if form not in (*_COMMON_FORMS, *forms_of_kind):
            form_names = ", ".join((*_COMMON_FORMS, *forms_of_kind))
            raise ShortlistError(
                f"version {number} is of kind {registered.kind}; it has no form '{form}', only {form_names}"
            )
        out.parent.mkdir(parents=True, exist_ok=True)
        if form in forms_of_kind:
            write: WriteForm = resolve_name(forms_of_kind[form])
            write(registered.folder, number, serving, out)
        else:
            # A single ONNX graph: the user's Triton may have no other backend.
            scoring, backend = Scoring(runtime="onnxruntime"), cast(Form, form)
            write_repository(
                registered.folder / FOLDER, number, serving.batching, out, backend, scoring, serving.placement
            )
    return number
