"""The GPU benchmarks at toy size on a GPU: every program runs to its end, and its checks hold there too."""

from __future__ import annotations

from importlib import import_module

import pytest

from benchmarks.gpu.__main__ import PROGRAMS
from benchmarks.gpu.setting import Setting

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_passes_its_checks(name: str) -> None:
    findings = import_module(f"benchmarks.gpu.{name}").run(Setting("cuda", small=True))
    assert findings.failed == []
    assert findings.lines or any("not run" in note or "not installed" in note for note in findings.notes)
    assert not any(note.endswith("needs CUDA") for note in findings.notes)
