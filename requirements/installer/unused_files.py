"""Files of packages that nothing here runs: their own tests, and OpenVINO's parts for other devices and formats."""

from __future__ import annotations

import shutil
from pathlib import Path

_TESTS = (
    *("dask", "matplotlib", "networkx", "numba", "numpy", "onnx", "pandas", "pyarrow", "scipy", "sklearn"),
    *("statsmodels", "sympy", "torch"),
)
"""Packages whose folders `test` and `tests` are tests; other packages have modules of these names (Evidently, Ibis)."""
_UNUSED = (
    "torch/bin/*[Tt]est*",
    "openvino/libs/cache.json",  # of its plugin for GPUs
    *(f"openvino/libs/libopenvino_intel_{device}_plugin.so" for device in ("gpu", "npu")),
    *(f"openvino/libs/libopenvino_{name}_frontend.so*" for name in ("gguf", "jax", "paddle", "pytorch")),
    *(f"openvino/libs/libopenvino_{name}_frontend.so*" for name in ("tensorflow", "tensorflow_lite")),
)


def remove_unused_files(site_packages: Path) -> None:
    """Remove the unused files of an environment: a quarter of a gigabyte.

    Args:
        site_packages: Folder of the environment's packages.
    """
    for package in _TESTS:
        for folder in [*site_packages.glob(f"{package}/**/test"), *site_packages.glob(f"{package}/**/tests")]:
            shutil.rmtree(folder, ignore_errors=True)
    for pattern in _UNUSED:
        for path in site_packages.glob(pattern):
            path.unlink()
