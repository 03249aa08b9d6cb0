"""The wide training graph, run for real with kfp.local: groups of days give the same bytes as one pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import folder_digest
from shortlist.storage.groups import read

pytestmark = pytest.mark.long

DOOMED = "2026-01-10"
"""A day in the middle group."""
# Loaded by every Python process of the graph; the step that counts the doomed day is killed once, half-way.
KILLER = f"""
import os, signal, sys

def watch(event, args):
    if event != "os.mkdir" or "counted.partial/statistics/" not in str(args[0]):
        return
    command, marker = " ".join(sys.argv), os.environ["KILLED_ONCE"]
    doomed = "--function_to_execute count_days" in command and "{DOOMED}" in command
    if doomed and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
"""


class Run(NamedTuple):
    """A run that ended."""

    code: int
    artefacts: Path
    """Folder of the artefacts, with a folder per task."""
    folder: Path

    def groups(self, task: str) -> dict[str, str]:
        """The days that a looped task worked on, by folder; what came from the cache has none."""
        outputs = self.artefacts.glob(f"for-loop-*/{task}/*/*.json")
        return {str(path.parents[2]): ",".join(days_in(json.loads(path.read_text()))) for path in outputs}


def days_in(index: dict[str, Any]) -> list[str]:
    days = index["days"]
    return list(days) if isinstance(days, dict) else [part["day"] for part in days]


def run(spec: dict[str, Any], runs: Path) -> Run:
    """Run a spec with its days shared out among three pods."""
    artefacts_before = set(runs.glob("cache/artefacts/*"))
    shared_out = spec | {"runtime": {**spec.get("runtime", {}), "cluster": {"partitions": 3}}}
    code = run_locally(parse_spec(yaml.safe_dump(shared_out)), None, runs)
    (artefacts,) = set(runs.glob("cache/artefacts/*")) - artefacts_before
    return Run(code, artefacts, (runs / "latest").resolve())


@pytest.fixture(scope="module")
def wide(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """A run whose middle group is killed, and the same run asked for again."""
    folder = tmp_path_factory.mktemp("wide")
    (folder / "sitecustomize.py").write_text(KILLER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        patch.setenv("KILLED_ONCE", str(folder / "killed"))
        killed = run(small_spec, folder / "runs")
        assert (folder / "killed").exists()
        yield killed, run(small_spec, folder / "runs")


def test_a_killed_group_stops_the_run_and_leaves_nothing_half_written(wide: tuple[Run, Run]) -> None:
    killed, _ = wide
    assert killed.code == 1
    assert not any(DOOMED in days for days in killed.groups("count-days").values())
    assert not (killed.artefacts / "merge-features").exists()


def test_only_unfinished_groups_are_counted_again(wide: tuple[Run, Run]) -> None:
    _, resumed = wide
    assert resumed.code == 0
    first, second = (set(finished_run.groups("count-days").values()) for finished_run in wide)
    assert first and not first & second  # what had ended came from the cache
    assert any(DOOMED in days for days in second)
    counted = [day for days in (*first, *second) for day in sorted(read(days))]
    assert len(counted) == len(set(counted)) == 8
    assert len(first | second) == len(resumed.groups("build-days")) == 3


def test_groups_of_days_give_the_bytes_of_one_pod(finished: Any, wide: tuple[Run, Run]) -> None:
    killed, resumed = wide
    narrow = finished  # one pod
    assert narrow.code == 0
    assert len(killed.groups("validate-days")) == 3
    same = {
        "ingest/raw_log": killed.artefacts / "join-raw-log/raw_log",
        "validate/valid_log": killed.artefacts / "join-valid-log/valid_log",
        "validate/quarantine": killed.artefacts / "join-valid-log/quarantine",
        "fit-features/fitted": resumed.artefacts / "merge-features/fitted",
        "build-table/table": resumed.artefacts / "join-table/table",
        **{
            name: resumed.artefacts / name
            for name in ("materialize-features/skew", "build-reference-profile/reference")
        },
    }
    different = {name for name, path in same.items() if contents(narrow.artefacts / name) != contents(path)}
    assert different == set()
    for number in range(3):  # trees, logistic regression, popularity
        scores = [trained(finished_run, number) / "scores" for finished_run in (narrow, resumed)]
        assert contents(scores[0]) == contents(scores[1])
    model, resumed_model = trained(narrow, 0) / "model", trained(resumed, 0) / "model"
    times = {"model.json", "manifest.json"}  # they say when it was trained
    weights = [path.relative_to(model) for path in model.rglob("*") if path.is_file() and path.name not in times]
    assert weights
    for name in weights:
        assert (model / name).read_bytes() == (resumed_model / name).read_bytes()


def trained(finished_run: Run, number: int) -> Path:
    """The folder of the task that trained a model, by the model's place in the list."""
    (folder,) = finished_run.artefacts.glob(f"for-loop-*-iteration-{number}/train")
    return folder


def contents(folder: Path) -> str:
    assert folder.is_dir()
    return folder_digest(folder)


def test_the_page_says_what_each_step_took(wide: tuple[Run, Run]) -> None:
    _, resumed = wide
    steps = json.loads((resumed.folder / "summary.json").read_text())["steps"]
    assert {"join_raw_log", "join_valid_log", "merge_features", "join_table"} <= set(steps)
    assert "Merge the statistics" in (resumed.folder / "report.html").read_text()
