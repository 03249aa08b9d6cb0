"""Program of a pod: runs a step of a graph with kfp's executor, or several consecutive steps one after another.

    python3 -m components.pod components.log:ingest components.log:validate --wiring JSON --executor_input JSON

Each of several steps is a process of its own, so that its memory is free before the next one starts. On a cluster each
step is one, and is run again while a store cannot be reached: Kubeflow's own retries need a setting of the cluster that
its installation does not have.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_exponential

MODULE: Final = "components.pod"
"""Name of this module."""
RETRIES_VARIABLE: Final = "SHORTLIST_STEP_RETRIES"
"""How often a step is run again while a store cannot be reached; not set on one machine."""
FIRST_WAIT_SECONDS: Final = 30
"""Wait before a step is run again; it doubles."""
LONGEST_WAIT_SECONDS: Final = 600


class StepWiring(TypedDict):
    """How a step of a pod with several steps is connected."""

    inputs: dict[str, str]
    """Input of the step -> `<step>.<output>` of an earlier step of the pod, or an input of the pod."""
    outputs: dict[str, str]
    """Output of the step -> output of the pod."""


class StepOutputs(NamedTuple):
    """Outputs of a finished step, in the form of kfp's executor."""

    parameters: dict[str, Any]
    """Value of each output parameter."""
    artifacts: dict[str, Any]
    """Location, type and metadata of each output artefact."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that the command line names; return the exit code of the first that fails, else 0."""
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("steps", nargs="+", help="module:function of each step")
    parser.add_argument("--wiring", default="{}", help="how several steps are connected, by step, as JSON")
    parser.add_argument("--executor_input", required=True, help="inputs and places of the outputs, as JSON")
    options = parser.parse_args(arguments)
    executor_input = json.loads(options.executor_input)
    wiring = json.loads(options.wiring)
    if wiring:
        return run_steps(options.steps, wiring, executor_input)
    if RETRIES_VARIABLE in os.environ:
        return run_with_retries(options.steps[0], executor_input)
    run_step(options.steps[0], executor_input)
    return 0


def run_step(reference: str, executor_input: dict[str, Any]) -> None:
    """Run one step in this process.

    Args:
        reference: `module:function` of the step.
        executor_input: Its inputs, and the places of its outputs, as Kubeflow describes them.
    """
    os.environ["_KFP_RUNTIME"] = "true"  # kfp then imports what a running step needs
    from kfp.dsl.executor import Executor

    module, _, function = reference.partition(":")
    _insert_sections(executor_input)
    executor = Executor(executor_input, getattr(importlib.import_module(module), function))
    for artefact in executor.output_artifacts.values():
        if artefact.path:
            _remove(Path(artefact.path))  # an earlier attempt may have written a part
    executor.execute()


def run_with_retries(
    reference: str, executor_input: Mapping[str, Any], wait_seconds: float = FIRST_WAIT_SECONDS
) -> int:
    """Run one step in a process, again while a store cannot be reached; return its exit code.

    Args:
        reference: `module:function` of the step.
        executor_input: See `run_step`.
        wait_seconds: Wait before the second attempt.
    """
    command = [sys.executable, "-m", MODULE, reference, "--executor_input", json.dumps(executor_input)]
    environment = {name: value for name, value in os.environ.items() if name != RETRIES_VARIABLE}

    def run() -> int:
        code = subprocess.run(command, check=False, env=environment).returncode  # noqa: S603 - our own interpreter and module
        return code if code >= 0 else 128 - code  # as a shell reports a signal

    retrying = Retrying(
        retry=retry_if_result(lambda code: code == os.EX_TEMPFAIL),
        stop=stop_after_attempt(1 + int(os.environ.get(RETRIES_VARIABLE, "0"))),
        wait=wait_exponential(multiplier=wait_seconds, max=LONGEST_WAIT_SECONDS),
        before_sleep=_announce_retry,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else 1,
    )
    return int(retrying(run))


