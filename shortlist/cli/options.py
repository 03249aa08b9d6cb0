"""Arguments that several commands share, and what they need."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from shortlist.contracts import ShortlistError
from shortlist.system.project import project_root

SpecArgument = Annotated[
    str, typer.Argument(help="Name of a shipped spec (demo, kuairand, criteo) or path of a YAML file.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Use this value instead of the spec's: key.of.section=value. In lists by position or name; + appends.",
    ),
]
RunsOption = Annotated[Path, typer.Option(help="Folder for runs, models and stores.")]

ProfileOption = Annotated[str, typer.Option(help="Location of the stores: laptop or cluster; the spec's by default.")]
ObjectsOption = Annotated[str, typer.Option(help="Bucket of the cluster profile: s3://bucket/prefix.")]


def spec_changes(profile: str, objects: str, change: list[str] | None) -> list[str]:
    """Return the changes of a spec that the options make; an explicit change takes precedence.

    >>> spec_changes("cluster", "s3://models/shortlist", ["runtime.seed=3"])
    ['runtime.profile=cluster', 'runtime.objects={kind: bucket, url: s3://models/shortlist}', 'runtime.seed=3']
    """
    changes = [f"runtime.profile={profile}"] if profile else []
    changes += [f"runtime.objects={{kind: bucket, url: {objects}}}"] if objects else []
    return changes + (change or [])


def find_spec(name: str, runs: Path = Path("runs")) -> Path:
    """Return the path of a spec given by name or by path.

    Args:
        name: Path of a YAML file, name of a shipped spec, or `name` of a spec that was run here.
        runs: Folder of the runs, which remember the paths of their specs.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    from shortlist.runs.runs_folder import recalled_spec

    shipped = project_root() / "pipelines" / "specs" / f"{name}.yaml"
    return shipped if shipped.is_file() else recalled_spec(runs, name) or shipped


def require_cluster_packages() -> None:
    """Check that the packages of requirements/cluster.txt are installed.

    Raises:
        ShortlistError: They are not.
    """
    if util.find_spec("kfp.kubernetes") is None:
        raise ShortlistError(
            "the packages of a cluster are not installed (no kfp-kubernetes); the same command by make installs them,"
            " or pip install --no-deps --require-hashes -r requirements/lock/cluster.txt"
        )
