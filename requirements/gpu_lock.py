"""Writes gpu.json, what every package of the GPU image asks for, from pip's report of a resolution: `make lock-gpu`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON_ON_LINUX = {
    "python_version": "3.11",
    "python_full_version": "3.11.9",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "os_name": "posix",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
}
"""The machine that the image is for, whatever this one is."""


TYPE_CHECKERS = "mypy"
"""An extra that Feast asks for; no image installs a type checker."""


def asked(requires: list[str], extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Give the requirements that hold on the image's machine, for a package with some of its extras."""
    for requirement in map(Requirement, requires):
        marker = requirement.marker
        used_extras = ("", *(extra for extra in extras if extra != TYPE_CHECKERS))
        if marker is None or any(marker.evaluate(PYTHON_ON_LINUX | {"extra": extra}) for extra in used_extras):
            requirement.marker = None
            yield requirement


def locked(installed: list[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return by `name==version` what each needed package asks for, its asked-for extras included."""
    known = {canonicalize_name(package["metadata"]["name"]): package["metadata"] for package in installed}
    extras = {name: {*package.get("requested_extras", ())} for name, package in zip(known, installed, strict=True)}
    waiting = [canonicalize_name(package["metadata"]["name"]) for package in installed if package.get("requested")]
    found: dict[str, list[Requirement]] = {}
    while waiting:
        name = waiting.pop()
        found[name] = list(asked(known[name].get("requires_dist", []), tuple(sorted(extras[name]))))
        for requirement in found[name]:
            needed = canonicalize_name(requirement.name)
            if needed in known and (needed not in found or not requirement.extras <= extras[needed]):
                extras[needed] |= requirement.extras
                waiting.append(needed)
    return {
        f"{name}=={known[name]['version'].partition('+')[0]}": sorted({str(one) for one in found[name]})
        for name in sorted(found)
    }


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lines = [f"  {json.dumps(name)}: {json.dumps(needs)}" for name, needs in locked(report["install"]).items()]
    Path(__file__).with_name("gpu.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
