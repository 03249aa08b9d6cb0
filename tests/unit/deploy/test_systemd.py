"""The unit file of `shortlist watch` is one that systemd accepts, and its command one that the program accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from shortlist.cli.commands import app

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "deploy/systemd/shortlist-watch@.service"


def verify(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what systemd says of a unit, with this checkout in place of the declared one."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze (Debian: systemd)")
    unit = folder / "shortlist-watch@demo.service"
    text = text.replace("%h/shortlist/.venv/bin", str(Path(sys.executable).parent)).replace("%h/shortlist", str(ROOT))
    unit.write_text(text)
    command = [program, "--man=no", "--recursive-errors=no", "--user", "verify", str(unit)]
    environment = {"XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verified = verify(UNIT.read_text(), tmp_path)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize(
    ("declared", "changed"),
    [("ExecStart=", "ExecStrat="), ("Restart=on-failure", "Restart=sometimes"), ("bin/shortlist ", "bin/shortlst ")],
)
def test_systemd_refuses_a_broken_unit(tmp_path: Path, declared: str, changed: str) -> None:
    assert verify(UNIT.read_text().replace(declared, changed), tmp_path).returncode != 0


def test_the_program_accepts_the_command_of_the_unit() -> None:
    text = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=\S+/shortlist (.*)$", text, re.MULTILINE)
    (settings,) = re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
    values = dict(setting.split("=", 1) for setting in settings.split())
    for name, value in {**values, "OPTIONS": "--data log.csv"}.items():
        command = command.replace(f"${{{name}}}", value).replace(f"${name}", value)
    watch, *arguments = command.replace("%i", "demo").split()
    program = get_command(app).commands[watch]  # type: ignore[attr-defined]
    parameters = program.make_context(watch, arguments).params
    assert (parameters["spec"], parameters["interval"], parameters["metrics_port"]) == ("demo", "15m", 9109)
    assert parameters["data"] == Path("log.csv")
