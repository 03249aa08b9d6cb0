"""One look at the live traffic of every spec in a folder, which starts trainings on Kubeflow: a CronJob's program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from monitoring.book import Book
from monitoring.receiver.retrainer import Start, begin
from monitoring.watch import Look, Watch
from pipelines.cluster import stores_of
from pipelines.kubeflow_start import kubeflow_host, read_locations, read_specs, starter
from shortlist.config.spec import Spec
from shortlist.contracts import ShortlistError
from shortlist.stores import without_secret


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
                    _say(name, watch_once(spec, starter(spec, locations[name], host, Path(compiled))))
    return int(bool(problems))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(prog="pipelines.watch_job", description=__doc__)
    made.add_argument("--specs", required=True, type=Path, help="folder with the specs' YAML files")
    made.add_argument(
        "--data", action="append", default=[], help="NAME=s3://bucket/folder, for a spec that reads files"
    )
    return made


def watch_once(spec: Spec, start: Start) -> tuple[str, ...]:
    """Look once and act on what is decided; return what to tell, a sentence each.

    Raises:
        ShortlistError: Nothing serves yet, a store cannot be read, or no training can be started now.
    """
    stores = str(stores_of(spec.runtime))
    watch = Watch(spec.name, stores, spec.monitoring, spec.gates.slices, spec.serving.log.sampling)
    look = watch.look()
    return (*look.lines, *act(watch.book, look, start))


def act(book: Book, look: Look, start: Start) -> tuple[str, ...]:
    """Start the training that a look decided on, where the look is the one of all that may; return what to tell.

    Raises:
        NotNowError: It could not be started; the next look tries again.
    """
    if look.decision is None or look.decision.action != "retrain" or not look.claimed:
        return ()
    answer = begin(book, look.decision, start)
    return (f"{answer.result}: {answer.reason} (run {answer.run})",)


@contextmanager
def _told(problems: list[str], prefix: str) -> Iterator[None]:
    try:
        yield
    except ShortlistError as error:
        problems.append(without_secret(str(error)))
        sys.stderr.write(f"{prefix}{problems[-1]}\n")


def _say(name: str, lines: tuple[str, ...]) -> None:
    sys.stdout.write("".join(f"{name}: {line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
