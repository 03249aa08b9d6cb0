"""Program of the CronJob: one monitoring run for every spec in a folder, which may start trainings on Kubeflow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from monitoring.monitoring_job import MonitoringJob, MonitoringRun
from monitoring.receiver.retrainer import RunStarter, begin_retraining
from monitoring.store.monitoring_store import MonitoringStore
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.retraining_starter import kubeflow_host, kubeflow_starter, parse_data_locations, read_specs
from shortlist.kubeflow.training_runs import storage_config
from shortlist.spec.spec import Spec
from shortlist.storage.storage_config import redact_passwords


def main(arguments: list[str]) -> int:
    """Run monitoring once for every spec; return 1 when a check or the start of a training failed, else 0."""
    options = parser().parse_args(arguments)
    problems: list[str] = []
    with _collect_problem(problems, ""):
        specs = read_specs(options.specs)
        locations, host = parse_data_locations(options.data, specs), kubeflow_host()
        with TemporaryDirectory(prefix="shortlist-") as compiled:
            for name, spec in specs.items():
                with _collect_problem(problems, f"{name}: "):  # one spec's error does not stop the others
                    _print_lines(
                        name, run_monitoring_once(spec, kubeflow_starter(spec, locations[name], host, Path(compiled)))
                    )
    return int(bool(problems))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="shortlist.kubeflow.monitoring_cronjob", description=__doc__)
    arguments.add_argument("--specs", required=True, type=Path, help="folder with the specs' YAML files")
    arguments.add_argument(
        "--data", action="append", default=[], help="NAME=s3://bucket/folder, for a spec that reads files"
    )
    return arguments


def run_monitoring_once(spec: Spec, start: RunStarter) -> tuple[str, ...]:
    """Check live traffic once and start a training if that is decided; return sentences for the user.

    Raises:
        ShortlistError: No version serves yet, a store cannot be read, or no training can be started now.
    """
    stores = str(storage_config(spec.runtime))
    watch = MonitoringJob(spec.name, stores, spec.monitoring, spec.gates.slice_columns, spec.serving, spec.ordering)
    monitoring_run = watch.check()
    return (*monitoring_run.lines, *start_decided_training(watch.monitoring_store, monitoring_run, start))


def start_decided_training(
    monitoring_store: MonitoringStore, monitoring_run: MonitoringRun, start: RunStarter
) -> tuple[str, ...]:
    """Start the training that a monitoring run decided and claimed; return sentences for the user.

    Raises:
        RetryLaterError: It could not be started; the next monitoring run tries again.
    """
    if monitoring_run.decision is None or monitoring_run.decision.action != "retrain" or not monitoring_run.claimed:
        return ()
    answer = begin_retraining(monitoring_store, monitoring_run.decision, start)
    return (f"{answer.result}: {answer.reason} (run {answer.run})",)


@contextmanager
def _collect_problem(problems: list[str], prefix: str) -> Iterator[None]:
    try:
        yield
    except ShortlistError as error:
        problems.append(redact_passwords(str(error)))
        sys.stderr.write(f"{prefix}{problems[-1]}\n")


def _print_lines(name: str, lines: tuple[str, ...]) -> None:
    sys.stdout.write("".join(f"{name}: {line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