def run_steps(references: Sequence[str], wiring: Mapping[str, StepWiring], executor_input: dict[str, Any]) -> int:
    """Run several steps, each in a process; return the exit code of the first that fails, else 0.

    Args:
        references: `module:function` of each step.
        wiring: How the steps are connected, by the name of the function.
        executor_input: Inputs of the pod, and the places of its outputs.
    """
    outputs: dict[str, StepOutputs] = {}
    output_file = Path(executor_input["outputs"]["outputFile"])
    output_file.parent.mkdir(parents=True, exist_ok=True)
    for reference in references:
        step = reference.partition(":")[2]
        step_file = output_file.with_name(f"{step}.json")
        step_input = _step_input(wiring[step], executor_input, outputs, step_file)
        code = run_with_retries(reference, step_input)
        if code:
            sys.stderr.write(f"The step {step} failed.\n")
            return code
        outputs[step] = _read_outputs(step_file, step_input)
    output_file.write_text(json.dumps(_merge_outputs(wiring, outputs)))
    return 0


def _insert_sections(executor_input: Mapping[str, Any]) -> None:
    """Put the texts of sections in place of their references among the inputs of a step."""
    values = executor_input.get("inputs", {}).get("parameterValues", {})
    from shortlist.storage.section_references import is_reference, read_sections

    if any(map(is_reference, values.values())):
        from shortlist.tracking.steps import step

        with step("read_sections"):
            values |= read_sections(values)


def _announce_retry(state: RetryCallState) -> None:
    sys.stderr.write(f"A store cannot be reached; the step is run again in {state.upcoming_sleep:.0f} s.\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _step_input(
    wiring: StepWiring, executor_input: Mapping[str, Any], outputs: Mapping[str, StepOutputs], step_file: Path
) -> dict[str, Any]:
    """Return the executor input of a step: its part of the pod's, and outputs of earlier steps."""
    pod_inputs, pod_outputs = executor_input.get("inputs", {}), executor_input["outputs"]
    parameters, artifacts = {}, {}
    for name, source in wiring["inputs"].items():
        step, separator, output = source.partition(".")
        values, files = (
            (outputs[step].parameters, outputs[step].artifacts)
            if separator
            else (pod_inputs.get("parameterValues", {}), pod_inputs.get("artifacts", {}))
        )
        key = output if separator else source
        if key in values:
            parameters[name] = values[key]
        elif key in files:
            artifacts[name] = files[key]
    places = {
        kind: {
            name: pod_outputs[kind][pod_name]
            for name, pod_name in wiring["outputs"].items()
            if pod_name in pod_outputs.get(kind, {})
        }
        for kind in ("parameters", "artifacts")
    }
    return {
        "inputs": {"parameterValues": parameters, "artifacts": artifacts},
        "outputs": {**places, "outputFile": str(step_file)},
    }


def _read_outputs(step_file: Path, step_input: Mapping[str, Any]) -> StepOutputs:
    written = json.loads(step_file.read_text())
    declared = step_input["outputs"]["artifacts"]
    artifacts = {
        name: {"artifacts": [{**declared[name]["artifacts"][0], **written["artifacts"][name]["artifacts"][0]}]}
        for name in written.get("artifacts", {})
    }
    return StepOutputs(written.get("parameterValues", {}), artifacts)


def _merge_outputs(wiring: Mapping[str, StepWiring], outputs: Mapping[str, StepOutputs]) -> dict[str, Any]:
    """Return the outputs of the pod, in the form of kfp's executor output file."""
    merged: dict[str, Any] = {"parameterValues": {}, "artifacts": {}}
    for step, produced in outputs.items():
        pod_names = wiring[step]["outputs"]
        merged["parameterValues"] |= {pod_names[name]: value for name, value in produced.parameters.items()}
        merged["artifacts"] |= {pod_names[name]: files for name, files in produced.artifacts.items()}
    return merged


if __name__ == "__main__":
    sys.exit(main())
