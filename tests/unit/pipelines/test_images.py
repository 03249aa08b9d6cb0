"""Building images: the builder's commands, and the errors without a builder."""

from __future__ import annotations

import json
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from components.image import resolve_images
from shortlist.cli import main
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.images import build_images, digest_lines, find_builder, plan_build
from shortlist.spec.cluster import Images
from shortlist.tracking.lineage import code_version

ROOT = Path(__file__).parents[3]
BASE = "sha256:" + "a" * 64
PUSHED = "sha256:" + "b" * 64
MAKE = str(shutil.which("make"))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder of programs, with nothing in it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("PYTHON_DIGEST", "TRITON_DIGEST"):
        monkeypatch.setenv(name, BASE)
    return tmp_path


def builder(path: Path, name: str, *, works: bool = True, builds: bool = True) -> Path:
    """Put a program in the folder that writes down what it is asked, and pushes nowhere."""
    program = path / name
    program.write_text(
        f"""#!{sys.executable}
import json, sys
asked = sys.argv[1:]
with open({str(path / "asked")!r}, "a") as file:
    file.write(json.dumps(asked) + "\\n")
if asked[0] == "info" and not {works}:
    sys.exit("cannot connect to the daemon")
if asked[0] == "build" and not {builds}:
    sys.exit("step 3 went wrong")
if asked[0] == "push" and "--digestfile" in asked:
    open(asked[asked.index("--digestfile") + 1], "w").write({PUSHED!r})
elif asked[0] == "images":
    print("1.2 GB")
elif asked[0] == "push":
    print("x: digest: {PUSHED} size: 1234")
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def builder_commands(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (path / "asked").read_text().splitlines()]


def test_without_a_builder_the_error_names_the_tried_builders(path: Path) -> None:
    with pytest.raises(
        ShortlistError, match=r"no builder of container images works here \(docker: not installed; podman: not"
    ):
        build_images(["pipeline"])


def test_a_broken_builder_is_skipped(path: Path) -> None:
    builder(path, "docker", works=False)
    with pytest.raises(ShortlistError, match=r"docker: cannot connect to the daemon; podman: not installed"):
        find_builder()
    working = builder(path, "buildah")
    assert find_builder() == str(working)


def test_a_base_without_digest_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder(path, "docker")
    monkeypatch.setenv("TRITON_DIGEST", "26.10-py3")
    with pytest.raises(
        ShortlistError, match=r"TRITON_DIGEST: got '26\.10-py3', wanted sha256:.*deploy/docker/bases\.env"
    ):
        build_images(["pipeline", "triton"])
    assert [command[0] for command in builder_commands(path)] == ["info"]


def test_the_build_gets_base_digest_and_code_version(path: Path) -> None:
    builder(path, "podman")
    built = build_images(["pipeline"], torch_index="https://index.example/cpu")
    assert built == {"pipeline": (f"shortlist-pipeline:{code_version()}", "1.2 GB")}
    assert digest_lines(built).startswith(f"shortlist-pipeline:{code_version()}: 1.2 GB\n")
    command = builder_commands(path)[1]
    assert command[:2] == ["build", "--file"]
    assert command[2].endswith("deploy/docker/pipeline.Dockerfile")
    assert {f"PYTHON_DIGEST={BASE}", f"CODE_VERSION={code_version()}"} <= set(command)
    assert "TORCH_INDEX=https://index.example/cpu" in command
    assert not [command for command in builder_commands(path) if command[0] == "push"]


def test_make_builds_the_one_image_that_is_named_with_the_index_that_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [MAKE, "-n", "images", "ONLY=pipeline", "TORCH_INDEX=https://index.example/cpu"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    monkeypatch.setattr(sys, "argv", shlex.split(printed[printed.index("shortlist images") :].replace("\\\n", "")))
    builder(path, "docker")
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (build,) = (command for command in builder_commands(path) if command[0] == "build")
    assert build[2].endswith("pipeline.Dockerfile")
    assert "TORCH_INDEX=https://index.example/cpu" in build


@pytest.mark.parametrize("name", ["docker", "podman", "buildah"])
def test_what_is_pushed_is_named_by_its_digest(path: Path, name: str) -> None:
    builder(path, name)
    images = build_images(["pipeline", "triton"], "registry.example/team/")
    build = next(command for command in builder_commands(path) if command[0] == "build")
    assert ("--layers" in build) is (name == "buildah")  # which otherwise builds all of them again each time
    created = {kind: image.reference for kind, image in images.items()}
    assert created["pipeline"] == f"registry.example/team/shortlist-pipeline@{PUSHED}"
    assert resolve_images(Images.model_validate(created)).triton == created["triton"]  # good enough for production
    assert f"export SHORTLIST_IMAGE={created['pipeline']}" in digest_lines(images)


def test_a_failed_build_is_an_error_with_its_output(path: Path) -> None:
    builder(path, "docker", builds=False)
    with pytest.raises(ShortlistError, match=r"building shortlist-gpu:\w+ failed: step 3 went wrong"):
        build_images(["gpu"])


def test_a_dry_run_needs_no_builder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_DIGEST")
    monkeypatch.setattr("shortlist.kubeflow.images.BASES", path / "bases.env")
    (path / "bases.env").write_text("TRITON_DIGEST=\n")
    lines = plan_build(["pipeline", "triton"], "registry.example/team")
    tag = f"registry.example/team/shortlist-pipeline:{code_version()}"
    assert lines[:2] == [f"would build {tag} from deploy/docker/pipeline.Dockerfile", f"would push {tag}"]
    assert lines[2].endswith(
        "triton.Dockerfile; TRITON_DIGEST is not known: .venv/bin/shortlist lock-images asks for it"
    )
    assert lines[-1].startswith("images: no builder of container images works here")
    builder(path, "podman")
    assert plan_build(["pipeline"])[-1] == f"with {path / 'podman'}"
    assert not [command for command in builder_commands(path) if command[0] in ("build", "push")]
