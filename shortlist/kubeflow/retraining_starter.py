"""Starts on Kubeflow the trainings that monitoring decided."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from monitoring.receiver.retrainer import RunStarter
from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.training_runs import prepare_training, submit_run
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec

HOST_VARIABLE: Final = "KF_PIPELINES_ENDPOINT"
"""Environment variable with the address of Kubeflow Pipelines, as `shortlist submit` reads it."""
_ANSWER_SECONDS: Final = 20.0


def kubeflow_starter(spec: Spec, data: str, host: str, compiled_folder: Path) -> RunStarter:
    """Return the function that starts a spec's trainings, once per decision however often it is called.

    Args:
        spec: The declaration, for a cluster.
        data: `s3://...` or `gs://...` with the user's files; empty for a generated log.
        host: `http(s)://host[:port]` of Kubeflow Pipelines.
        compiled_folder: Where compiled graphs are written.
    """

    def start_decided(decision: RetrainDecision) -> str:
        submission = prepare_training(spec, data, compiled_folder, decision=decision)
        # A new client for each run: the pod's token is replaced within the hour.
        kubeflow = KubeflowClient(host, spec.runtime.cluster.namespace, seconds=_ANSWER_SECONDS)
        return submit_run(submission, spec, kubeflow).run_id

    return start_decided


def read_specs(folder: Path) -> dict[str, Spec]:
    """Return the specs in a folder's YAML files, by name.

    Raises:
        ShortlistError: There is none, one is not valid, or two have the same name.
    """
    spec_by_name: dict[str, Spec] = {}
    for path in sorted(folder.glob("*.yaml")):
        spec = load_spec(path)
        if spec.name in spec_by_name:
            raise ShortlistError(f"{path}: another file in {folder} has a spec of the name '{spec.name}' too")
        spec_by_name[spec.name] = spec
    if not spec_by_name:
        raise ShortlistError(f"{folder}: has no spec; wanted one YAML file or more")
    return spec_by_name


def parse_data_locations(options: Sequence[str], specs: Mapping[str, Spec]) -> dict[str, str]:
    """Return the location of each spec's data, by spec name; empty for a generated log.

    Args:
        options: `NAME=s3://bucket/folder` each.
        specs: Specs by name.

    Raises:
        ShortlistError: An option names no spec.
    """
    locations = dict.fromkeys(specs, "")
    for option in options:
        name, separator, location = option.partition("=")
        if not separator or name not in locations:
            raise ShortlistError(
                f"--data: got '{option}', wanted NAME=s3://bucket/folder with NAME one of {sorted(specs)}"
            )
        locations[name] = location
    return locations


def kubeflow_host() -> str:
    """Return the address of Kubeflow Pipelines.

    Raises:
        ShortlistError: The environment variable is not set.
    """
    host = os.environ.get(HOST_VARIABLE, "")
    if not host:
        raise ShortlistError(f"{HOST_VARIABLE} is not set; wanted http(s)://host[:port] of Kubeflow Pipelines")
    return host
