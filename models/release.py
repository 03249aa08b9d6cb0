"""A registered version in the form that another model server reads."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from models.training import Origin
from shortlist.config.serving import Scoring, Serving
from shortlist.contracts import ShortlistError
from shortlist.serving.export.fil import write_fil_repository
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER

ReleaseForm = Literal["python", "onnxruntime", "fil", "torchscript"]


def release(origin: Origin, version: int | None, form: ReleaseForm, serving: Serving, out: Path) -> int:
    """Write a version for a server of one's own; return its number.

    Args:
        origin: Spec and stores.
        version: Registered version; the champion by default.
        form: `python` and `onnxruntime`: a Triton repository for that backend; `fil`: one whose trees run on the FIL
            backend; `torchscript`: a DLRM's network alone, one file.
        serving: How Triton joins requests, and what it scores on.
        out: Folder to write; a file for TorchScript.

    Raises:
        ShortlistError: There is no such version, it has no such form, or `out` is there already.
    """
    registry = origin.tracker.registry
    wanted = version if version is not None else registry.version_of("champion")
    if wanted is None:
        raise ShortlistError(f"spec '{origin.name}' has no champion yet; make run SPEC={origin.name}")
    if out.exists():
        raise ShortlistError(f"{out}: is there already; choose another name or delete it")
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        found = registry.fetch(wanted, Path(scratch) / "files")
        needed = {"fil": "xgboost", "torchscript": "dlrm"}.get(form, found.kind)
        if found.kind != needed:
            raise ShortlistError(f"version {wanted} is of kind {found.kind}; the form '{form}' is for {needed}")
        out.parent.mkdir(parents=True, exist_ok=True)
        match form:
            case "fil":
                write_fil_repository(found.folder / FOLDER, wanted, serving.batching, out, serving.placement)
            case "torchscript":
                from models.dlrm.export import export_torchscript

                export_torchscript(found.folder, out)
            case _:
                # In one piece: a Triton of one's own may have ONNX Runtime and nothing else.
                whole, asked = Scoring(runtime="onnxruntime"), (serving.batching, out, form)
                write_repository(found.folder / FOLDER, wanted, *asked, whole, serving.placement)
    return wanted
