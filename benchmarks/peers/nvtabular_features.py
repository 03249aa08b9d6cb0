"""NVTabular on the CPU: a Criteo-layout TSV to frequency-capped ids and log counts in Parquet.

Runs in an environment of its own (`requirements/peers.txt`), which agrees with nothing else:
`python nvtabular_features.py LOG.tsv OUT ROWS_SEEN_AT_LEAST`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path


def main(log: str, out: str, least: int) -> None:
    """Write OUT/*.parquet: `label`, `I1..I13` float32, `C1..C26` ids."""
    warnings.simplefilter("ignore")
    import numpy as np
    import nvtabular as nvt
    from nvtabular import ops

    counts = [f"I{number}" for number in range(1, 14)]
    categories = [f"C{number}" for number in range(1, 27)]
    types = {"label": "int64", **dict.fromkeys(counts, "float64"), **dict.fromkeys(categories, "str")}
    raw = nvt.Dataset(
        log, engine="csv", part_size="64MB", sep="\t", names=["label", *counts, *categories], dtype=types, cpu=True
    )
    numbers = counts >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.ReduceDtypeSize(np.float32)
    ids = categories >> ops.Categorify(freq_threshold=least, out_path=str(Path(out) / "categories"))
    workflow = nvt.Workflow(["label"] + numbers + ids)  # noqa: RUF005 - its own operator
    workflow.fit(raw)
    workflow.transform(raw).to_parquet(str(Path(out) / "table"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
