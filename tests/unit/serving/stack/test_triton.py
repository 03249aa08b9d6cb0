import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from shortlist.rollout.deployment import Deployment
from shortlist.rollout.local.envoy.bootstrap import envoy_program
from shortlist.serving.export.repository import verify_repository, write_repository
from shortlist.serving.processes.errors import StackError
from shortlist.serving.processes.program import COMMON_VARIABLES, Program
from shortlist.serving.triton.triton import TritonPorts, running_triton, triton_program
from shortlist.serving.triton.triton_home import VARIABLE, find_triton
from shortlist.spec.serving import Batching


@pytest.fixture
def repository(tmp_path: Path, deployment: Callable[[int], Deployment]) -> Path:
    write_repository(deployment(7).model_folder / "serving", 7, Batching(), tmp_path / "repository", "python")
    return tmp_path / "repository"


def regions(pid: int) -> list[Path]:
    prefix = psutil.Process(pid).cmdline()[-1].rpartition("shm-region-prefix-name=")[2]
    return list(Path("/dev/shm").glob(f"{prefix}*"))  # noqa: S108


def test_two_tritons_run_side_by_side_and_leave_no_files(repository: Path) -> None:
    with running_triton(repository) as first_triton, running_triton(repository) as second_triton:
        numbers = triton.InferInput("numbers", [3, 2], "FP64")
        numbers.set_data_from_numpy(np.array([[1.0, 2.0], [0.5, 0.5], [0.0, 0.0]]))
        for running in (first_triton, second_triton):
            with triton.InferenceServerClient(running.grpc) as client:
                answer = client.infer("demo", [numbers])
            assert answer.as_numpy("score").tolist() == [[21.0], [7.0], [0.0]]  # 7 * (a + b)
            assert answer.get_response().model_version == "7"
        assert first_triton.cold_start_seconds > 0
        assert 20 < first_triton.memory_mib() < 2_000
        shared = [*regions(first_triton.pid), *regions(second_triton.pid)]
        processes = [psutil.Process(first_triton.pid), *psutil.Process(first_triton.pid).children(recursive=True)]
        listening = {
            connection.laddr.ip
            for connection in psutil.Process(first_triton.pid).net_connections()
            if connection.status == "LISTEN"
        }
        assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert len(processes) == 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
    assert shared
    assert not any(region.exists() for region in shared)
    verify_repository(repository)


def test_triton_is_stopped_when_the_block_fails(repository: Path) -> None:
    with pytest.raises(ZeroDivisionError), running_triton(repository) as server:
        raise ZeroDivisionError
    assert not psutil.pid_exists(server.pid)


def test_a_model_that_does_not_load_fails_with_the_servers_message(repository: Path) -> None:
    (repository / "demo" / "7" / "model.onnx").write_bytes(b"no graph")
    with (
        pytest.raises(StackError, match=r"(?s)Triton ended with code \d+ before it was ready.*model\.onnx"),
        running_triton(repository),
    ):
        pass


def test_a_triton_that_is_not_ready_in_time_is_an_error(repository: Path) -> None:
    with pytest.raises(StackError, match="Triton was not ready within 0 s"), running_triton(repository, seconds=0):
        pass


def test_a_machine_without_triton_gets_the_installation_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(StackError, match=r"no Triton for Python 3\.11 or 3\.12 in there; run `make setup` once"):
        find_triton()


def test_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(StackError, match="Linux x86-64 only"):
        find_triton()


def test_our_environment_variables_do_not_reach_tritons_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("SECRET", "1")
    home = find_triton()
    program = triton_program("triton-v7", tmp_path, "", TritonPorts(1, 2, 3), "shortlist-test-")
    environment = program.process_environment(os.environ)
    assert not {"PYTHONPATH", "SECRET"} & set(environment) and environment["HOME"] == os.environ["HOME"]
    assert environment["PATH"].startswith(str(home.venv / "bin"))


def test_programs_of_a_stack_are_the_same_whoever_describes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "envoy.json"
    config.write_text("{}")

    def describe() -> list[Program]:
        return [
            triton_program("triton-v7", tmp_path, "", TritonPorts(1, 2, 3), "shortlist-test-"),
            envoy_program("envoy-a", config),
        ]

    programs = describe()
    for name in COMMON_VARIABLES:  # a training has a temporary folder of its own, a cron job another PATH
        monkeypatch.setenv(name, str(tmp_path))
    assert describe() == programs  # else the supervisor would restart what serves
    assert {program.process_environment(os.environ)["TMPDIR"] for program in programs} == {str(tmp_path)}
