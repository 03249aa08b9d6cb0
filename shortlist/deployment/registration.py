"""Writes the verdict of the gates to MLflow: a version of the blessed model, and the results of all candidates."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.blessing import read_blessing, verify_blessing
from shortlist.evaluation.verdict import GateVerdict, measured_numbers
from shortlist.report.figures import write_plots
from shortlist.report.report import choose_shown_slates, model_plots
from shortlist.report.value_lines import run_value, value_numbers
from shortlist.storage.artefacts import read_json
from shortlist.tracking.registry import BEST_CHAMPION, RELEASE
from shortlist.tracking.run_context import RunContext


def register_blessed(
    context: RunContext,
    verdict: Path,
    runs: Mapping[str, str],
    reference: Path | None = None,
    tags: Mapping[str, str] | None = None,
    release: Path | None = None,
) -> str:
    """Verify the blessing, register the blessed model as candidate, and return its version.

    The first model of a spec also becomes the champion: there is no other to compare it with.

    Args:
        context: Spec and storage.
        verdict: Folder of `blessing.json`.
        runs: Ids of the candidates' MLflow runs by name, from which the files of the blessed one are verified.
        reference: Folder of the reference distributions of the monitoring; without it the version can be served but not
            monitored.
        tags: Further tags of the version; see `shortlist.training.champion_cache`.
        release: Folder of the sources, filters and ordering of the version; None: clients bring their candidates. The
            same model with another release is another version.

    Raises:
        IntegrityError: The files are not those that passed the gates.
        ShortlistError: The model is a version that was retired.
    """
    blessing = read_blessing(verdict / Files.BLESSING)
    assert blessing.blessed is not None
    run = runs[blessing.blessed.model]
    with TemporaryDirectory(prefix="shortlist-blessed-") as files:
        verify_blessing(verdict / Files.BLESSING, context.tracker.fetch_model(run, Path(files)))
    record_verdict(context, verdict, runs)
    context.tracker.log_blessing(run, verdict / Files.BLESSING)  # before there is a version
    if reference is not None:
        context.tracker.log_reference(run, reference)
    stages = {RELEASE: context.tracker.log_retrieval(run, release)} if release is not None else {}
    registry = context.tracker.registry
    best = GateVerdict.read(verdict).best_version_after_promotion(blessing.blessed.model)
    version_tags = {**(tags or {}), **stages, "blessed": "true"} | ({BEST_CHAMPION: best} if best else {})
    version = registry.register(run, version_tags)
    if reason := registry.retirement_of(version):
        raise ShortlistError(
            f"the run made version {version} of {registry.name} again, which was retired ({reason}); change what it was"
            " retired for in the spec"
        )
    registry.set_alias("candidate", version)
    if registry.version_of("champion") is None:
        registry.set_alias("champion", version)
    return str(version)


def record_verdict(context: RunContext, verdict: Path, runs: Mapping[str, str]) -> None:
    """Write every model's test metrics, every candidate's gate results and the comparison plots to MLflow.

    Args:
        context: Spec and storage.
        verdict: Folder of `blessing.json`.
        runs: Ids of the models' MLflow runs by name.
    """
    tracker = context.tracker
    verdict_read = GateVerdict.read(verdict)
    with TemporaryDirectory() as folder:
        blessing = read_blessing(verdict / Files.BLESSING)
        value = run_value(verdict_read, choose_shown_slates(verdict_read, blessing))
        write_plots(model_plots(verdict_read.models, verdict_read.best_possible, value), Path(folder))
        for report in blessing.gates:
            tracker.log_gates(runs[report.model], report.model_dump(mode="json"))
            tracker.log_files(runs[report.model], Path(folder), "plots")
            tracker.log_metrics(runs[report.model], {"value": value_numbers(value, report.model)})
        for measures in verdict_read.models:
            if measures.model in runs:
                tracker.log_metrics(runs[measures.model], {"test": measured_numbers(measures)})


def record_run(context: RunContext, summary: Path, page: Path, runs: Mapping[str, str]) -> None:
    """Finish the MLflow run of the pipeline: write every model's test metrics, the verdict, the page and the summary.

    Args:
        context: Spec and storage.
        summary: `summary.json`.
        page: `report.html`.
        runs: Ids of the models' MLflow runs by name; those of cached models belong to an earlier pipeline.
    """
    summary_read = read_json(summary)
    blessed = summary_read["blessed"] or {"model": "none", "version": ""}
    tags = {f"run.{name}": run for name, run in runs.items()}
    tags |= {"blessed": blessed["model"], "version": blessed["version"]}
    with TemporaryDirectory() as folder:  # Kubeflow's artefacts have other file names
        files = Path(folder) / Files.SUMMARY, Path(folder) / Files.REPORT
        for source, to in zip((summary, page), files, strict=True):
            shutil.copyfile(source, to)
        context.tracker.log_pipeline(summary_read["models"], tags, files)


def promote(context: RunContext, version: int | None = None) -> int:
    """Make a version the champion, by default the candidate; return it.

    Raises:
        ShortlistError: There is no candidate.
    """
    registry = context.tracker.registry
    champion = version if version is not None else registry.version_of("candidate")
    if champion is None:
        raise ShortlistError(f"spec '{context.name}' has no candidate yet; make run SPEC={context.name}")
    registry.set_alias("champion", champion)
    return champion
