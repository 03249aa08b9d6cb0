"""The shipped spec `kuairand` on its files, in one run: `make bench NAME=kuairand OPTIONS=path/to/kuairand`."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.bench import Line, record, show
from benchmarks.targets import exit_code
from shortlist.contracts import Files
from shortlist.runs.local_training import run_locally
from shortlist.spec.load import load_spec
from shortlist.storage.artefacts import read_json

SPEC: Final = Path(__file__).parents[1] / "pipelines/specs/kuairand.yaml"
PEER: Final = "popularity"


def main() -> int:
    """Train, print and record the metrics of the test days; exit code 1 where one is not as good as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of KuaiRand")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        code = run_locally(load_spec(SPEC), arguments.data, Path(folder))
        assert code == 0, f"the run ended with exit code {code}"
        models = read_json(Path(folder) / "latest" / Files.SUMMARY)["models"]
    lines = [
        Line("kuairand", f"{name}, {metric}", model[metric], "")
        for name, model in models.items()
        for metric in ("auc", "gauc", "log_loss")
        if model.get(metric) is not None
    ]
    lead = models["blend"]["gauc"] - models[PEER]["gauc"]
    lines.append(Line("kuairand", "blend, lead in gauc", lead, "", PEER))
    show("KuaiRand, test days", lines)
    record(lines, whole="kuairand")
    return exit_code(lines)


if __name__ == "__main__":
    raise SystemExit(main())
