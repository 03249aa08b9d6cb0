"""The tutorial's page, run as it is printed: a shop's log becomes a release that is served, watched and rolled back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.serving.paths import ServingPaths
from shortlist.serving.processes.ports import free_ports
from shortlist.system.project import PACKAGES

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]  # two trainings, a stack and a canary

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/tutorial.md"
PORTS: Final = ("8080", "9093")
"""Ports on the page; other ones are free here."""
BLOCK: Final = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW_MACHINE: Final = {
    # Beside other tests, how fast servers answer tells nothing of the page.
    "gates: {": (
        "gates: {infra: {max_p50_ms: 5000, max_p99_ms: 10000, max_slate_p50_ms: 5000, max_slate_p99_ms: 10000,"
        " slates_per_second: 0.5}, "
    ),
    "serving:\n": "serving:\n  overload: {max_wait_ms: 60000, max_waiting: 10000}\n",
    "canary: {": "canary: {guardrails: {max_p99_ms: 20000, latency_floor_ms: 20000}, ",
}
OTHER_CANDIDATES: Final = re.compile(
    r"^  # Often as good as trees.*?(?=^  # A network beside)", re.MULTILINE | re.DOTALL
)
"""Models that `init` declares beside the trees: each is a third of a training, and the page says nothing of them."""


class Reader:
    """Somebody who does what the page says, in a project of their own."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        self.printed: dict[str, str] = {}
        """What every block of commands printed, by its heading's number."""
        self.background: list[subprocess.Popen[str]] = []
        """Shells that left something running."""

    def read(self) -> None:
        """Save every file, edit the spec and run every command, in the page's order."""
        for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            for block in BLOCK.finditer(section):
                self._follow(section[0], block["language"], block["text"])

    def _follow(self, number: str, language: str, text: str) -> None:
        for port, free_port in self.ports.items():
            text = text.replace(port, free_port)
        first_line = text.splitlines()[0]
        if language == "python":
            (self.project / first_line.removeprefix("# ").split(":")[0]).write_text(text)
        elif language == "yaml":
            self._edit(first_line, text.removeprefix(f"{first_line}\n"))
        else:
            assert language == "", f"nobody knows what to do with a block of {language}"
            self.printed[number] = self.printed.get(number, "") + self._run(text)

    def _edit(self, instruction: str, text: str) -> None:
        spec = self.project / "shop.yaml"
        spec_text = spec.read_text()
        if instruction == "# shop.yaml, at its end":
            spec.write_text(spec_text + text)
            return
        assert instruction == "# shop.yaml, below features.columns", instruction
        head, columns, tail = re.split(r"(^features:\n  columns:\n)", spec_text, maxsplit=1, flags=re.MULTILINE)
        spec.write_text(head + columns + text + tail)

    def _run(self, commands: str) -> str:
        if (spec := self.project / "shop.yaml").exists():
            spec.write_text(patient(spec.read_text()))
        log = self.project / "commands.log"
        with log.open("w+", encoding="utf-8") as output:
            shell = subprocess.Popen(
                ["/bin/bash", "-e", "-c", commands], cwd=self.project, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(self.project), "NO_COLOR": "1", "COLUMNS": "200"},
            )  # fmt: skip
            if "&\n" in commands:
                self.background.append(shell)
            code = shell.wait(900)
        printed = log.read_text(encoding="utf-8")
        assert code == 0, f"{commands}\n{printed[-6_000:]}"
        return printed

    def close(self) -> None:
        """End what is still running."""
        for shell in self.background:
            os.killpg(shell.pid, signal.SIGTERM)
        if (paths := ServingPaths.for_spec(self.project / "runs", "shop")).root.is_dir():
            stop_stack(paths)


def patient(spec: str) -> str:
    """Return a spec for which servers may be slow, and with trees alone."""
    spec = OTHER_CANDIDATES.sub("", spec)
    for text, patient_text in SLOW_MACHINE.items():
        if patient_text not in spec:
            spec = spec.replace(text, patient_text, 1)
    return spec


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    project = tmp_path_factory.mktemp("tutorial")
    for name in ("shortlist", *PACKAGES, "deploy"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".venv", ".venv-triton"):
        (project / name).symlink_to(ROOT / name)
    reader = Reader(project)
    try:
        reader.read()
        yield reader
    finally:
        reader.close()


def test_every_command_runs_as_printed(reader: Reader) -> None:
    assert set(reader.printed) == set("12345678")
    assert "side table products: products.csv, by product" in reader.printed["2"]
    assert "all 28,800 rows match the spec" in reader.printed["3"]
    assert "Blessed: " in reader.printed["4"]


def test_an_answer_is_explained_and_its_outcome_logged(reader: Reader) -> None:
    printed = reader.printed["5"]
    answer, _ = json.JSONDecoder().raw_decode(printed, printed.index('{"request_id"'))
    assert (answer["request_id"], len(answer["items"])) == ("first", 3)
    assert '{"accepted":1,"refused":[]}' in printed
    assert "request 'first' of " in printed and "  place  item  source" in printed


def test_drift_is_named_and_its_model_gets_all_users(reader: Reader) -> None:
    assert "accepted  http://127.0.0.1" in reader.printed["6"]
    printed = reader.printed["7"]
    assert re.search(r"2026-03-1[345] 00:00 drifted: device", printed)
    assert "firing shop: the alarm is raised; a training starts" in printed
    assert "Version 2 was promoted" in printed


def test_a_rollback_returns_to_the_first_version(reader: Reader) -> None:
    printed = reader.printed["8"]
    assert re.search(r"Rolled back: version 1 \(\w+\) serves everybody again in place of version 2", printed)
    assert "shop: stopped " in printed
