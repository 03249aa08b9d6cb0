"""A registered version in the form that another model server reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Final, cast, get_args

from models.registry import kind_of, known_kinds
from shortlist.contracts import ShortlistError
from shortlist.serving.export.repository import Form, write_repository
from shortlist.serving.export.signature import FOLDER
from shortlist.spec.serving import Scoring, Serving
from shortlist.training.training import RunContext

WriteForm = Callable[[Path, int, Serving, Path], None]
"""write(model folder, version, serving, out), as `models.base.ModelKind.forms` names it."""
_OF_EVERY_KIND: Final[tuple[str, ...]] = get_args(Form)


def release_forms() -> list[str]:
    """Return every form; some are for one kind of model only."""
    return [*_OF_EVERY_KIND, *(form for kind in known_kinds() for form in kind_of(kind).forms)]


def release(context: RunContext, version: int | None, form: str, serving: Serving, out: Path) -> int:
    """Write a version for a server of one's own; return its number.

    Args:
        context: Spec and stores.
        version: Registered version; the champion by default.
        form: `python` and `onnxruntime`: a Triton repository for that backend; or a form that the model's kind has,
            such as `fil` or `torchscript`.
        serving: How Triton joins requests, and what it scores on.
        out: Folder to write; a file for TorchScript.

    Raises:
        ShortlistError: There is no such version, it has no such form, or `out` is there already.
    """
    registry = context.tracker.registry
    wanted = version if version is not None else registry.version_of("champion")
    if wanted is None:
        raise ShortlistError(f"spec '{context.name}' has no champion yet; make run SPEC={context.name}")
    if out.exists():
        raise ShortlistError(f"{out}: is there already; choose another name or delete it")
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        found = registry.fetch(wanted, Path(scratch) / "files")
        own = kind_of(found.kind).forms
        if form not in (*_OF_EVERY_KIND, *own):
            its = ", ".join((*_OF_EVERY_KIND, *own))
            raise ShortlistError(f"version {wanted} is of kind {found.kind}; it has no form '{form}', only {its}")
        out.parent.mkdir(parents=True, exist_ok=True)
        if form in own:
            write: WriteForm = resolve_name(own[form])
            write(found.folder, wanted, serving, out)
        else:
            # In one piece: a Triton of one's own may have ONNX Runtime and nothing else.
            whole, backend = Scoring(runtime="onnxruntime"), cast(Form, form)
            write_repository(found.folder / FOLDER, wanted, serving.batching, out, backend, whole, serving.placement)
    return wanted
