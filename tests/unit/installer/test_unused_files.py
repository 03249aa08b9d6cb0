"""What the set-up removes of installed packages, and what it must not."""

from __future__ import annotations

from pathlib import Path

from installer.unused_files import remove_unused_files

REMOVED = (
    *("torch/test/test_ops", "torch/bin/TCPStoreTest", "torch/bin/test_jit", "pandas/tests/io/test_parquet.py"),
    *("onnx/backend/test/data/model.onnx", "openvino/libs/cache.json"),
    *("openvino/libs/libopenvino_intel_gpu_plugin.so", "openvino/libs/libopenvino_paddle_frontend.so.2641"),
)
KEPT = (
    *("torch/bin/protoc", "torch/bin/torch_shm_manager", "torch/testing/__init__.py", "evidently/tests/__init__.py"),
    *("openvino/libs/libopenvino_intel_cpu_plugin.so", "openvino/libs/libopenvino_onnx_frontend.so.2641"),
)


def test_tests_and_parts_for_other_devices_go_and_what_runs_stays(tmp_path: Path) -> None:
    for name in (*REMOVED, *KEPT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    remove_unused_files(tmp_path)
    remaining = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert remaining == set(KEPT)
