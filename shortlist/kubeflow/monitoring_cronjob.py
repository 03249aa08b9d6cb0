"""One look at the live traffic of every spec in a folder, which starts trainings on Kubeflow: a CronJob's program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from monitoring.monitoring_job import MonitoringJob, MonitoringRun
from monitoring.receiver.retrainer import RunStarter, begin
from monitoring.store.monitoring_store import MonitoringStore
from shortlist.contracts import ShortlistError
from shortlist.kubeflow.start import kubeflow_host, kubeflow_starter, read_locations, read_specs
from shortlist.kubeflow.training_runs import storage_config
from shortlist.spec.spec import Spec
from shortlist.storage.storage_config import redact_passwords


def main(arguments: list[str]) -> int:
    """Look once at every spec; return 1 when one of them could not be looked at or trained, else 0."""
    asked = parser().parse_args(arguments)
    problems: list[str] = []
    with _told(problems, ""):
        specs = read_specs(asked.specs)
        locations, host = read_locations(asked.data, specs), kubeflow_host()
        with TemporaryDirectory(prefix="shortlist-") as compiled:
            for name, spec in specs.items():
                with _told(problems, f"{name}: "):  # one spec's trouble does not keep the others from being watched
                    _say(name, run_monitoring_once(spec, kubeflow_starter(spec, locations[name], host, Path(compiled))))
    return int(bool(problems))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(prog="shortlist.kubeflow.monitoring_cronjob", description=__doc__)
    made.add_argument("--specs", required=True, type=Path, help="folder with the specs' YAML files")
    made.add_argument(
        "--data", action="append", default=[], help="NAME=s3://bucket/folder, for a spec that reads files"
    )
    return made


def run_monitoring_once(spec: Spec, start: RunStarter) -> tuple[str, ...]:
    """Look once and act on what is decided; return what to tell, a sentence each.

    Raises:
        ShortlistError: Nothing serves yet, a store cannot be read, or no training can be started now.
    """
    stores = str(storage_config(spec.runtime))
    watch = MonitoringJob(spec.name, stores, spec.monitoring, spec.gates.slices, spec.serving.log.sampling)
    monitoring_run = watch.check()
    return (*monitoring_run.lines, *act(watch.monitoring_store, monitoring_run, start))


def act(monitoring_store: MonitoringStore, monitoring_run: MonitoringRun, start: RunStarter) -> tuple[str, ...]:
    """Start the training that a look decided on, where the look is the one of all that may; return what to tell.

    Raises:
        RetryLaterError: It could not be started; the next look tries again.
    """
    if monitoring_run.decision is None or monitoring_run.decision.action != "retrain" or not monitoring_run.claimed:
        return ()
    answer = begin(monitoring_store, monitoring_run.decision, start)
    return (f"{answer.result}: {answer.reason} (run {answer.run})",)


@contextmanager
def _told(problems: list[str], prefix: str) -> Iterator[None]:
    try:
        yield
    except ShortlistError as error:
        problems.append(redact_passwords(str(error)))
        sys.stderr.write(f"{prefix}{problems[-1]}\n")


def _say(name: str, lines: tuple[str, ...]) -> None:
    sys.stdout.write("".join(f"{name}: {line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
