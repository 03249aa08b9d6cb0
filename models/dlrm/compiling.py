"""Whether and how `torch.compile` makes machine code for the network."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch

from models.dlrm.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError

F = TypeVar("F", bound=Callable[..., Any])

PAYS_FROM: Final = 100_000_000
"""Visited rows. Compiling spares about 0.5 us of processor time per row (3 % of a step of 8 192 rows with perceptrons
of 0.5 M weights; with wider ones the products take all the time), and costs some 20 s before the first step."""
_OLDEST_GPU: Final = (7, 0)
"""Compute capability that torch's compiler asks for."""


def pays(section: EmbeddingSection, device: str, visits: int) -> bool:
    """Return whether the network of a training is to be compiled: as declared, or where it pays.

    Args:
        section: The model's section.
        device: "cpu" or "cuda".
        visits: Rows of the training days times epochs.

    Raises:
        ShortlistError: It is declared, and cannot be done here.
    """
    if section.compile == "off" or section.learns_order:
        return False
    lacking = missing(device)
    if section.compile == "on" and lacking:
        raise ShortlistError(
            f"models.dlrm.compile is on, but {lacking}. Install it (Debian: g++ and python3-dev), or declare compile:"
            " auto or off."
        )
    return section.compile == "on" or (device == "cpu" and not lacking and visits >= PAYS_FROM)


def compiled(function: F) -> F:
    """Return a function compiled for the shapes of its first call; other shapes are compiled anew."""
    return cast(F, torch.compile(function, fullgraph=True, dynamic=False))


@contextmanager
def silenced() -> Iterator[None]:
    """Silence what the compiler says of itself, while a first step is taken: its derivative is compiled last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def missing(device: str) -> str:
    """Return what compiling lacks on this machine, as the end of a sentence; empty: nothing."""
    if os.environ.get("TORCHDYNAMO_DISABLE", "0") == "1":
        return "TORCHDYNAMO_DISABLE=1 forbids it, as in images without a compiler"
    if not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))):
        return "there is no C++ compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are missing"
    if device == "cuda" and find_spec("triton") is None:
        return "Triton, which compiles for GPUs, is not installed"
    if device == "cuda" and torch.cuda.get_device_capability() < _OLDEST_GPU:
        return "Triton compiles for no GPU as old as this one"
    return ""
