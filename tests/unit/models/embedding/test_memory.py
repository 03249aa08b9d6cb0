from __future__ import annotations

from pathlib import Path

import pytest

from models.embedding.table.table_memory import free_host_bytes

MEMINFO = "MemTotal:       32000 kB\nMemFree:         1000 kB\nMemAvailable:   20000 kB\n"
STAT = "anon 7\ninactive_file 500000\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 20_000 * 1024),  # no container
        ({"memory.max": "max\n", "memory.current": "5\n"}, 20_000 * 1024),  # one without a limit
        ({"memory.max": "9000000\n", "memory.current": "2500000\n", "memory.stat": STAT}, 7_000_000),
        (
            {"memory.max": "900000000\n", "memory.current": "600000\n", "memory.stat": STAT},
            20_000 * 1024,
        ),  # a limit that the machine cannot keep
    ],
)
def test_free_memory_is_the_smaller_of_machine_and_container(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert free_host_bytes(tmp_path / "meminfo", tmp_path) == expected


def test_this_machine_has_memory() -> None:
    assert free_host_bytes() > 0
