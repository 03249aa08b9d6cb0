"""The images are small, reproducible, without secrets and not run as root; each rule is shown to refuse something."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))
DIGEST = r"@(\$\{\w+_DIGEST\}|sha256:[0-9a-f]{64})"
SECRET = re.compile(r"pass(word|wd)?|secret|token|credential|api_?key|private", re.IGNORECASE)
LABELS = ("title", "description", "version", "revision", "base.name")


class Line(NamedTuple):
    """An instruction."""

    stage: int
    """0 before the first FROM."""
    instruction: str
    value: str


def lines_of(text: str) -> list[Line]:
    stage, lines = 0, []
    for instruction in DockerfileParser(fileobj=BytesIO(text.encode()), env_replace=False).structure:
        stage += instruction["instruction"] == "FROM"
        if instruction["instruction"] != "COMMENT":
            lines.append(Line(stage, instruction["instruction"], instruction["value"]))
    return lines


def problems(text: str, *, compiles: bool = False) -> Iterator[str]:
    """Give what is wrong with a Dockerfile; `compiles`: its program makes machine code while it runs."""
    lines = lines_of(text)
    bases = [line.value for line in lines if line.instruction == "FROM"]
    last = [line for line in lines if line.stage == len(bases)]
    names = {base.partition(" AS ")[2] for base in bases}
    for base in bases:
        image = base.partition(" ")[0]
        if image != "scratch" and image not in names and not re.search(rf"{DIGEST}$", image):
            yield f"base without digest: {image}"
        if re.search(r":latest\b", image):
            yield f"latest: {image}"
    for line in lines:
        if line.instruction == "ARG" and re.fullmatch(r"\w+_DIGEST=.*", line.value):
            yield f"a digest with a default: {line.value}"
        if line.instruction == "ADD":
            yield f"ADD: {line.value}"
        if line.instruction in ("ARG", "ENV"):
            yield from (
                f"secret: {argument}"
                for argument in shlex.split(line.value)
                if SECRET.search(argument.partition("=")[0])
            )
        if line.instruction == "COPY" and line.value.split()[0] in (".", "./"):
            yield "copies whatever lies around"
        if line.instruction == "RUN":
            yield from _problems_of_run(line, in_last=line in last, compiles=compiles)
    users = [line.value for line in last if line.instruction == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield f"user: {users[-1:]}"
    labels = " ".join(line.value for line in last if line.instruction == "LABEL")
    yield from (f"label: {name}" for name in LABELS if f"org.opencontainers.image.{name}=" not in labels)
    starts = [line.value for line in last if line.instruction == "ENTRYPOINT"]
    if not starts or not starts[-1].startswith("["):
        yield "a shell in front of the program, which then hears no signal"


def _problems_of_run(line: Line, *, in_last: bool, compiles: bool) -> Iterator[str]:
    if "pip install" in line.value and "--no-cache-dir" not in line.value and "--mount=type=cache" not in line.value:
        yield "pip keeps its cache"
    for command in re.findall(r"pip install ([^&]*)", line.value):
        files = re.findall(r"(?:-r|--requirement) (\S+)", command)
        if files and "--require-hashes" not in command.split():
            yield f"packages without hashes: {' '.join(files)}"
        if not files and "--no-deps" not in command.split():
            yield "packages that no file pins"
    if "apt-get" in line.value and "rm -rf /var/lib/apt/lists/*" not in line.value:
        yield "apt's lists stay"
    if "apt-get install" in line.value and "--no-install-recommends" not in line.value:
        yield "recommended packages"
    if re.search(r"(curl|wget)[^|&]*\|", line.value):
        yield "runs what it downloads"
    tools = r"build-essential|make|nvcc" + ("" if compiles else r"|gcc|g\+\+")
    if in_last and re.search(rf"(?<!\S)({tools})(?!\S)", line.value):
        yield "builds in the last stage"


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_every_image_has_its_file() -> None:
    assert names(FILES) == ["gpu.Dockerfile", "pipeline.Dockerfile", "triton.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_it_is_in_order(path: Path) -> None:
    assert list(problems(path.read_text(), compiles=path.name == "gpu.Dockerfile")) == []


def test_what_compiles_while_it_runs_has_a_compiler_and_a_place_for_its_code() -> None:
    text = DOCKERFILES["gpu"]
    assert "builds in the last stage" in list(problems(text))
    settings = " ".join(line.value for line in lines_of(text) if line.instruction == "ENV")
    assert {"TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor", "TRITON_CACHE_DIR=/tmp/triton"} <= set(settings.split())
    assert "TORCHDYNAMO_DISABLE" not in settings


DOCKERFILES = {path.stem: path.read_text() for path in FILES}
PIPELINE = DOCKERFILES["pipeline"]
LISTS_OF_A_RUN = ("run-a-f.txt", "run-g-o.txt", "run-p-z.txt")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("@${PYTHON_DIGEST}", "", "base without digest: docker.io/library/python:3.11-slim"),
        ("3.11-slim@${PYTHON_DIGEST}", "latest", "latest: docker.io/library/python:latest"),
        ("ARG PYTHON_DIGEST", "ARG PYTHON_DIGEST=sha256:0", "a digest with a default: PYTHON_DIGEST=sha256:0"),
        ("USER 1000:1000", "", "user: []"),
        ("USER 1000:1000", "USER 0", "user: ['0']"),
        ("USER 1000:1000", "USER shortlist", "user: ['shortlist']"),
        ("USER 1000:1000", "USER 1000\nUSER root", "user: ['root']"),
        ("COPY shortlist shortlist", "COPY . .", "copies whatever lies around"),
        ("COPY shortlist shortlist", "ADD https://host/x.tar.gz /", "ADD: https://host/x.tar.gz /"),
        ("ARG REVISION", "ARG REVISION\nARG PIP_TOKEN", "secret: PIP_TOKEN"),
        ("HOME=/tmp", "HOME=/tmp AWS_SECRET_ACCESS_KEY=x", "secret: AWS_SECRET_ACCESS_KEY=x"),
        ("--no-cache-dir", "", "pip keeps its cache"),
        ("--mount=type=cache,target=/root/.cache/uv", "", "pip keeps its cache"),
        ("--require-hashes ", "", "packages without hashes: requirements/lock/cluster.txt"),
        ("--no-deps ", "", "packages that no file pins"),
        (" \\\n    && rm -rf /var/lib/apt/lists/*", "", "apt's lists stay"),
        ("--no-install-recommends ", "", "recommended packages"),
        ("libgomp1", "libgomp1 gcc", "builds in the last stage"),
        ("libgomp1", "libgomp1 g++", "builds in the last stage"),
        ("WORKDIR /tmp", "RUN curl https://host/x | sh", "runs what it downloads"),
        ('image.revision="${REVISION}"', 'image.url="x"', "label: revision"),
        (
            'ENTRYPOINT ["shortlist"]',
            "ENTRYPOINT shortlist",
            "a shell in front of the program, which then hears no signal",
        ),
    ],
)
def test_each_rule_refuses(old: str, new: str, problem: str) -> None:
    assert old in PIPELINE
    assert problem in list(problems(PIPELINE.replace(old, new)))


@pytest.mark.parametrize(
    ("kind", "first", "number_of_layers"),
    [("pipeline", ("TORCH_INDEX", "lock/triton.txt"), 7), ("gpu", ("lock/gpu-torch.txt", "lock/gpu-cudf.txt"), 12)],
)
def test_what_changes_least_is_in_the_first_layers(kind: str, first: tuple[str, ...], number_of_layers: int) -> None:
    """A change of the code moves one small layer, and a change of one list of packages not those of the others."""
    layers = [line.value for line in lines_of(DOCKERFILES[kind]) if line.instruction in ("RUN", "COPY")]
    order = (*first, "lock/cluster.txt", *LISTS_OF_A_RUN, "shortlist shortlist")
    texts = [line for line in layers if "uv pip install" in line or line in order]
    positions = [next(number for number, line in enumerate(texts) if text in line) for text in order]
    assert positions == sorted(positions)
    files_by_layer = [re.findall(r"-r (\S+)", line) for line in layers if "uv pip install" in line]
    assert len(files_by_layer) == number_of_layers
    assert all(len(files) <= 1 for files in files_by_layer)


@pytest.mark.parametrize(("kind", "source"), [("pipeline", "run"), ("gpu", "run"), ("gpu", "gpu")])
def test_the_packages_are_in_lists_each_of_which_is_a_layer(tmp_path: Path, kind: str, source: str) -> None:
    (program,) = re.findall(rf"awk '([^']*)' /{source}.txt", DOCKERFILES[kind])
    lock = ROOT / f"requirements/lock/{source}.txt"
    command = ["awk", program.replace(f'"/{source}-', f'"{tmp_path}/{source}-'), str(lock)]
    subprocess.run(command, check=True)
    installed = re.findall(rf"--require-hashes -r requirements/lock/({source}-\S+)", DOCKERFILES[kind])
    assert sorted(installed) == sorted(path.name for path in tmp_path.iterdir())
    assert sorted(itertools.chain(*map(packages_of, tmp_path.iterdir()))) == sorted(packages_of(lock))


def packages_of(lock: Path) -> list[str]:
    """Return the packages of a lock file, each with its hashes."""
    return re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_what_is_copied_is_there_and_let_in(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for line in lines_of(path.read_text()):
        if line.instruction == "COPY" and not line.value.startswith("--from"):
            for source in line.value.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source.partition('/')[0]}" in ignored


def test_what_the_package_needs_is_copied() -> None:
    copied = {source for line in lines_of(PIPELINE) if line.instruction == "COPY" for source in line.value.split()}
    assert {"components", "feature_repo", "models", "monitoring", "pipelines", "shortlist"} <= copied


def test_the_lock_files_pin_every_requirement() -> None:
    def pins(text: str) -> set[tuple[str, str]]:
        matches = re.findall(r"^([\w.-]+)(?:\[.*\])?==([^\s\\;]+)", text, re.MULTILINE)
        return {(canonicalize_name(name), version) for name, version in matches}

    for name in ("run", "cluster", "catboost", "gpu", "triton", "torch-cuda"):
        required, locked = ((ROOT / f"requirements/{folder}{name}.txt").read_text() for folder in ("", "lock/"))
        without_hash = pins(required) - pins(locked)
        assert {package for package, _ in without_hash} == ({"torch"} if name == "run" else set())
        assert pins(locked) <= pins(required)
        assert locked.count("==") <= locked.count("--hash=sha256:")


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_the_lock_files_have_whatever_their_packages_require(python: str) -> None:
    """The first release of each Python: a lock that was made with a newer one lacks what only the older needs."""
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0], "extra": ""}

    def needed(lines: list[str]) -> set[str]:
        requirements = map(Requirement, lines)
        return {
            canonicalize_name(requirement.name)
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate(environment)
        }

    text = "".join((ROOT / f"requirements/lock/{name}.txt").read_text() for name in ("run", "cluster"))
    locked = needed(re.findall(r"^[\w.-]+==[^\\\n]+", text, re.MULTILINE))
    required = {canonicalize_name(package.name): needed(package.requires or []) for package in distributions()}
    assert {name: missing for name in locked if (missing := required.get(name, set()) - locked)} == {}


def test_xgboost_for_the_cpu_is_left_out_of_the_gpu_image_with_its_hashes() -> None:
    script = re.search(r"sed --in-place '(.*?)' /run.txt", DOCKERFILES["gpu"])
    assert script is not None
    text = (ROOT / "requirements/lock/run.txt").read_text()
    sed = shutil.which("sed")
    assert sed is not None
    completed = subprocess.run([sed, script[1]], input=text, capture_output=True, text=True, check=True).stdout
    lost = re.sub(r"^xgboost-cpu==.*?[^\\]\n", "", text, count=1, flags=re.MULTILINE | re.DOTALL)
    assert completed == lost != text


def test_the_server_is_newer_than_its_known_flaws() -> None:
    releases = re.findall(r"tritonserver:(\d+)\.(\d+)-py3", DOCKERFILES["triton"])
    assert releases
    assert all((int(year), int(month)) > (26, 5) for year, month in releases)


def test_the_versions_on_a_gpu_are_those_of_everything_else() -> None:
    def pins(name: str) -> dict[str, str]:
        matches = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        return {package.lower().replace("_", "-"): version for package, version in matches}

    run, cluster, gpu = pins("run.txt"), pins("cluster.txt"), pins("gpu.txt")
    for package in gpu.keys() & (run | cluster).keys():
        assert gpu[package] == (run | cluster)[package]
    assert gpu["xgboost"] == run["xgboost-cpu"]
    assert gpu["cudf-cu13"] == gpu["cudf-polars-cu13"]
    assert not [
        package for package in gpu if package.startswith("cuda") and not gpu[package].startswith(("13.", "0.", "1."))
    ]


@pytest.mark.parametrize("path", FILES, ids=names(FILES))
def test_hadolint_reports_no_problem(path: Path) -> None:
    """Each ignored rule has its reason in the file."""
    program = Path(sys.executable).parent / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed (requirements/test.txt has it on Linux)")
    completed = subprocess.run([program, "--no-color", path], capture_output=True, text=True, check=False)
    assert (completed.stdout, completed.returncode) == ("", 0)
